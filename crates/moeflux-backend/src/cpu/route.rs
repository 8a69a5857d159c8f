//! From router logits to experts and weights.

use moeflux_core::ExpertId;

use super::Isa;
use super::elementwise::sigmoids;
use super::isa::for_every_isa;
use super::math::{exp, softplus};
use super::parallel::Spare;
use crate::{ExpertGroups, PerExpert, Scoring};

/// Memory of one choice.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    scores: Vec<f32>,
    /// Scores and their biases.
    choice: Vec<f32>,
    group_scores: Vec<f32>,
    kept: Vec<u64>,
    chosen: Vec<u64>,
}

/// How rows choose.
pub(super) struct Router<'a> {
    pub(super) isa: Isa,
    pub(super) top_k: usize,
    pub(super) scoring: Scoring,
    /// The biases or factors of experts that `scoring` names.
    pub(super) per_expert: Option<&'a [f32]>,
    pub(super) spare: &'a Spare<Scratch>,
}

impl Router<'_> {
    /// The choice of one row, `top_k` experts and weights.
    pub(super) fn choose(&self, logits: &[f32], experts: &mut [ExpertId], weights: &mut [f32]) {
        let Router { isa, top_k, scoring, per_expert, spare } = *self;
        let mut scratch = spare.take();
        let Scratch { scores, chosen, .. } = &mut scratch;
        scores.clear();
        scores.extend_from_slice(logits);
        match scoring {
            Scoring::Softmax { per_expert: kind, groups, renormalise, scale } => {
                softmax(isa, scores);
                let (bias, factors) = match kind {
                    Some(PerExpert::Factor(_)) => (None, per_expert),
                    _ => (per_expert, None),
                };
                let groups = groups.map(|groups| (groups, best_of as GroupScore));
                best_biased(&mut scratch, bias, groups, top_k);
                pick(&scratch.scores, &scratch.chosen, weights);
                finish(weights, renormalise.then_some(0.0), scale);
                if let Some(factors) = factors {
                    for (weight, key) in weights.iter_mut().zip(&scratch.chosen) {
                        *weight *= factors[usize::from(index(*key))];
                    }
                }
                keep_nan(&scratch.choice, weights);
            }
            Scoring::SoftmaxOfChosen => {
                best(chosen, scores, |_| true, top_k);
                pick(scores, chosen, weights);
                softmax(isa, weights);
                keep_nan(scores, weights);
            }
            Scoring::Sigmoid { groups, renormalise, scale, .. } => {
                sigmoids(isa, scores);
                let groups = groups.map(|groups| (groups, two_best as GroupScore));
                best_biased(&mut scratch, per_expert, groups, top_k);
                pick(&scratch.scores, &scratch.chosen, weights);
                finish(weights, renormalise.then_some(SIGMOID_EPS), scale);
                keep_nan(&scratch.choice, weights);
            }
            Scoring::SqrtSoftplus { renormalise, scale, .. } => {
                roots_of_softplus(isa, scores);
                best_biased(&mut scratch, per_expert, None, top_k);
                pick(&scratch.scores, &scratch.chosen, weights);
                finish(weights, renormalise.then_some(SIGMOID_EPS), scale);
                keep_nan(&scratch.choice, weights);
            }
        }
        assert_eq!(scratch.chosen.len(), experts.len(), "as many experts as rows choose");
        for (expert, key) in experts.iter_mut().zip(&scratch.chosen) {
            *expert = ExpertId(index(*key));
        }
        spare.put(scratch);
    }
}

/// Keeps the sum of scores above zero, as DeepSeek-V3 does.
const SIGMOID_EPS: f32 = 1e-20;

/// Makes the weights NaN where any score is: an expert with such a score is never chosen, and the
/// row would go on as if nothing were wrong.
fn keep_nan(scores: &[f32], weights: &mut [f32]) {
    if scores.iter().any(|score| score.is_nan()) {
        weights.fill(f32::NAN);
    }
}

/// The scores of the chosen, best first.
fn pick(scores: &[f32], chosen: &[u64], weights: &mut [f32]) {
    for (weight, key) in weights.iter_mut().zip(chosen) {
        *weight = scores[usize::from(index(*key))];
    }
}

