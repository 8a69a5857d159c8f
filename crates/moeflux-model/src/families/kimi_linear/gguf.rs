//! The architecture of GGUF files. What a layer is shows in its tensors.

use moeflux_core::checkpoint::FormatError;
use moeflux_core::gguf::Architecture;
use moeflux_core::gguf::arch::keys::{Keys, number};
use moeflux_core::gguf::arch::latent;
use moeflux_core::gguf::arch::names::{EXPERTS, LATENT, Names, Pair, SHARED_EXPERTS};
use moeflux_core::gguf::arch::routing::{self, DeepseekKeys, ExpertKeys, Gating};
use serde_json::json;

pub(super) static ARCHITECTURE: Architecture = Architecture::new(
    "kimi-linear",
    "kimi_linear",
    config,
    Names::new(&[LATENT, EXPERTS, SHARED_EXPERTS, OWN]),
)
.gated_by(Gating::Sigmoid);

/// Parts of layers of Kimi delta attention. These and the others share the names of queries and outputs.
const OWN: &[Pair] = &[
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("ssm_conv1d_q", "self_attn.q_conv1d"),
    ("ssm_conv1d_k", "self_attn.k_conv1d"),
    ("ssm_conv1d_v", "self_attn.v_conv1d"),
    ("ssm_f_a", "self_attn.f_a_proj"),
    ("ssm_f_b", "self_attn.f_b_proj"),
    ("ssm_beta", "self_attn.b_proj"),
    ("ssm_a", "self_attn.A"),
    ("ssm_dt.bias", "self_attn.dt_bias"),
    ("ssm_g_a", "self_attn.g_a_proj"),
    ("ssm_g_b", "self_attn.g_b_proj"),
    ("ssm_norm", "self_attn.o_norm"),
];

const KEYS: DeepseekKeys = DeepseekKeys {
    experts: ExpertKeys { count: "num_local_experts", intermediate: "moe_intermediate_size" },
    ..DeepseekKeys::OWN
};

fn config(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    latent::attention(keys)?;
    // Queries of the other layers are direct in any case.
    let rank = keys.number("attention.q_lora_rank")?.filter(|_| keys.any_has("attn_q_a.weight"));
    keys.put_from("q_lora_rank", "attention.q_lora_rank", json!(rank));
    routing::deepseek_named(keys, KEYS)?;
    routing::gating(keys, Gating::Sigmoid, Some(Gating::Sigmoid))?;
    // Files do not say it: the architecture divides weights by their sum.
    keys.put("norm_topk_prob", json!(true));
    keys.copy(&[
        number("linear_conv_kernel_dim", "ssm.conv_kernel"),
        number("linear_head_dim", "kda.head_dim"),
        number("linear_num_heads", "attention.head_count"),
    ])?;
    let linear = keys.layers_with("ssm_a");
    let kind = |layer: usize| {
        if linear.contains(&layer) { "linear_attention" } else { "full_attention" }
    };
    let kinds: Vec<&str> = (0..keys.n_layers).map(kind).collect();
    keys.put("layer_types", json!(kinds));
    Ok(())
}
