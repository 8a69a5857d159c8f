#!/usr/bin/env python3
"""Makes the golden cases of the engine's tests: small random `qwen3_5_moe` checkpoints and the logits a reference gives.

Two Python environments are needed, both outside the work tree:

    python3 -m venv A && A/bin/pip install torch transformers safetensors tokenizers numpy jinja2
    python3 -m venv B && B/bin/pip install 'mlx[cpu]' mlx-lm

Run the three stages in this order (the MLX ones can be left out when only the Hugging Face cases are wanted):

    A/bin/python tools/golden/make_golden.py hf      # checkpoints in HF layout, logits by transformers in FP32
    B/bin/python tools/golden/make_golden.py mlx     # quantised by mlx-lm, logits by mlx-lm with FP32 arithmetic
    A/bin/python tools/golden/make_golden.py check   # dequantises the MLX cases with numpy, compares with transformers

`--out DIR` writes elsewhere, `--shape big` makes larger models with longer sequences (not for the repository),
a list of case names restricts the run. Weights come from numpy with a fixed seed, so the files are reproducible.

A case is a checkpoint directory with two more files:
  expected.safetensors  tokens.N i32 [T], logits.N f32 [T, vocab] (all positions), greedy.prompt i32, greedy.tokens i32 [24]
  expected.json         versions, seed, smallest router margin, and per sequence: logit std, decode against prefill,
                        bf16_kl (mean KL of the reference's own BF16 run from its FP32 run: what rounding alone does)
"""
import argparse
import json
import math
import shutil
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
DEFAULT_OUT = HERE.parent.parent / "crates" / "moeflux-engine" / "tests" / "golden"
GREEDY = 24

# ------------------------------------------------------------------------------------------------ shapes of the cases

ROPE = dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25, mrope_section=[2, 1, 1], mrope_interleaved=True)


def text_config(**over):
    c = dict(model_type="qwen3_5_moe_text", vocab_size=96, hidden_size=72, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, head_dim=32, hidden_act="silu", rms_norm_eps=1e-6, max_position_embeddings=4096,
             attention_bias=False, full_attention_interval=4, linear_conv_kernel_dim=4, linear_num_key_heads=2,
             linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16, num_experts=5,
             num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=40,
             tie_word_embeddings=False, rope_parameters=ROPE, bos_token_id=None, eos_token_id=None)
    c.update(over)
    return c


def layer_types(c):
    n = c.get("full_attention_interval", 4)
    return c.get("layer_types") or ["linear_attention" if (i + 1) % n else "full_attention" for i in range(c["num_hidden_layers"])]


# dtype: storage; fused: experts stacked in two tensors; nested: multimodal config and names
SMALL_HF = {
    "hf-bf16": dict(dtype="BF16", fused=True, nested=True, shards=2, tokenizer=True, text=text_config(
        eos_token_id=95, num_attention_heads=3, num_key_value_heads=1, moe_intermediate_size=20, shared_expert_intermediate_size=28)),
    "hf-text-per-expert": dict(dtype="F32", fused=False, nested=False, shards=1, text=text_config(
        vocab_size=101, hidden_size=40, num_attention_heads=3, num_key_value_heads=1, head_dim=32, linear_conv_kernel_dim=3,
        linear_num_value_heads=6, linear_value_head_dim=32, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=12,
        shared_expert_intermediate_size=20, rope_parameters=dict(rope_type="default", rope_theta=50000.0, partial_rotary_factor=0.5),
        num_hidden_layers=3, layer_types=["full_attention", "linear_attention", "full_attention"])),
    # older spelling of the rope keys, tied embeddings, layer types by interval only
    "hf-f16": dict(dtype="F16", fused=True, nested=False, shards=1, text=text_config(
        hidden_size=56, num_attention_heads=2, num_key_value_heads=1, head_dim=48, full_attention_interval=2, num_experts=12,
        num_experts_per_tok=5, moe_intermediate_size=10, shared_expert_intermediate_size=18, linear_num_key_heads=3,
        linear_num_value_heads=3, linear_key_head_dim=20, linear_value_head_dim=12, tie_word_embeddings=True,
        rope_parameters=None, rope_theta=1000000.0, partial_rotary_factor=0.25, rms_norm_eps=1e-5)),
}
MLX_TEXT = text_config(hidden_size=128, num_hidden_layers=2, full_attention_interval=2, num_attention_heads=2, num_key_value_heads=1,
                       linear_value_head_dim=16, moe_intermediate_size=64, shared_expert_intermediate_size=64)
