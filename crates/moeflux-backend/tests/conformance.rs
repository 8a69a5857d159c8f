//! The CPU gives the same bits on every instruction set and number of threads.

use moeflux_backend::conformance::{Closeness, check};
use moeflux_backend::cpu::{Cpu, Isa};

#[test]
fn every_instruction_set_gives_the_same_bits() {
    for isa in Isa::available() {
        check(&|| Box::new(Cpu::new(1, isa)), Closeness::Bits);
    }
}

#[test]
fn every_number_of_threads_gives_the_same_bits() {
    for n_threads in [2, 3] {
        check(&|| Box::new(Cpu::new(n_threads, Isa::detect())), Closeness::Bits);
    }
}
