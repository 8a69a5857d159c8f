"""How small checkpoints store their weights: BF16, FP8 in blocks, MXFP4, and the values that these mean."""
import re

import numpy as np

from family_shapes import STAYS_F32

BLOCK = 128                                          # rows and columns that share a scale in DeepSeek's FP8 checkpoints
FP4 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def bf16(x):
    """Rounded to BF16 and widened again."""
    import torch
    return torch.from_numpy(np.ascontiguousarray(x)).to(torch.bfloat16).float().numpy()

def is_fp8(name):
    return bool(re.search(r"(self_attn|mlp)\..*_proj(_with_mqa)?\.weight$|indexer\.(wq_b|wk)\.weight$", name))


def table_scales(weights):
    """One F32 scale for all shards of each table of n-grams."""
    largest = {}
    for k, v in weights.items():
        if ".ngram_embedding.shard_" in k:
            table = k.split(".shard_")[0]
            largest[table] = max(largest.get(table, 0.0), float(np.abs(v).max()))
    return {table: np.float32(most / 448) for table, most in largest.items()}


def encode_experts_fp8(weights):
    """What `encode` gives where experts are FP8 with BF16 scales, and tables of n-grams with one scale each, as Qwen publishes."""
    import torch
    stored, meant = encode({k: v for k, v in weights.items() if ".experts." not in k and ".ngram_embedding." not in k}, "bf16")
    tables = table_scales(weights)
    for table, scale in tables.items():
        stored[table + ".weight_scale"] = torch.tensor(scale)
    for k, v in weights.items():
        if ".experts." in k:
            q, scale = to_fp8(v, bf16)
            stored[k], stored[k + "_scale_inv"] = q, torch.from_numpy(scale).to(torch.bfloat16)
            grown = np.kron(scale, np.ones((BLOCK, BLOCK), np.float32))[:v.shape[0], :v.shape[1]]
            meant[k] = q.float().numpy() * grown
        elif ".ngram_embedding." in k:
            scale = tables[k.split(".shard_")[0]]
            stored[k] = torch.from_numpy(v / scale).to(torch.float8_e4m3fn)
            meant[k] = stored[k].float().numpy() * scale
    return stored, meant


def to_fp8(w, rounded=lambda scale: scale):
    """(E4M3 weight, F32 scale of every block of 128 x 128), as DeepSeek publishes."""
    import torch
    rows, cols = w.shape
    scale = np.empty((-(-rows // BLOCK), -(-cols // BLOCK)), np.float32)
    scaled = np.empty_like(w)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            part = np.s_[i * BLOCK:(i + 1) * BLOCK, j * BLOCK:(j + 1) * BLOCK]
            scale[i, j] = np.abs(w[part]).max() / 448
            scale[i, j] = rounded(scale[i:i + 1, j:j + 1])[0, 0]
            scaled[part] = np.clip(w[part] / scale[i, j], -448, 448)
    return torch.from_numpy(scaled).to(torch.float8_e4m3fn), scale


def to_mxfp4(w):
    """Rows of blocks of 32 values: (two codes a byte, low half first; exponents with a bias of 127; the values they mean)."""
    groups = w.reshape(*w.shape[:-1], -1, 32)
    exponent = np.floor(np.log2(np.abs(groups).max(-1, keepdims=True))) - 2
    codes = np.abs((groups / 2 ** exponent)[..., None] - FP4).argmin(-1)
    values = (FP4[codes] * 2 ** exponent).reshape(w.shape).astype(np.float32)
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8), (exponent[..., 0] + 127).astype(np.uint8), values


def to_power(scale):
    """The power of two that is no smaller."""
    return np.exp2(np.ceil(np.log2(scale))).astype(np.float32)


def e8m0(scale):
    """Powers of two as bytes of exponents."""
    import torch
    return torch.from_numpy((np.log2(scale) + 127).astype(np.uint8)).view(torch.float8_e8m0fnu)


def encode_fp4(weights):
    """What `encode` gives where experts are pairs of FP4 and most other matrices FP8, with scales that are powers of two, as DeepSeek publishes V4."""
    import torch
    stored, meant = {}, {}
    for k, v in weights.items():
        scale_name = k.removesuffix("weight") + "scale"
        if ".ffn.experts." in k:
            codes, exponents, meant[k] = to_mxfp4(v)
            codes = codes.reshape(len(codes), -1)
            stored[k], stored[scale_name] = torch.from_numpy(codes).view(torch.int8), torch.from_numpy(exponents).view(torch.float8_e8m0fnu)
        elif re.search(r"\.attn\.(w(q_a|q_b|kv|o_a|o_b)|indexer\.wq_b)\.weight$|\.shared_experts\.", k):
            stored[k], scale = to_fp8(v, to_power)
            stored[scale_name] = e8m0(scale)
            meant[k] = stored[k].float().numpy() * np.kron(scale, np.ones((BLOCK, BLOCK), np.float32))[:v.shape[0], :v.shape[1]]
        else:
            wide = k.endswith(STAYS_F32) or re.search(r"hc_\w+$|norm\.weight$", k)
            meant[k] = v if wide else bf16(v)
            stored[k] = torch.from_numpy(meant[k].copy()).to(torch.float32 if wide else torch.bfloat16)
    return stored, meant


def routes(config, rng):
    """Tables of experts by token id: distinct ones in every row."""
    import torch
    n_layers = config.get("num_hash_layers", config.get("mlp_layer_types", []).count("hash_moe"))
    shape = config.get("vocab_size", 0), config.get("n_routed_experts", 0)
    rows = lambda: np.ascontiguousarray(np.argsort(rng.random(shape), -1)[:, :config["num_experts_per_tok"]].astype(np.int64))
    return {f"layers.{n}.ffn.gate.tid2eid": torch.from_numpy(rows()) for n in range(n_layers)}


def encode(weights, fmt):
    """(tensors to store, the values that they mean in FP32)"""
    import torch
    stored, meant = {}, {}
    for k, v in weights.items():
        wide = k.endswith(STAYS_F32)
        if fmt == "fp8" and is_fp8(k):
            q, scale = to_fp8(v)
            stored[k], stored[k + "_scale_inv"] = q, torch.from_numpy(scale)
            grown = np.kron(scale, np.ones((BLOCK, BLOCK), np.float32))[:v.shape[0], :v.shape[1]]
            meant[k] = q.float().numpy() * grown
        elif fmt == "mxfp4" and k.endswith(("experts.gate_up_proj", "experts.down_proj")):
            blocks, scales, values = to_mxfp4(v.transpose(0, 2, 1))
            stored[k + "_blocks"], stored[k + "_scales"] = torch.from_numpy(blocks), torch.from_numpy(scales)
            meant[k] = np.ascontiguousarray(values.transpose(0, 2, 1))
        else:
            meant[k] = v if wide else bf16(v)
            stored[k] = torch.from_numpy(meant[k].copy()).to(torch.float32 if wide else torch.bfloat16)
    return stored, meant
