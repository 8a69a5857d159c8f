//! From router logits to experts and weights.

use moeflux_core::ExpertId;

use super::math::exp;
use crate::Scoring;

/// Appends the choice of one row.
pub(super) fn choose(
    logits: &[f32],
    top_k: usize,
    scoring: Scoring,
    experts: &mut Vec<ExpertId>,
    weights: &mut Vec<f32>,
) {
    match scoring {
        Scoring::Softmax { .. } | Scoring::SoftmaxOfChosen | Scoring::Sigmoid { .. } => {
            softmax_renormalised(logits, top_k, experts, weights)
        }
    }
}

fn softmax_renormalised(
    logits: &[f32],
    top_k: usize,
    experts: &mut Vec<ExpertId>,
    weights: &mut Vec<f32>,
) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut scores: Vec<f32> = logits.iter().map(|it| exp(it - max)).collect();
    let mut sum = 0.0;
    for score in &scores {
        sum += score;
    }
    for score in &mut scores {
        *score /= sum;
    }
    let first = weights.len();
    for expert in best(&scores, top_k) {
        experts.push(ExpertId(expert));
        weights.push(scores[usize::from(expert)]);
    }
    let mut chosen = 0.0;
    for weight in &weights[first..] {
        chosen += weight;
    }
    for weight in &mut weights[first..] {
        *weight /= chosen;
    }
}

/// The `top_k` highest scores, best first; among equals the lower index, and
/// a score that is not a number last.
fn best(scores: &[f32], top_k: usize) -> Vec<u16> {
    let mut order: Vec<u16> = (0..scores.len()).filter_map(|it| u16::try_from(it).ok()).collect();
    let rank = |it: &u16| {
        let score = scores[usize::from(*it)];
        if score.is_nan() { f32::NEG_INFINITY } else { score }
    };
    let by_score = |a: &u16, b: &u16| rank(b).total_cmp(&rank(a)).then(a.cmp(b));
    let top_k = top_k.min(order.len());
    if top_k < order.len() {
        order.select_nth_unstable_by(top_k, by_score);
        order.truncate(top_k);
    }
    order.sort_unstable_by(by_score);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(logits: &[f32], top_k: usize, want: &[u16]) -> Vec<f32> {
        let (mut experts, mut weights) = (Vec::new(), Vec::new());
        choose(
            logits,
            top_k,
            Scoring::Softmax { renormalise: true, scale: 1.0 },
            &mut experts,
            &mut weights,
        );
        assert_eq!(experts.iter().map(|it| it.0).collect::<Vec<_>>(), want);
        weights
    }

    #[test]
    fn takes_the_best_and_renormalises() {
        let weights = check(&[1.0, 3.0, 2.0, -1.0], 2, &[1, 2]);
        let want = 1.0 / (1.0 + (-1.0f32).exp());
        assert!((weights[0] - want).abs() < 1e-6);
        assert!((weights[0] + weights[1] - 1.0).abs() < 1e-6);
    }

    #[test]
    fn prefers_the_lower_index_among_equals() {
        check(&[0.5, 0.5, 0.5, 0.5, 0.5], 3, &[0, 1, 2]);
    }

    #[test]
    fn chooses_distinct_experts_even_from_rubbish() {
        check(&[f32::NAN, f32::NAN, f32::NAN], 2, &[0, 1]);
    }
}
