"""What llama.cpp's converter makes of a checkpoint: names, keys and changed orders, each with its inverse.

Weights have the names of transformers' modules, in which the experts of a layer are two tensors.
"""

import re
from typing import Callable, NamedTuple

import numpy as np

ARCHITECTURES = {
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next",
    "qwen3_moe": "qwen3moe",
    "deepseek_v3": "deepseek2",
    "deepseek_v32": "deepseek32",
    "glm_moe_dsa": "glm-dsa",
    "glm4_moe": "glm4moe",
    "gpt_oss": "gpt-oss",
    "granitemoe": "granitemoe",
    "gemma4_text": "gemma4",
    "glm5_next": "glm5-next",
    "kimi_linear": "kimi-linear",
    "minimax_m2": "minimax-m2",
    "mixtral": "llama",
    "nemotron_h": "nemotron_h_moe",
    "olmoe": "olmoe",
}
LATENT = ("deepseek_v3", "deepseek_v32", "glm5_next", "glm_moe_dsa", "kimi_linear")
DELTA = ("qwen3_5_moe_text", "qwen3_next")
# Families whose queries and keys have the rows of rotated pairs next to each other.
PAIRED = ("granitemoe", "mixtral")
# Families whose second norm keeps a name of its own.
POST_NORM = (*DELTA, "glm4_moe", "gpt_oss", "gemma4_text")