MLX_NARROW = dict(MLX_TEXT, hidden_size=64, linear_num_value_heads=8)
SMALL_MLX = {f"mlx-q{b}": dict(bits=b, group=64, text=MLX_TEXT if b < 5 else MLX_NARROW) for b in (2, 3, 5, 6, 8)}
SMALL_MLX["mlx-q4"] = dict(bits=4, group=64, text=dict(MLX_TEXT, num_hidden_layers=3, full_attention_interval=3,
                                                       num_experts_per_tok=3, linear_num_value_heads=8))
SMALL_MLX["mlx-q4-g32"] = dict(bits=4, group=32, text=MLX_NARROW)
SMALL_MLX["mlx-q4-g128"] = dict(bits=4, group=128, text=dict(MLX_TEXT, num_attention_heads=4, linear_num_value_heads=8,
                                                              moe_intermediate_size=128, shared_expert_intermediate_size=128))
BIG_TEXT = text_config(vocab_size=331, hidden_size=256, num_hidden_layers=6, full_attention_interval=3, num_attention_heads=6,
                       num_key_value_heads=3, head_dim=128, linear_num_key_heads=4, linear_num_value_heads=16, linear_key_head_dim=32,
                       linear_value_head_dim=64, num_experts=33, num_experts_per_tok=5, moe_intermediate_size=192,
                       shared_expert_intermediate_size=320, rope_parameters=dict(ROPE, mrope_section=[6, 5, 5]))
BIG_HF = {"big-hf-bf16": dict(dtype="BF16", fused=True, nested=True, shards=3, text=BIG_TEXT),
          "big-hf-f32-per-expert": dict(dtype="F32", fused=False, nested=False, shards=1, text=BIG_TEXT)}
BIG_MLX = {"big-mlx-q4": dict(bits=4, group=64, text=BIG_TEXT)}


def sequences(vocab, shape):
    rng = np.random.default_rng(20)
    return [rng.integers(0, vocab, n).astype(np.int32) for n in ((5, 48) if shape == "small" else (3, 131, 700))]


# ------------------------------------------------------------------------------------------------ weights

