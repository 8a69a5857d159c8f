//! The parts of a step, as charts and tables show them.

use std::fmt::Write as _;

use moeflux_engine::measure::{Stage, StageTimes};

use crate::commands::bench::figures::Figures;

/// Names and classes of what takes time, in the order in which it is drawn.
pub(super) const PARTS: [(Stage, &str); 9] = [
    (Stage::Attention, "attention"),
    (Stage::DeltaNet, "delta-net"),
    (Stage::StateSpace, "state-space"),
    (Stage::Router, "router"),
    (Stage::SharedExpert, "shared-expert"),
    (Stage::RoutedExperts, "routed-experts"),
    (Stage::DenseMlp, "dense-mlp"),
    (Stage::Head, "head"),
    (Stage::Rest, "rest"),
];

/// What takes time: name, class, seconds.
pub(super) type Part = (&'static str, &'static str, f64);

/// What took time in a phase, the wait for experts included.
pub(super) fn parts(times: &StageTimes) -> Vec<Part> {
    let of = |stage: Stage| match stage {
        Stage::Rest => times.of(stage) + times.rest(),
        stage => times.of(stage),
    };
    let mut all: Vec<Part> =
        PARTS.iter().map(|(stage, class)| (stage.name(), *class, of(*stage))).collect();
    all.insert(all.len() - 1, ("wait for experts", "wait", times.wait));
    all
}

/// The parts that any phase has, each with its seconds in both.
pub(super) fn both_parts(figures: &Figures) -> Vec<(&'static str, &'static str, [f64; 2])> {
    let prefill = parts(&figures.profile.prefill);
    let decode = parts(&figures.profile.decode);
    let joined = prefill.into_iter().zip(decode).map(|(a, b)| (a.0, a.1, [a.2, b.2]));
    joined.filter(|part| part.2.iter().any(|seconds| *seconds > 0.0)).collect()
}

pub(super) fn legend<'a>(entries: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut html = String::from("<ul class=\"legend\">\n");
    for (name, class) in entries {
        writeln!(
            html,
            "<li><svg viewBox=\"0 0 10 10\" aria-hidden=\"true\"><rect width=\"10\" height=\"10\" rx=\"2\" class=\"{class}\"/></svg>{name}</li>"
        )
        .expect("a string takes any text");
    }
    html + "</ul>\n"
}
