//! Routing on subgroups of any width.

use std::sync::Arc;

use moeflux_backend::{Cols, Ops, Route, Scoring};
use moeflux_core::SplitMix64;

use super::context;
use crate::backend::new_backend;
use crate::device::adapter::enumerate;
use crate::device::context::Context;

const ROWS: usize = 5;

/// The experts of all rows and the bits of their weights, by the text for subgroups of some lanes.
fn routed(context: &Arc<Context>, n_experts: usize, scoring: Scoring) -> (Vec<usize>, Vec<u32>) {
    let mut b = new_backend(Arc::clone(context), None);
    let logits = b.alloc(ROWS, n_experts);
    let mut random = SplitMix64::new(n_experts as u64);
    let mut value = || (random.next_u64() >> 40) as f32 / (1u64 << 21) as f32 - 4.0;
    b.write(logits, &(0..ROWS * n_experts).map(|_| value()).collect::<Vec<_>>());
    let logits = Cols { buf: logits, start: 0, len: n_experts };
    let routing = b.route(ROWS, Route { logits, top_k: 4, scoring }).expect("the device works");
    let weights = routing.weights.into_iter().map(f32::to_bits).collect();
    (routing.experts.into_iter().map(|id| usize::from(id.0)).collect(), weights)
}

#[test]
fn routing_does_not_depend_on_lanes() {
    let Some(shared) = context() else { return };
    let adapter = enumerate().into_iter().next().expect("there is one");
    let with_lanes = |lanes| {
        let mut context = Context::open_anew(&adapter).expect("it opened before");
        Arc::get_mut(&mut context).expect("only this test has it").lanes = lanes;
        context
    };
    let all: Vec<u32> = [4, 8, 16, 32].into_iter().filter(|n| *n <= shared.lanes).collect();
    let contexts: Vec<Arc<Context>> = all.iter().copied().map(with_lanes).collect();
    let softmax =
        Scoring::Softmax { per_expert: None, groups: None, renormalise: false, scale: 1.0 };
    for scoring in [softmax, Scoring::SoftmaxOfChosen] {
        for n_experts in [4, 33, 100, 512] {
            let want = routed(&contexts[0], n_experts, scoring);
            for (context, lanes) in contexts.iter().zip(&all).skip(1) {
                let got = routed(context, n_experts, scoring);
                assert_eq!(got, want, "{n_experts} experts, {lanes} lanes");
            }
        }
    }
}