for_every_isa! {
    fn softmax(values: &mut [f32]) {
        let mut max = f32::NEG_INFINITY;
        for value in &*values {
            max = if *value > max { *value } else { max };
        }
        for value in &mut *values {
            *value = exp(*value - max);
        }
        let mut sum = 0.0;
        for value in &*values {
            sum += value;
        }
        for value in values {
            *value /= sum;
        }
    }
}

for_every_isa! {
    fn roots_of_softplus(values: &mut [f32]) {
        for value in values {
            *value = softplus(*value).sqrt();
        }
    }
}

/// Divides by the sum plus `eps`, where there is one, then scales.
fn finish(weights: &mut [f32], eps: Option<f32>, scale: f32) {
    if let Some(eps) = eps {
        let mut sum = 0.0;
        for weight in &*weights {
            sum += weight;
        }
        for weight in &mut *weights {
            *weight /= sum + eps;
        }
    }
    for weight in weights {
        *weight *= scale;
    }
}

/// What a group is chosen by, from the scores of its experts.
type GroupScore = fn(&[f32]) -> f32;

/// The best scores once `bias` is added, among the experts of the best groups.
fn best_biased(
    scratch: &mut Scratch,
    bias: Option<&[f32]>,
    groups: Option<(ExpertGroups, GroupScore)>,
    top_k: usize,
) {
    let Scratch { scores, choice, group_scores, kept, chosen } = scratch;
    choice.clear();
    choice.extend_from_slice(scores);
    for (score, bias) in choice.iter_mut().zip(bias.unwrap_or_default()) {
        *score += bias;
    }
    let Some((groups, score)) = groups else { return best(chosen, choice, |_| true, top_k) };
    assert!(choice.len().is_multiple_of(groups.n), "groups divide the experts evenly");
    let group_len = choice.len() / groups.n;
    group_scores.clear();
    group_scores.extend(choice.chunks_exact(group_len).map(score));
    best(kept, group_scores, |_| true, groups.kept);
    assert!(top_k <= kept.len() * group_len, "enough experts are eligible");
    let is_kept = |expert: u16| {
        kept.iter().any(|kept| usize::from(index(*kept)) == usize::from(expert) / group_len)
    };
    best(chosen, choice, is_kept, top_k);
}

