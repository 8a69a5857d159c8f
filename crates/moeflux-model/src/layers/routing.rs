//! Routing among groups of experts, from keys that families share: DeepSeek-V3's without an auxiliary
//! loss, and DeepSeek-V2's by probabilities.

use moeflux_backend::{ExpertGroups, Scoring, Vector};
use moeflux_core::checkpoint::Config;

use super::moe::MoeShape;
use crate::load::LoadError;

/// How every layer scores its experts; their biases differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SigmoidRouting {
    /// Where present, only experts of the best groups are eligible.
    pub(crate) groups: Option<ExpertGroups>,
    pub(crate) renormalise: bool,
    pub(crate) scale: f32,
}

impl SigmoidRouting {
    /// For blocks of a shape, whose eligible experts it counts; `scale` is the config's key.
    pub(crate) fn read(
        config: &Config,
        scale: &str,
        moe: &mut MoeShape,
    ) -> Result<SigmoidRouting, LoadError> {
        Ok(SigmoidRouting {
            groups: eligible_groups(config, moe)?,
            renormalise: config.bool("norm_topk_prob")?,
            scale: config.f32(scale)?,
        })
    }

    /// The scoring of a layer.
    pub(crate) fn scoring(&self, bias: Option<Vector>) -> Scoring {
        let SigmoidRouting { groups, renormalise, scale } = *self;
        Scoring::Sigmoid { bias, groups, renormalise, scale }
    }
}

/// How every layer turns probabilities into weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SoftmaxRouting {
    /// Where present, only experts of the best groups are eligible.
    pub(crate) groups: Option<ExpertGroups>,
    pub(crate) renormalise: bool,
    pub(crate) scale: f32,
}

impl SoftmaxRouting {
    /// Without groups and factor.
    pub(crate) fn plain(renormalise: bool) -> SoftmaxRouting {
        SoftmaxRouting { groups: None, renormalise, scale: 1.0 }
    }

    /// For blocks of a shape, whose eligible experts it counts; `scale` is the config's key. Groups
    /// count where `topk_method` says so.
    pub(crate) fn read(
        config: &Config,
        scale: &str,
        moe: &mut MoeShape,
    ) -> Result<SoftmaxRouting, LoadError> {
        let groups = match config.str("topk_method")? {
            "greedy" => None,
            "group_limited_greedy" => eligible_groups(config, moe)?,
            _ => {
                let rule = "be \"greedy\" or \"group_limited_greedy\"";
                return Err(config.refuse("topk_method", rule).into());
            }
        };
        let (renormalise, scale) = (config.bool("norm_topk_prob")?, config.f32(scale)?);
        Ok(SoftmaxRouting { groups, renormalise, scale })
    }

    /// The scoring of all layers.
    pub(crate) fn scoring(&self) -> Scoring {
        let SoftmaxRouting { groups, renormalise, scale } = *self;
        Scoring::Softmax { per_expert: None, groups, renormalise, scale }
    }
}

/// The groups of a config, where some experts are not eligible: the shape then counts those that are.
fn eligible_groups(config: &Config, moe: &mut MoeShape) -> Result<Option<ExpertGroups>, LoadError> {
    let groups = expert_groups(config, moe)?;
    if let Some(ExpertGroups { n, kept }) = groups {
        moe.n_eligible = moe.n_experts / n * kept;
    }
    Ok(groups)
}

fn expert_groups(config: &Config, moe: &MoeShape) -> Result<Option<ExpertGroups>, LoadError> {
    let refuse = |key, rule: &str| Err(config.refuse(key, rule).into());
    let (n, kept) = (config.usize("n_group")?, config.usize("topk_group")?);
    if kept > n {
        return refuse("topk_group", "be at most n_group");
    }
    if kept == n {
        return Ok(None);
    }
    if !moe.n_experts.is_multiple_of(n) || moe.n_experts / n < 2 {
        return refuse("n_group", "divide the experts into groups of two and more");
    }
    if moe.config_top_k > moe.n_experts / n * kept {
        return refuse("topk_group", "leave num_experts_per_tok experts eligible");
    }
    Ok(Some(ExpertGroups { n, kept }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::families::{EXAMPLE, resolved};

    fn read(more: Value) -> Result<SigmoidRouting, LoadError> {
        let mut root = json!({
            "n_routed_experts": 12, "num_experts_per_tok": 4, "moe_intermediate_size": 8
        });
        root.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        root["model_type"] = json!(EXAMPLE.name);
        let config = resolved(root)?;
        let mut moe = MoeShape::read(&config, "n_routed_experts", "moe_intermediate_size")?;
        SigmoidRouting::read(&config, "routed_scaling_factor", &mut moe)
    }

    #[track_caller]
    fn check_refused(more: Value, message: &str) {
        let got = read(more).expect_err("refused").to_string();
        assert_eq!(got, format!("config.json: {message}"));
    }

    #[test]
    fn groups_count_only_where_some_are_left_out() {
        let groups = |n, kept| read(json!({"n_group": n, "topk_group": kept})).unwrap().groups;
        assert_eq!(groups(1, 1), None);
        assert_eq!(groups(4, 4), None);
        assert_eq!(groups(4, 2), Some(ExpertGroups { n: 4, kept: 2 }));
    }

    #[test]
    fn refuses_what_it_does_not_compute() {
        let message = "scoring_func is \"softmax\"; it must be \"sigmoid\"";
        check_refused(json!({"scoring_func": "softmax"}), message);
        let message = "topk_method is \"greedy\"; it must be \"noaux_tc\"";
        check_refused(json!({"topk_method": "greedy"}), message);
        let message = "topk_group is 3; it must be at most n_group";
        check_refused(json!({"n_group": 2, "topk_group": 3}), message);
        let message = "n_group is 5; it must divide the experts into groups of two and more";
        check_refused(json!({"n_group": 5, "topk_group": 1}), message);
        check_refused(json!({"n_group": 12}), &message.replace('5', "12"));
        let message = "topk_group is 1; it must leave num_experts_per_tok experts eligible";
        check_refused(json!({"n_group": 4, "topk_group": 1}), message);
    }
}