def make_weights(c, seed):
    """Random text weights under their plain names (`layers.0...`, `lm_head.weight`), experts fused. Gains are chosen so
    that the residual stream stays tame, the router is decided (not uniform) and the logits have a deviation near 2."""
    rng = np.random.default_rng(seed)
    h, w = c["hidden_size"], {}
    normal = lambda *shape, std, mean=0.0: (rng.standard_normal(shape) * std + mean).astype(np.float32)
    linear = lambda *shape, gain=1.2: normal(*shape, std=gain / math.sqrt(shape[-1]))
    tied = c["tie_word_embeddings"]
    w["embed_tokens.weight"] = normal(c["vocab_size"], h, std=2.0 / math.sqrt(h) if tied else 1.0)
    for i, kind in enumerate(layer_types(c)):
        p = f"layers.{i}."
        if kind == "full_attention":
            d, q, kv = c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
            a = p + "self_attn."
            w[a + "q_proj.weight"] = linear(2 * q * d, h)
            w[a + "k_proj.weight"], w[a + "v_proj.weight"] = linear(kv * d, h), linear(kv * d, h)
            w[a + "o_proj.weight"] = linear(h, q * d)
            w[a + "q_norm.weight"], w[a + "k_norm.weight"] = normal(d, std=0.1), normal(d, std=0.1)
        else:
            hv, dv = c["linear_num_value_heads"], c["linear_value_head_dim"]
            channels = 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"] + hv * dv
            a = p + "linear_attn."
            w[a + "in_proj_qkv.weight"], w[a + "in_proj_z.weight"] = linear(channels, h), linear(hv * dv, h)
            w[a + "in_proj_b.weight"], w[a + "in_proj_a.weight"] = linear(hv, h), linear(hv, h)
            w[a + "conv1d.weight"] = normal(channels, 1, c["linear_conv_kernel_dim"], std=0.5)
            w[a + "A_log"] = np.log(rng.uniform(0.5, 7.5, hv)).astype(np.float32)
            w[a + "dt_bias"] = normal(hv, std=1.0, mean=-3.0)
            w[a + "norm.weight"] = normal(dv, std=0.1, mean=1.0)
            w[a + "out_proj.weight"] = linear(h, hv * dv)
        e, m, s = c["num_experts"], c["moe_intermediate_size"], c["shared_expert_intermediate_size"]
        w[p + "mlp.gate.weight"] = linear(e, h, gain=3.0)
        w[p + "mlp.experts.gate_up_proj"], w[p + "mlp.experts.down_proj"] = linear(e, 2 * m, h), linear(e, h, m)
        w[p + "mlp.shared_expert.gate_proj.weight"], w[p + "mlp.shared_expert.up_proj.weight"] = linear(s, h), linear(s, h)
        w[p + "mlp.shared_expert.down_proj.weight"], w[p + "mlp.shared_expert_gate.weight"] = linear(h, s), linear(1, h)
        w[p + "input_layernorm.weight"], w[p + "post_attention_layernorm.weight"] = normal(h, std=0.1), normal(h, std=0.1)
    w["norm.weight"] = normal(h, std=0.1)
    if not tied:
        w["lm_head.weight"] = linear(c["vocab_size"], h, gain=2.0)
    return w


def split_experts(w):
    """Fused experts -> one tensor each, as transformers 5 saves them."""
    out = {}
    for k, v in w.items():
        if k.endswith("experts.gate_up_proj"):
            for n, x in enumerate(v):
                gate, up = np.split(x, 2)
                out[k.replace("gate_up_proj", f"{n}.gate_proj.weight")] = gate
                out[k.replace("gate_up_proj", f"{n}.up_proj.weight")] = up
        elif k.endswith("experts.down_proj"):
            for n, x in enumerate(v):
                out[k.replace("down_proj", f"{n}.down_proj.weight")] = x
        else:
            out[k] = v
    return out


def rename(w, prefix):
    return {k if k.startswith("lm_head") else prefix + k: v for k, v in w.items()}


def extra_tensors(c, rng):
    """Parts of a published checkpoint that a text engine must skip: a vision tower and a multi-token-prediction head."""
    h = c["hidden_size"]
    shapes = {"model.visual.patch_embed.proj.weight": (16, 3, 2, 4, 4), "model.visual.patch_embed.proj.bias": (16,),
              "model.visual.pos_embed.weight": (4, 16), "model.visual.blocks.0.attn.qkv.weight": (48, 16),
              "mtp.fc.weight": (h, 2 * h), "mtp.norm.weight": (h,), "mtp.pre_fc_norm_embedding.weight": (h,),
              "mtp.layers.0.input_layernorm.weight": (h,), "mtp.layers.0.mlp.gate.weight": (c["num_experts"], h),
              "mtp.layers.0.mlp.experts.down_proj": (c["num_experts"], h, 4)}
    return {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}


def config_json(case):
    c = {k: v for k, v in case["text"].items() if v is not None or k.endswith("token_id")}
    c["dtype"] = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}[case["dtype"]]
    if not case["nested"]:
        return dict(c, architectures=["Qwen3_5MoeForCausalLM"])
    c["layer_types"] = layer_types(c)
    vision = dict(model_type="qwen3_5_moe_vision", depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=4,
                  out_hidden_size=c["hidden_size"], num_position_embeddings=4)
    return dict(architectures=["Qwen3_5MoeForConditionalGeneration"], model_type="qwen3_5_moe", text_config=c, vision_config=vision,
                image_token_id=1, video_token_id=2, vision_start_token_id=3, vision_end_token_id=4, tie_word_embeddings=c["tie_word_embeddings"])


