//! The CPU gives the same bits on every instruction set and number of threads.

use moeflux_backend::Backend;
use moeflux_backend::conformance::{Closeness, Open, check_each};
use moeflux_backend::cpu::{Cpu, Isa};

/// What the emulated processors of the tests are known to have.
const EXPECTED: &str = "MOEFLUX_EXPECTED_ISAS";

#[test]
fn the_instruction_sets_are_those_of_the_processor() {
    let found: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
    assert_eq!(found.first(), Some(&"scalar"), "the specification comes first");
    assert_eq!(found.last(), Some(&Isa::detect().name()), "and the fastest last");
    for (isa, name) in Isa::available().into_iter().zip(&found) {
        assert_eq!(Isa::by_name(name), Some(isa));
    }
    assert_eq!(Isa::by_name("NEON"), None);
    #[cfg(target_arch = "aarch64")]
    assert_eq!(found.get(1), Some(&"neon"));
    if let Ok(expected) = std::env::var(EXPECTED) {
        assert_eq!(found.join(" "), expected, "set by {EXPECTED}");
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    let isas = Isa::available();
    let opens = isas.iter().map(|isa| move || -> Box<dyn Backend> { Box::new(Cpu::new(1, *isa)) });
    let opens: Vec<_> = opens.collect();
    // The first is the specification itself.
    let candidates: Vec<Open<'_>> = opens.iter().skip(1).map(|open| open as Open<'_>).collect();
    check_each(&candidates, Closeness::Bits);
}

#[test]
fn every_number_of_threads_gives_the_same_bits() {
    let open = |n| move || -> Box<dyn Backend> { Box::new(Cpu::new(n, Isa::detect())) };
    let (two, three) = (open(2), open(3));
    check_each(&[&two, &three], Closeness::Bits);
}
