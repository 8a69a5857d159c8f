//! Writes what `tools/metal/check.sh` runs: kernels in Metal's language, what ops of the conformance suite gave
//! them, and what the driver at hand made of it.

mod program;
mod replay;

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use moeflux_backend::conformance;
use moeflux_core::SplitMix64;
use naga::valid::Capabilities;

use super::translate::{NEWEST, parse, translate};
use crate::backend::new_backend;
use crate::commands::capture::{Capture, Dispatch};
use crate::device::adapter::enumerate;
use crate::device::context::Context;
use crate::state::gpu::Wgpu;
use crate::tests::{closeness, context};
use program::{Kind, kinds, program};
use replay::replay;

/// Lanes of Apple's own GPUs.
const APPLE_LANES: u32 = 32;

/// Whose numbers of workgroups follow from the lanes: a text for other lanes needs others.
const BOUND_TO_LANES: [&str; 1] = ["TopLogitsPartial"];

/// Inputs that are no usual numbers: their name, and one in how many elements is so.
const ODD_INPUTS: [(&str, usize); 3] = [("nan", 1024), ("infinite", 1024), ("denormal", 4)];

/// Opens backends of a device. Where `MOEFLUX_METAL_CASES` names a folder, some of what their kernels get is
/// written there when they are gone.
pub(in crate::tests) struct Capturing<'a> {
    context: &'a Arc<Context>,
    folder: Option<PathBuf>,
    capture: Arc<Mutex<Capture>>,
}

impl<'a> Capturing<'a> {
    pub(in crate::tests) fn new(context: &'a Arc<Context>) -> Capturing<'a> {
        let folder = std::env::var_os("MOEFLUX_METAL_CASES").map(PathBuf::from);
        Capturing { context, folder, capture: Arc::default() }
    }

    pub(in crate::tests) fn open(&self) -> Wgpu {
        let mut backend = new_backend(Arc::clone(self.context), None);
        backend.encoder.capture = self.folder.as_ref().map(|_| Arc::clone(&self.capture));
        backend
    }
}

impl Drop for Capturing<'_> {
    fn drop(&mut self) {
        let Some(folder) = self.folder.take() else { return };
        if std::thread::panicking() {
            return;
        }
        let mut cases = Cases::new(folder);
        let capture = std::mem::take(&mut *self.capture.lock().expect("no test has failed"));
        for dispatch in capture.into_dispatches() {
            if let Some(buffers) = dispatch.buffers(self.context) {
                cases.write(self.context, &dispatch, &buffers);
            }
        }
        if cases.n > 0 {
            cases.finish();
        }
    }
}

#[test]
fn ops_on_four_lanes_agree_with_the_specification() {
    let Some(shared) = context() else { return };
    let adapter = enumerate().into_iter().next().expect("there is one");
    let mut context = Context::open_anew(&adapter).expect("it opened before");
    Arc::get_mut(&mut context).expect("only this test has it").lanes = shared.lanes.min(4);
    let tiles = new_backend(Arc::clone(&context), None).tiles;
    let capturing = Capturing::new(&context);
    conformance::check_ops(&[&|| Box::new(capturing.open())], closeness(tiles));
}

/// What one test writes, and the list of it.
struct Cases {
    folder: PathBuf,
    /// Distinguishes the files of tests.
    test: usize,
    /// Lines: the kernel, its program, the case, the lanes, the kind of inputs, how the program is compiled,
    /// conditions.
    list: String,
    n: usize,
}

impl Cases {
    fn new(folder: PathBuf) -> Cases {
        static N_TESTS: AtomicUsize = AtomicUsize::new(0);
        let test = N_TESTS.fetch_add(1, Ordering::Relaxed);
        Cases { folder, test, list: String::new(), n: 0 }
    }

    fn finish(&self) {
        let file = self.folder.join(format!("list-{}", self.test));
        fs::write(file, &self.list).expect("the folder is there");
    }

