//! Profiling changes no result; samples count the work of ops.

use moeflux_core::quant::MatrixFormat;

use super::*;
use crate::ActivationPrecision;
use crate::conformance::{Closeness, check};
use crate::cpu::{Cpu, Isa};
use crate::trace::Trace;

#[test]
fn changes_no_result_while_it_records() {
    let open = || -> Box<dyn Backend> {
        let (timed, profiler) = ProfilingBackend::new(Box::new(Cpu::new(1, Isa::detect())));
        profiler.start();
        Box::new(timed)
    };
    check(&open, Closeness::Bits);
}

/// A provided method that is not forwarded would hide the wrapped backend's own.
#[test]
fn forwards_every_method() {
    let (_, traits) = include_str!("../backend.rs").split_once("pub trait Backend").unwrap();
    let (traits, _) = traits.split_once("pub struct PrerecordedStep").unwrap();
    let (_, forwarded) = include_str!("mod.rs").split_once("impl Backend for").unwrap();
    let mut n_methods = 0;
    for name in traits.split("    fn ").skip(1).map(|text| text.split(['(', '<']).next().unwrap()) {
        n_methods += 1;
        assert!(forwarded.contains(&format!("    fn {name}(")), "{name} is not forwarded");
    }
    assert!(n_methods > 30, "{n_methods}");
}

#[test]
fn counts_the_work_of_a_stage() {
    let (mut timed, profiler) = ProfilingBackend::new(Box::new(Trace::default()));
    let buf = timed.alloc(2, 64);
    let format = MatrixFormat::Dense(moeflux_core::quant::Float::F32);
    let mut matrix = |rows| {
        let weight = HostBuf::zeroed(rows * 32 * 4);
        let (scales, biases) = (None, None);
        let inputs = ActivationPrecision::F32;
        timed.load_matrix(HostMatrix { rows, cols: 32, format, inputs, weight, scales, biases })
    };
    let (router, gate) = (matrix(8), matrix(24));
    let cols = |start, len| Cols { buf, start, len };
    let outputs = [
        Projection { weight: router, out: cols(32, 8) },
        Projection { weight: gate, out: cols(40, 24) },
    ];
    let scoring = crate::Scoring::SoftmaxOfChosen;
    profiler.start();
    for layer in [3, 4] {
        timed.begin_stage(Stage::Router, Some(layer));
        timed.project(2, cols(0, 32), &outputs);
        timed.route(2, Route { logits: cols(32, 8), top_k: 2, scoring }).unwrap();
    }
    let recording = profiler.stop();
    let key = OpKey { op: "project", weights: vec![router, gate], rows: 2 };
    let samples = &recording.ops[&key];
    assert_eq!(samples.len(), 2);
    assert!(samples.iter().all(|sample| sample.bytes == 32 * 32 * 4 && sample.macs == 2 * 32 * 32));
    assert!(recording.stages.contains_key(&(Stage::Router, Some(3))));
    assert!(recording.spans.len() >= 2 && recording.spans.is_sorted_by_key(|span| span.start));
    // Once it is known where the router's logits are, the rest is the shared expert's.
    assert!(!recording.stages.contains_key(&(Stage::SharedExpert, Some(3))));
    assert!(recording.stages.contains_key(&(Stage::SharedExpert, Some(4))));
    assert_eq!(profiler.weights().len(), 2);
    timed.project(2, cols(0, 32), &outputs);
    assert!(profiler.stop().ops.is_empty(), "nothing is recorded after the end");
}

#[test]
fn top_logits_without_a_result_are_no_sample() {
    let (mut timed, profiler) = ProfilingBackend::new(Box::new(Cpu::new(1, Isa::detect())));
    let buf = timed.alloc(1, 32);
    let format = MatrixFormat::Dense(moeflux_core::quant::Float::F32);
    let (weight, inputs) = (HostBuf::zeroed(8 * 32 * 4), ActivationPrecision::F32);
    let (scales, biases) = (None, None);
    let matrix = HostMatrix { rows: 8, cols: 32, format, inputs, weight, scales, biases };
    let head = timed.load_matrix(matrix);
    let x = Cols { buf, start: 0, len: 32 };
    profiler.start();
    assert!(timed.top_logits(&[0], 1, x, head, LogitsExtras::default()).unwrap().is_none());
    timed.logits(&[0], x, head, LogitsExtras::default()).unwrap();
    let ops = profiler.stop().ops;
    let calls: usize =
        ops.iter().filter(|entry| entry.0.op == "logits").map(|entry| entry.1.len()).sum();
    assert_eq!(calls, 1);
}