def checkpoint_tensors(case, seed):
    c = case["text"]
    w = make_weights(c, seed)
    if not case["fused"]:
        w = split_experts(w)
    if not case["nested"]:
        return rename(w, "model.")
    return {**rename(w, "model.language_model."), **extra_tensors(c, np.random.default_rng(seed + 1))}


def dump(path, obj):
    path.write_text(json.dumps(obj, indent=1) + "\n")


def write_tokenizer(d):
    """One token per printable ASCII character or newline: enough to exercise the path from text to text in 96 tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    chars = ["\u010a", "\u0120"] + [chr(i) for i in range(33, 126)]                # byte-level spelling of \n and space
    t = Tokenizer(models.BPE(vocab={ch: i for i, ch in enumerate(chars)}, merges=[]))
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), decoders.ByteLevel()
    t.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=False)])
    t.save(str(d / "tokenizer.json"), pretty=False)
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    dump(d / "tokenizer_config.json", dict(tokenizer_class="PreTrainedTokenizerFast", eos_token="<|im_end|>", chat_template=template))
    dump(d / "generation_config.json", dict(eos_token_id=95))


# ------------------------------------------------------------------------------------------------ measuring

def log_softmax(x):
    x = x.astype(np.float64) - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def mean_kl(p, q):
    a, b = log_softmax(p), log_softmax(q)
    return float((np.exp(a) * (a - b)).sum(-1).mean())


def measure(case, shape, full, step):
    """full(tokens) -> (logits [T,V], router margin); step(tokens, n) -> (logits of decoding tokens[n:] one by one, greedy, margin)"""
    tensors, info, margin = {}, [], math.inf
    for n, toks in enumerate(sequences(case["text"]["vocab_size"], shape)):
        logits, gap = full(toks)
        start = len(toks) // 2
        diff = float(np.abs(step(toks, start)[0] - logits[start - 1:]).max())
        tensors[f"tokens.{n}"], tensors[f"logits.{n}"] = toks, np.ascontiguousarray(logits)
        info.append(dict(tokens=len(toks), logit_std=float(logits.std()), decode_vs_prefill=diff, router_gap=gap))
        margin = min(margin, gap)
    prompt = tensors["tokens.1"][:16]
    _, out, top_margin = step(prompt, len(prompt))
    tensors["greedy.prompt"], tensors["greedy.tokens"] = prompt, np.array(out, np.int32)
    return tensors, dict(min_router_gap=margin, greedy_min_margin=top_margin, sequences=info)


def search(build, seeds):
    """First seed whose router and greedy choices are clear of ties, else the clearest of those tried."""
    best = None
    for seed in range(seeds):
        result = build(seed)
        score = min(result[1]["min_router_gap"], result[1]["greedy_min_margin"] / 4)
        if best is None or score > best[0]:
            best = (score, seed, result)
        if score > 5e-3:
            break
    return best[1], best[2]


def save_expected(d, tensors, info):
    from safetensors.numpy import save_file
    save_file(tensors, str(d / "expected.safetensors"))
    for f in d.iterdir():
        f.chmod(0o644)
    dump(d / "expected.json", info)


def report(name, d, info):
    size = sum(f.stat().st_size for f in d.iterdir())
    print(f"{name:22s} {size / 1024:8.0f} KB seed {info['seed']} gap {info['min_router_gap']:.1e} greedy {info['greedy_min_margin']:.2f}", end="")
    print("".join(f" | T={s['tokens']} std {s['logit_std']:.2f} dec {s['decode_vs_prefill']:.1e} kl {s.get('bf16_kl', math.nan):.1e}" for s in info["sequences"]), flush=True)


# ------------------------------------------------------------------------------------------------ stage hf: transformers

def hf_load(d, dtype):
    import torch
    import transformers
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    m, info = transformers.AutoModelForCausalLM.from_pretrained(d, dtype=dtype, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"], info["missing_keys"]
    return m.eval()


def hf_full(model, k):
    import torch

    def run(toks):
        o = model(input_ids=torch.tensor(toks[None].astype(np.int64)), use_cache=False, output_router_logits=True)
        top = [r.reshape(-1, r.shape[-1]).float().sort(-1, descending=True)[0] for r in o.router_logits]
        return o.logits[0].float().numpy(), min(float((t[:, k - 1] - t[:, k]).min()) for t in top)
    return run


def hf_step(model):
    import torch

    def run(toks, n):
        rows, out, margin = [], [], math.inf
        o = model(input_ids=torch.tensor(toks[None, :n].astype(np.int64)), use_cache=True)
        for i in range(max(len(toks) - n, GREEDY if n == len(toks) else 0) + 1):
            row = o.logits[0, -1].float().numpy()
            rows.append(row)
            nxt = int(toks[n + i]) if n + i < len(toks) else int(row.argmax())
            if n == len(toks):
                if i == GREEDY:
                    break
                out.append(nxt)
                margin = min(margin, float(np.diff(np.sort(row)[-2:])[0]))
            elif n + i == len(toks):
                break
            # transformers 5.24 renames the cache, model by model.
            cache = "cache" if o.get("cache") is not None else "past_key_values"
            o = model(input_ids=torch.tensor([[nxt]]), use_cache=True, **{cache: o[cache]})
        return np.stack(rows), out, margin
    return run


def stage_hf(cases, out, shape, seeds):
    import safetensors
    import torch
    import transformers
    from safetensors.torch import save_file
    types = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
    for name, case in cases.items():
        d = out / name

        def build(seed):
            shutil.rmtree(d, ignore_errors=True)
            d.mkdir(parents=True)
            w = {k: torch.from_numpy(np.ascontiguousarray(v)).to(types[case["dtype"]]) for k, v in checkpoint_tensors(case, seed).items()}
            names = sorted(w)
            count = case["shards"]
            if count == 1:
                save_file(w, d / "model.safetensors", metadata={"format": "pt"})
            else:                                                            # shards by turns: neighbours lie in different files
                where = {k: f"model-{i % count + 1:05d}-of-{count:05d}.safetensors" for i, k in enumerate(names)}
                for f in sorted(set(where.values())):
                    save_file({k: w[k] for k in names if where[k] == f}, d / f, metadata={"format": "pt"})
                dump(d / "model.safetensors.index.json", dict(metadata=dict(total_size=sum(x.nbytes for x in w.values())), weight_map=where))
            dump(d / "config.json", config_json(case))
            if case.get("tokenizer"):
                write_tokenizer(d)
            m = hf_load(d, torch.float32)
            return measure(case, shape, hf_full(m, case["text"]["num_experts_per_tok"]), hf_step(m))

        seed, (tensors, info) = search(build, seeds)
        build(seed)                                                          # the files of the chosen seed
        bf16 = hf_full(hf_load(d, torch.bfloat16), case["text"]["num_experts_per_tok"])
        for n, s in enumerate(info["sequences"]):
            low = bf16(tensors[f"tokens.{n}"])[0]
            s["bf16_kl"] = mean_kl(tensors[f"logits.{n}"], low)
            s["bf16_max_diff"] = float(np.abs(tensors[f"logits.{n}"] - low).max())
        info = dict(reference="transformers FP32, eager", transformers=transformers.__version__, torch=torch.__version__,
                    safetensors=safetensors.__version__, seed=seed, **info)
        save_expected(d, tensors, info)
        report(name, d, info)


# ------------------------------------------------------------------------------------------------ stage mlx: mlx-lm

def mlx_runner(d):
    """(full, step) of an MLX checkpoint with every floating tensor widened to FP32: the packed weights as they are, FP32 arithmetic."""
    import mlx.core as mx
    from mlx.utils import tree_map
    from mlx_lm.models import qwen3_5
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import load_model
    gaps = []
    Block = qwen3_5.SparseMoeBlock
    if not hasattr(Block, "plain_call"):
        Block.plain_call = Block.__call__

    def traced(self, x):
        top = mx.sort(self.gate(x), axis=-1).reshape(-1, self.num_experts)
        gaps.append(float((top[:, -self.top_k] - top[:, -self.top_k - 1]).min()))
        return Block.plain_call(self, x)
    Block.__call__ = traced
    m, _ = load_model(d)
    m.update(tree_map(lambda p: p.astype(mx.float32) if isinstance(p, mx.array) and mx.issubdtype(p.dtype, mx.floating) else p, m.parameters()))

    def full(toks):
        gaps.clear()
        y = np.array(m(mx.array(toks[None].astype(np.int32))).astype(mx.float32))[0]
        return y, min(gaps)

    def step(toks, n):
        cache, rows, out, margin = make_prompt_cache(m), [], [], math.inf
        ask = lambda t: np.array(m(mx.array(np.array(t, np.int32)[None]), cache=cache).astype(mx.float32))[0, -1]
        rows.append(ask(toks[:n]))
        for t in toks[n:]:
            rows.append(ask([t]))
        while n == len(toks) and len(out) < GREEDY:
            margin = min(margin, float(np.diff(np.sort(rows[-1])[-2:])[0]))
            out.append(int(rows[-1].argmax()))
            rows.append(ask(out[-1:]))
        return np.stack(rows), out, margin
    return full, step


def stage_mlx(cases, out, shape, seeds):
    import importlib.metadata as md
    import mlx.core as mx
    import mlx_lm
    mx.set_default_device(mx.cpu)
    for name, case in cases.items():
        d = out / name
        hf = dict(case, dtype="BF16", fused=True, nested=True)

        def build(seed):
            shutil.rmtree(d, ignore_errors=True)
            d.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory() as tmp:
                src = Path(tmp) / "source"
                src.mkdir()
                w = {k: mx.array(v).astype(mx.bfloat16) for k, v in checkpoint_tensors(hf, seed).items()}
                mx.save_safetensors(str(src / "model.safetensors"), w, metadata={"format": "pt"})
                dump(src / "config.json", config_json(hf))
                convert(mlx_lm, src, d, case)
            return measure(case, shape, *mlx_runner(d))

        seed, (tensors, info) = search(build, seeds)
        build(seed)
        info = dict(reference="mlx-lm, FP32 arithmetic on the packed weights", mlx=md.version("mlx"), mlx_lm=md.version("mlx-lm"), seed=seed, **info)
        save_expected(d, tensors, info)
        report(name, d, info)


def convert(mlx_lm, src, d, case):
    """mlx_lm.convert wants a tokenizer only to copy it; these cases have none, so the same steps are taken by hand."""
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model
    import mlx.core as mx
    from mlx.utils import tree_map_with_path
    model, config = load_model(src, lazy=True)
    keep = getattr(model, "cast_predicate", lambda _: True)
    model.update(tree_map_with_path(lambda k, v: v.astype(mx.bfloat16) if keep(k) and mx.issubdtype(v.dtype, mx.floating) else v, model.parameters()))
    model, config = quantize_model(model, config, case["group"], case["bits"], quant_predicate=model.quant_predicate)
    save_model(d, model, donate_model=True)
    save_config(config, d / "config.json")


# ------------------------------------------------------------------------------------------------ stage check: numpy + transformers

def unpack(words, bits):
    """Packed rows are one little-endian bit stream, lowest bit first."""
    stream = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
    stream = stream.reshape(*stream.shape[:-1], -1, bits)
    return (stream * (1 << np.arange(bits))).sum(-1).astype(np.float32)


def mlx_to_hf(d):
    """The MLX checkpoint in FP32 under Hugging Face names: dequantised, norms centred at zero again, experts fused."""
    import torch
    from safetensors.torch import load_file
    t = {k: v if v.dtype == torch.uint32 else v.float() for f in d.glob("model*.safetensors") for k, v in load_file(f).items()}
    quant, w = json.loads((d / "config.json").read_text())["quantization"], {}
    for k, v in t.items():
        if k.endswith((".scales", ".biases")):
            continue
        base, v = k.removesuffix(".weight"), v.numpy()
        if base + ".scales" in t:
            own = quant.get(base, quant)
            v = unpack(v, own["bits"])
            v = v.reshape(*v.shape[:-1], -1, own["group_size"]) * t[base + ".scales"].numpy()[..., None] + t[base + ".biases"].numpy()[..., None]
            v = v.reshape(*v.shape[:-2], -1)
        if v.ndim == 1 and k.endswith("norm.weight") and not k.endswith("linear_attn.norm.weight"):
            v = v - 1.0
        if k.endswith("conv1d.weight"):
            v = np.moveaxis(v, 2, 1)
        w[k.removeprefix("language_model.")] = v
    for k in [k for k in w if k.endswith("switch_mlp.gate_proj.weight")]:
        p = k.removesuffix("switch_mlp.gate_proj.weight")
        w[p + "experts.gate_up_proj"] = np.concatenate([w.pop(k), w.pop(p + "switch_mlp.up_proj.weight")], 1)
        w[p + "experts.down_proj"] = w.pop(p + "switch_mlp.down_proj.weight")
    return w


def stage_check(cases, out, shape, seeds):
    import torch
    from safetensors.numpy import load_file
    from safetensors.torch import save_file
    for name, case in cases.items():
        d, k = out / name, case["text"]["num_experts_per_tok"]
        with tempfile.TemporaryDirectory() as tmp:
            tmp = Path(tmp)
            save_file({n: torch.from_numpy(np.ascontiguousarray(v)) for n, v in mlx_to_hf(d).items()}, tmp / "model.safetensors", metadata={"format": "pt"})
            dump(tmp / "config.json", config_json(dict(case, dtype="F32", nested=False)))
            exact, low = hf_full(hf_load(tmp, torch.float32), k), hf_full(hf_load(tmp, torch.bfloat16), k)
            want, info = load_file(d / "expected.safetensors"), json.loads((d / "expected.json").read_text())
            for n, s in enumerate(info["sequences"]):
                logits = want[f"logits.{n}"]
                s["transformers_max_diff"] = float(np.abs(exact(want[f"tokens.{n}"])[0] - logits).max())
                s["bf16_kl"] = mean_kl(logits, low(want[f"tokens.{n}"])[0])
        dump(d / "expected.json", info)
        report(name, d, info)
        print(" " * 22, "against transformers:", ", ".join(f"{s['transformers_max_diff']:.1e}" for s in info["sequences"]), flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("stage", choices=["hf", "mlx", "check"])
    ap.add_argument("cases", nargs="*")
    ap.add_argument("--out", type=Path, default=DEFAULT_OUT)
    ap.add_argument("--shape", choices=["small", "big"], default="small")
    ap.add_argument("--seeds", type=int, default=0, help="how many seeds to try (default 20, big: 3)")
    a = ap.parse_args()
    big = a.shape == "big"
    cases = (BIG_HF if big else SMALL_HF) if a.stage == "hf" else (BIG_MLX if big else SMALL_MLX)
    unknown = set(a.cases) - set(cases)
    if unknown:
        ap.error(f"no such case in this stage: {', '.join(sorted(unknown))}")
    stage = {"hf": stage_hf, "mlx": stage_mlx, "check": stage_check}[a.stage]
    stage({n: c for n, c in cases.items() if not a.cases or n in a.cases}, a.out, a.shape, a.seeds or (3 if big else 20))


if __name__ == "__main__":
    main()