OUTSIDE = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "model.embeddings": "token_embd", "model.norm_f": "output_norm",
}
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks.weight",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.indexer.wq_b": "indexer.attn_q_b",
    "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.k_norm": "indexer.k_norm",
    "self_attn.indexer.weights_proj": "indexer.proj",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.experts.down_proj_bias": "ffn_down_exps.bias",
    **{
        f"mlp.{shared}.{part}_proj": f"ffn_{part}_shexp"
        for shared in ("shared_expert", "shared_experts")
        for part in ("gate", "up", "down")
    },
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "layer_scalar": "layer_output_scale.weight",
    "router.proj": "ffn_gate_inp",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "self_attn.indexer.index_kpool_compress_gate": "indexer_compressor_gate.weight",
    "self_attn.indexer.index_kpool_compress_ape": "indexer_compressor_ape.weight",
    **{f"{half}_hc.{part}": f"hc_{half}_{part}.weight" for half in ("attn", "ffn") for part in ("fn", "base", "scale")},
    **{f"self_attn.{part}_proj": f"ssm_{part}" for part in ("f_a", "f_b", "g_a", "g_b")},
    "self_attn.b_proj": "ssm_beta",
    "self_attn.A_log": "ssm_a",
    "self_attn.dt_bias": "ssm_dt.bias",
    "self_attn.o_norm": "ssm_norm",
    "mixer.in_proj": "ssm_in",
    "mixer.conv1d": "ssm_conv1d",
    "mixer.A_log": "ssm_a",
    "mixer.D": "ssm_d",
    "mixer.dt_bias": "ssm_dt.bias",
    "mixer.norm": "ssm_norm",
    "mixer.out_proj": "ssm_out",
    **{f"mixer.{part}_proj": f"attn_{name}" for part, name in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output"))},
    "mixer.gate": "ffn_gate_inp",
    "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mixer.fc1_latent_proj": "ffn_latent_down",
    "mixer.fc2_latent_proj": "ffn_latent_up",
    **{f"mixer.experts.{part}_proj": f"ffn_{part}_exps.weight" for part in ("up", "down")},
    **{f"mixer.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("up", "down")},
    **{f"mixer.{part}_proj": f"ffn_{part}" for part in ("up", "down")},
    # The parts of a module that predicts the token after the next one.
    "fc": "nextn.eh_proj",
    "pre_fc_norm_embedding": "nextn.enorm",
    "pre_fc_norm_hidden": "nextn.hnorm",
    "norm": "nextn.shared_head_norm",
}


class Codec(NamedTuple):
    """How one tensor of a module is stored: under which names, and as which arrays."""

    names: list[str]
    split: Callable[[np.ndarray], list[np.ndarray]]
    join: Callable[[list[np.ndarray]], np.ndarray]


def codec(name: str, config: dict) -> Codec:
    """The codec of the tensor that transformers calls `name`."""
    family = config["model_type"]
    name = name.replace("model.language_model.", "model.")
    inside = re.match(r"model\.layers\.(\d+)\.(.*)", name)
    if inside is None:
        stem, ending = name.rsplit(".", 1)
        change = increased if is_increased(name, family) else unchanged
        return change([f"{OUTSIDE[stem]}.{ending}"])
    block, part = f"blk.{inside[1]}.", inside[2].replace("block_sparse_moe.", "mlp.").replace("forget_gate.", "")
    if part.startswith("mlp.experts.gate_up_proj"):
        ending = "bias" if part.endswith("bias") else "weight"
        names = [f"{block}ffn_{half}_exps.{ending}" for half in ("gate", "up")]
        return interleaved(names) if family == "gpt_oss" else halves(names)
    if part == "self_attn.kv_b_proj.weight":
        return latent_keys([f"{block}attn_k_b.weight", f"{block}attn_v_b.weight"], config)
    if part == "self_attn.conv1d.weight":
        return convolutions([f"{block}ssm_conv1d_{which}.weight" for which in "qkv"])
    if part == "linear_attn.in_proj_qkvz.weight":
        return gated_keys([f"{block}attn_qkv.weight", f"{block}attn_gate.weight"], config)
    return change_of(part, config)([block + stored_part(part, family)])


def divisors(config: dict) -> np.ndarray | None:
    """What the frequencies of full layers are divided by, where files say it: of columns that do not turn, by nearly infinity."""
    if config["model_type"] != "gemma4_text":
        return None
    n, part = config["global_head_dim"] // 2, config["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    n_turning = int(n * part)
    return np.array([1.0] * n_turning + [1e30] * (n - n_turning), np.float32)


def stored_part(part: str, family: str) -> str:
    stem, _, ending = part.rpartition(".")
    if family == "nemotron_h" and stem == "norm":
        return f"attn_norm.{ending}"
    if stem == "post_attention_layernorm":
        return ("post_attention_norm." if family in POST_NORM else "ffn_norm.") + ending
    return PARTS[part] if part in PARTS else f"{PARTS[stem]}.{ending}"


def change_of(part: str, config: dict) -> Callable[[list[str]], Codec]:
    """How the values of a tensor with one name change."""
    family = config["model_type"]
    if is_increased(part, family):
        return increased
    if family in PAIRED and re.match(r"self_attn\.[qk]_proj", part):
        n_heads = config["num_attention_heads" if ".q_proj" in part else "num_key_value_heads"]
        return lambda names: paired(names, n_heads)
    if family == "gpt_oss" and part == "mlp.experts.down_proj":
        return lambda names: mapped(names, turned, turned)
    if part.startswith("linear_attn."):
        return lambda names: delta_part(names, part.removeprefix("linear_attn."), config)
    if part == "self_attn.A_log":
        return lambda names: mapped(names, lambda x: -np.exp(x), lambda x: np.log(-x))
    if family == "nemotron_h":
        return lambda names: mamba_part(names, part, config)
    return unchanged


def mamba_part(names, part, config) -> Codec:
    """A tensor of a layer: decays are exponentiated, numbers of heads have a row each, and factors of a norm one for each group."""
    if part == "mixer.A_log":
        return mapped(names, lambda x: -np.exp(x)[:, None], lambda x: np.log(-x[:, 0]))
    if part == "mixer.D":
        return mapped(names, lambda x: x[:, None], lambda x: x[:, 0])
    if part == "mixer.norm.weight":
        return mapped(names, lambda x: x.reshape(config["n_groups"], -1), lambda x: x.reshape(-1))
    if part == "mixer.conv1d.weight":
        return mapped(names, lambda x: x[:, 0], lambda x: x[:, None])
    return unchanged(names)


def is_increased(name: str, family: str) -> bool:
    """Whether a norm is stored with the 1 that it adds to its weights."""
    is_norm = "norm" in name and "linear_attn" not in name
    return family in DELTA and is_norm


def turned(x):
    return np.swapaxes(x, -1, -2)


def mapped(names, there, back) -> Codec:
    return Codec(names, lambda x: [there(x)], lambda parts: back(parts[0]))


def unchanged(names) -> Codec:
    return mapped(names, lambda x: x, lambda x: x)


def increased(names) -> Codec:
    return mapped(names, lambda x: x + np.float32(1), lambda x: x - np.float32(1))


def halves(names) -> Codec:
    """Rows of gates, then rows of ups."""
    return Codec(names, lambda x: np.split(x, 2, axis=1), lambda parts: np.concatenate(parts, axis=1))


def convolutions(names) -> Codec:
    """Taps of the channels of queries, keys and values, in four dimensions."""

    def split(x):
        return [part.reshape(1, -1, 1, x.shape[-1]) for part in np.split(x, len(names))]

    return Codec(names, split, lambda parts: np.concatenate([part.reshape(-1, 1, part.shape[-1]) for part in parts]))


def interleaved(names) -> Codec:
    """Columns of gates and ups by turns, with the inputs of matrices first."""

    def split(x):
        parts = [x[..., i::2] for i in range(2)]
        return [turned(part) for part in parts] if x.ndim == 3 else parts

    def join(parts):
        parts = [turned(part) if part.ndim == 3 else part for part in parts]
        both = np.stack(parts, axis=-1)
        return both.reshape(*both.shape[:-2], -1)

    return Codec(names, split, join)


def paired(names, n_heads) -> Codec:
    """Rows of a head in the order of rotated pairs, from the order of halves."""

    def reorder(x, shape):
        return x.reshape(n_heads, *shape, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)

    return mapped(names, lambda x: reorder(x, (2, -1)), lambda x: reorder(x, (-1, 2)))


def latent_keys(names, config) -> Codec:
    """Per head the rows of keys, transposed, and those of values."""
    nope, n_heads = config["qk_nope_head_dim"], config["num_attention_heads"]

    def split(x):
        x = x.reshape(n_heads, -1, x.shape[-1])
        return [turned(x[:, :nope]), x[:, nope:]]

    def join(parts):
        both = np.concatenate([turned(parts[0]), parts[1]], axis=1)
        return both.reshape(-1, both.shape[-1])

    return Codec(names, split, join)


def delta_sizes(config):
    n_keys, n_values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    return n_keys, n_values // n_keys, config["linear_key_head_dim"], config["linear_value_head_dim"]


def gated_keys(names, config) -> Codec:
    """Per key head its query, key, values and gates; stored as all queries, keys, values, and gates."""
    n_keys, ratio, key_dim, value_dim = delta_sizes(config)
    ends = np.cumsum([key_dim, key_dim, ratio * value_dim])

    def split(x):
        parts = np.split(x.reshape(n_keys, -1, x.shape[-1]), ends, axis=1)
        flat = [part.reshape(-1, x.shape[-1]) for part in parts]
        return [np.concatenate(flat[:3]), flat[3]]

    def join(parts):
        width = parts[0].shape[-1]
        flat = [*np.split(parts[0], [n_keys * key_dim, 2 * n_keys * key_dim]), parts[1]]
        per_head = [part.reshape(n_keys, -1, width) for part in flat]
        return np.concatenate(per_head, axis=1).reshape(-1, width)

    return Codec(names, split, join)


def delta_part(names, part, config) -> Codec:
    """A tensor of a delta net: decays are exponentiated, a convolution loses its middle dimension."""
    if part == "A_log":
        there, back = lambda x: -np.exp(x), lambda x: np.log(-x)
    elif part == "conv1d.weight":
        there, back = lambda x: x[:, 0], lambda x: x[:, None]
    else:
        there = back = lambda x: x
    if config["model_type"] == "qwen3_next":
        return mapped(names, there, back)
    sort, unsort = value_orders(part, config)
    return mapped(names, lambda x: sort(there(x)), lambda x: back(unsort(x)))


def value_orders(part, config):
    """Qwen3.5's value heads are sorted by their place in the group of a key head: there, and back."""
    n_keys, ratio, key_dim, value_dim = delta_sizes(config)
    n_keyed = 2 * n_keys * key_dim
    # The axis of value heads, what a head has on it, and where the first one begins.
    sorted_axes = {
        "in_proj_qkv.weight": (0, value_dim, n_keyed),
        "in_proj_z.weight": (0, value_dim, 0),
        "in_proj_a.weight": (0, 1, 0),
        "in_proj_b.weight": (0, 1, 0),
        "dt_bias": (0, 1, 0),
        "A_log": (0, 1, 0),
        "out_proj.weight": (1, value_dim, 0),
        "conv1d.weight": (0, value_dim, n_keyed),
    }
    if part not in sorted_axes:
        return (lambda x: x), (lambda x: x)
    axis, unit, start = sorted_axes[part]

    def reorder(x, groups):
        head, tail = np.split(x, [start], axis=axis)
        shape = tail.shape
        parts = tail.reshape(*shape[:axis], *groups, unit, *shape[axis + 1 :])
        return np.concatenate([head, parts.swapaxes(axis, axis + 1).reshape(shape)], axis=axis)

    return lambda x: reorder(x, (n_keys, ratio)), lambda x: reorder(x, (ratio, n_keys))