    fn write(&mut self, context: &Context, dispatch: &Dispatch, buffers: &[Vec<u8>]) {
        let (test, n, name) = (self.test, self.n, dispatch.variant.info.name);
        self.n += 1;
        let kinds = kinds(dispatch.variant);
        let case = |kind: &str, buffers: &[Vec<u8>]| {
            let after = replay(context, dispatch, buffers);
            let file = format!("{test}-{n}-{kind}.case");
            let bytes = encode(dispatch, &kinds, buffers, &after);
            fs::write(self.folder.join(&file), bytes).expect("the folder is there");
            file
        };
        let usual = case("usual", buffers);
        let is_odd = kinds.contains(&Kind::Singles);
        let odd: Vec<_> = ODD_INPUTS
            .iter()
            .filter(|_| is_odd)
            .map(|(kind, one_in)| (*kind, case(kind, &with_odd(buffers, &kinds, kind, *one_in))))
            .collect();
        let lanes = context.lanes;
        let own = self.put_program(dispatch, lanes);
        let wide = if lanes < APPLE_LANES { " wide" } else { "" };
        self.put(format!("{name} {own} {usual} {lanes} usual strict plain order{wide}"));
        let apple = if BOUND_TO_LANES.contains(&name) { lanes } else { APPLE_LANES };
        let program = self.put_program(dispatch, apple);
        let others = if apple == lanes { String::new() } else { format!(" lanes={own}:{lanes}") };
        self.put(format!(
            "{name} {program} {usual} {apple} usual strict plain order fused flush{others}"
        ));
        self.put(format!("{name} {program} {usual} {apple} usual fast fast"));
        for (kind, case) in odd {
            self.put(format!("{name} {program} {case} {apple} {kind} strict plain flush"));
            self.put(format!("{name} {program} {case} {apple} {kind} fast fast"));
        }
    }

    fn put(&mut self, line: String) {
        writeln!(self.list, "{line}").expect("a string takes any text");
    }

    /// The program for some lanes, by its name, which the same text has only once.
    fn put_program(&self, dispatch: &Dispatch, lanes: u32) -> String {
        let more = Capabilities::SHADER_FLOAT16;
        let (module, info) = parse(dispatch.variant, lanes, more);
        let text = translate(dispatch.variant, &module, &info, NEWEST).expect("it is translated");
        let (name, text) = program(&text, &module);
        fs::write(self.folder.join(format!("{name}.cpp")), text).expect("the folder is there");
        name
    }
}

/// A case as `tools/metal/runner.cpp` reads it.
fn encode(
    dispatch: &Dispatch,
    kinds: &[Kind],
    buffers: &[Vec<u8>],
    after: &[Option<Vec<u8>>],
) -> Vec<u8> {
    let word = |n: usize| u32::try_from(n).expect("cases are small");
    let mut words = vec![u32::from_le_bytes(*b"MSL1")];
    words.extend(dispatch.grid);
    words.extend([4 * word(dispatch.params.len()), word(buffers.len())]);
    for ((kind, buffer), after) in kinds.iter().zip(buffers).zip(after) {
        words.extend([*kind as u32, u32::from(after.is_some()), word(buffer.len())]);
        words.push(word(trimmed(buffer).len()));
        words.push(after.as_ref().map_or(0, |after| word(trimmed(after).len())));
    }
    words.extend(&dispatch.params);
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    for (before, after) in buffers.iter().zip(after) {
        bytes.extend(trimmed(before));
        bytes.extend(after.iter().flat_map(|after| trimmed(after)));
    }
    bytes
}

/// A buffer without the zeros at its end, of which slabs have many.
fn trimmed(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    &bytes[..end]
}

/// Buffers of singles some of whose elements are odd.
fn with_odd(buffers: &[Vec<u8>], kinds: &[Kind], odd: &str, one_in: usize) -> Vec<Vec<u8>> {
    let mut random = SplitMix64::new(1);
    let mut all = buffers.to_vec();
    for (buffer, _) in all.iter_mut().zip(kinds).filter(|(_, kind)| **kind == Kind::Singles) {
        let elements = buffer.as_chunks_mut::<4>().0;
        for part in elements.chunks_mut(one_in) {
            let bits = random.next_u64();
            let at = usize::try_from(bits >> 40).expect("24 bits") % part.len();
            let sign = (bits as u32) & 0x8000_0000;
            part[at] = match odd {
                "nan" => sign | 0x7fc0_0000,
                "infinite" => sign | 0x7f80_0000,
                _ => sign | (bits as u32 & 0x007f_ffff),
            }
            .to_le_bytes();
        }
    }
    all
}