/// The highest, or not a number where one of them is not.
fn best_of(scores: &[f32]) -> f32 {
    if scores.iter().any(|score| score.is_nan()) {
        return f32::NAN;
    }
    scores.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// The sum of the two highest, or not a number where one of them is not.
fn two_best(scores: &[f32]) -> f32 {
    let mut highest = [f32::NEG_INFINITY; 2];
    for score in scores {
        if score.is_nan() {
            return f32::NAN;
        }
        if *score > highest[0] {
            highest = [*score, highest[0]];
        } else if *score > highest[1] {
            highest[1] = *score;
        }
    }
    if scores.len() == 1 { highest[0] } else { highest[0] + highest[1] }
}

/// The `top_k` highest of the eligible scores, best first; among equals the
/// lower index, and scores that are not numbers last. `order` then has a key for
/// each, whose lowest bits are its index.
fn best(order: &mut Vec<u64>, scores: &[f32], is_eligible: impl Fn(u16) -> bool, top_k: usize) {
    let all = (0..scores.len()).filter_map(|expert| u16::try_from(expert).ok());
    // In ascending order: numbers first, the higher first, the lower index first.
    let key = |expert: u16| {
        // Adding zero makes both zeros one.
        let score = scores[usize::from(expert)] + 0.0;
        let bits = score.to_bits();
        let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
        let rank = if score.is_nan() { 1 << 32 } else { u64::from(!ascending) };
        rank << 16 | u64::from(expert)
    };
    order.clear();
    order.extend(all.filter(|expert| is_eligible(*expert)).map(key));
    let top_k = top_k.min(order.len());
    if top_k < order.len() {
        order.select_nth_unstable(top_k);
        order.truncate(top_k);
    }
    order.sort_unstable();
}

/// The index in a key.
fn index(key: u64) -> u16 {
    key as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Vector;

    const SOFTMAX: Scoring = Scoring::softmax(true);

    /// Checks the choice and gives the weights.
    #[track_caller]
    fn check(
        logits: &[f32],
        scoring: Scoring,
        per_expert: Option<&[f32]>,
        want: &[u16],
    ) -> Vec<f32> {
        let mut experts = vec![ExpertId(0); want.len()];
        let mut weights = vec![0.0; want.len()];
        let spare = Spare::default();
        let (isa, spare) = (Isa::detect(), &spare);
        let router = Router { isa, top_k: want.len(), scoring, per_expert, spare };
        router.choose(logits, &mut experts, &mut weights);
        assert_eq!(experts.iter().map(|id| id.0).collect::<Vec<_>>(), want);
        weights
    }

    fn sigmoid_scoring(groups: Option<(usize, usize)>, renormalise: bool, scale: f32) -> Scoring {
        let groups = groups.map(|(n, kept)| ExpertGroups { n, kept });
        Scoring::Sigmoid { bias: Some(Vector(0)), groups, renormalise, scale }
    }

    #[track_caller]
    fn check_close(got: &[f32], want: &[f32]) {
        assert_eq!(got.len(), want.len());
        for (a, b) in got.iter().zip(want) {
            assert!((a - b).abs() < 1e-6, "{got:?} {want:?}");
        }
    }

    #[test]
    fn takes_the_best_and_renormalises() {
        let weights = check(&[1.0, 3.0, 2.0, -1.0], SOFTMAX, None, &[1, 2]);
        let want = 1.0 / (1.0 + (-1.0f32).exp());
        check_close(&weights, &[want, 1.0 - want]);
    }

    #[test]
    fn leaves_probabilities_as_they_are_and_scales_them() {
        let scoring =
            Scoring::Softmax { per_expert: None, groups: None, renormalise: false, scale: 2.0 };
        let weights = check(&[2.0f32.ln(), 0.0, 0.0], scoring, None, &[0, 1]);
        check_close(&weights, &[1.0, 0.5]);
    }

    #[test]
    fn factors_of_experts_change_their_weights_and_no_choice() {
        let per_expert = Some(PerExpert::Factor(Vector(0)));
        let scoring = Scoring::Softmax { per_expert, groups: None, renormalise: true, scale: 2.0 };
        let factors = [100.0, 0.5, 3.0];
        let weights =
            check(&[0.0, 2.0f32.ln(), 1.0f32.ln() + 0.1], scoring, Some(&factors), &[1, 2]);
        let other = 0.1f32.exp();
        check_close(&weights, &[2.0 / (2.0 + other), 6.0 * other / (2.0 + other)]);
    }

    #[test]
    fn may_take_the_softmax_of_the_chosen_alone() {
        let logits = [0.0, 3.0f32.ln(), -1.0, 50.0f32.ln()];
        let weights = check(&logits, Scoring::SoftmaxOfChosen, None, &[3, 1]);
        check_close(&weights, &[50.0 / 53.0, 3.0 / 53.0]);
    }

    #[test]
    fn chooses_by_biased_scores_and_weighs_by_unbiased_ones() {
        let bias = [0.0, 0.0, 1.0, 0.0];
        let logits = [0.0, 3.0f32.ln(), -3.0f32.ln(), -9.0];
        let weights = check(&logits, sigmoid_scoring(None, true, 2.5), Some(&bias), &[2, 1]);
        check_close(&weights, &[2.5 * 0.25, 2.5 * 0.75]);
        let weights = check(&logits, sigmoid_scoring(None, false, 1.0), Some(&bias), &[2, 1]);
        check_close(&weights, &[0.25, 0.75]);
    }

    #[test]
    fn probabilities_may_be_biased_too() {
        let per_expert = Some(PerExpert::Bias(Vector(0)));
        let scoring = Scoring::Softmax { per_expert, groups: None, renormalise: true, scale: 1.0 };
        let logits = [4.0f32.ln(), 3.0f32.ln(), 2.0f32.ln(), 1.0f32.ln()];
        let weights = check(&logits, scoring, Some(&[0.0, 0.0, 0.0, 0.9]), &[3, 0]);
        check_close(&weights, &[0.2, 0.8]);
        let weights = check(&logits, scoring, Some(&[0.0, f32::NAN, 0.0, 0.0]), &[0, 2]);
        assert!(weights.iter().all(|weight| weight.is_nan()), "{weights:?}");
    }

    #[test]
    fn a_group_counts_by_its_two_best() {
        // The single best expert is in a group that loses.
        let logits = [5.0, -5.0, 1.0, 1.0, 0.0, 0.0];
        check(&logits, sigmoid_scoring(Some((3, 1)), true, 1.0), None, &[2, 3]);
        check(&logits, sigmoid_scoring(Some((3, 2)), true, 1.0), None, &[0, 2, 3]);
    }

    #[test]
    fn a_group_of_probabilities_counts_by_its_best() {
        // The sum of two would choose the second group.
        let logits = [5.0, -5.0, 4.9, 4.9, 0.0, 0.0];
        let groups = |n, kept| {
            let groups = Some(ExpertGroups { n, kept });
            Scoring::Softmax { per_expert: None, groups, renormalise: false, scale: 1.0 }
        };
        check(&logits, groups(3, 1), None, &[0, 1]);
        check(&logits, groups(3, 2), None, &[0, 2, 3]);
        // Without other groups the choice is that of all.
        check(&logits, groups(3, 3), None, &[0, 2, 3]);
        let weights = check(&[0.0, f32::NAN, 1.0, 0.0], groups(2, 1), None, &[0, 1]);
        assert!(weights.iter().all(|weight| weight.is_nan()), "{weights:?}");
    }

    #[test]
    fn never_chooses_outside_the_kept_groups() {
        // Biases far below zero make kept experts worse than masked zeros.
        let bias = [-9.0, -9.0, -9.5, -9.5];
        let scoring = sigmoid_scoring(Some((2, 1)), true, 1.0);
        check(&[0.0; 4], scoring, Some(&bias), &[0, 1]);
        check(&[f32::NAN, 0.0, 0.0, f32::NAN], scoring, None, &[1, 0]);
    }

    #[test]
    fn vanishing_scores_give_no_rubbish() {
        let weights = check(&[-200.0; 4], sigmoid_scoring(None, true, 1.0), None, &[0, 1]);
        assert!(weights.iter().all(|weight| weight.is_finite()), "{weights:?}");
    }

    #[test]
    fn prefers_the_lower_index_among_equals() {
        check(&[0.5, 0.5, 0.5, 0.5, 0.5], SOFTMAX, None, &[0, 1, 2]);
        check(&[-0.0, 0.0, -0.0], Scoring::SoftmaxOfChosen, None, &[0, 1]);
        check(&[0.0; 6], sigmoid_scoring(Some((3, 2)), true, 1.0), None, &[0, 1, 2]);
    }

    #[test]
    fn chooses_distinct_experts_even_from_rubbish() {
        for scoring in [SOFTMAX, Scoring::SoftmaxOfChosen, sigmoid_scoring(None, true, 1.0)] {
            check(&[f32::NAN, f32::NAN, f32::NAN], scoring, None, &[0, 1]);
        }
        let part = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY];
        check(&part, Scoring::SoftmaxOfChosen, None, &[2, 1, 0]);
    }

    #[test]
    fn one_score_that_is_nan_makes_all_weights_nan() {
        let one = [0.5, f32::NAN, 0.25, 0.0];
        let softmax = check(&one, SOFTMAX, None, &[0, 1]);
        assert!(softmax.iter().all(|weight| weight.is_nan()), "{softmax:?}");
        for scoring in [Scoring::SoftmaxOfChosen, sigmoid_scoring(None, true, 1.0)] {
            let weights = check(&one, scoring, None, &[0, 2]);
            assert!(weights.iter().all(|weight| weight.is_nan()), "{scoring:?}: {weights:?}");
        }
        for groups in [None, Some((2, 1))] {
            let scoring = sigmoid_scoring(groups, false, 1.0);
            let bias = [0.0, 0.0, f32::NAN, 0.0];
            let weights = check(&[0.5, 0.25, 3.0, 0.0], scoring, Some(&bias), &[0, 1]);
            assert!(weights.iter().all(|weight| weight.is_nan()), "{groups:?}: {weights:?}");
        }
    }
}
