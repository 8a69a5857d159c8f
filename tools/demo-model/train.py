#!/usr/bin/env python3
"""Trains the demo model for a given time and writes it as a Hugging Face checkpoint.

Reads docs.bin, val.bin, chat.bin and tokenizer.json, which `prepare_tokens.py` wrote. Writes into the output folder:
  model.safetensors, config.json, and the tokenizer's files: BF16, one tensor per expert and projection
  routing-traces.npz       which experts were chosen, and what predictors of them say (see `routing.py`)
"""
import argparse
import json
import math
import shutil
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as qwen
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig

import routing

SEED = 0
END_OF_TEXT, END_OF_TURN = 8185, 8187
CONFIG = dict(
    architectures=["Qwen3_5MoeForCausalLM"],
    vocab_size=8192,
    hidden_size=256,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    linear_key_head_dim=64,
    linear_value_head_dim=64,
    linear_num_key_heads=4,
    linear_num_value_heads=8,
    moe_intermediate_size=64,
    shared_expert_intermediate_size=64,
    num_experts=32,
    num_experts_per_tok=4,
    max_position_embeddings=4096,
    tie_word_embeddings=False,
    bos_token_id=None,
    eos_token_id=END_OF_TURN,
    pad_token_id=END_OF_TEXT,
    rope_parameters=dict(
        rope_type="default", rope_theta=10_000_000.0, partial_rotary_factor=0.25, mrope_section=[3, 3, 2], mrope_interleaved=True
    ),
)
TOKENIZER_CONFIG = dict(
    tokenizer_class="PreTrainedTokenizerFast",
    model_max_length=4096,
    bos_token=None,
    eos_token="<|im_end|>",
    pad_token="<|endoftext|>",
    clean_up_tokenization_spaces=False,
    add_bos_token=False,
)

# Rows and columns of a batch. On a CPU only to see that the script runs.
BATCH = {"cuda": (64, 512), "cpu": (2, 128)}
CHAT_ROWS_OF_FIVE = 2

LEARNING_RATE = 2e-3
LAST_RATE_SHARE = 0.02
WARMUP_STEPS = 200
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
MAX_GRADIENT_NORM = 1.0
BALANCE_WEIGHT = 0.01  # of the loss that spreads tokens over experts
ROUTER_Z_WEIGHT = 0.0005  # of the loss that keeps router logits small
EMBEDDING_STD = 0.02
OUTPUT_SCALE = 0.5  # of the weights that add to the residual

SAMPLE_TOKENS = 80
SAMPLES = [
    "<|im_start|>user\nWhat does `Vec::push` do?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhat is 23 + 45?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhat is `std::collections::HashMap`?<|im_end|>\n<|im_start|>assistant\n",
    "# Ownership\n\nOwnership is",
]


class DenseMoe:
    """A forward pass of the MoE block that computes all experts: with 32 small ones, two large products are faster.

    Collects the routers' losses of a step in `losses`.
    """

    def __init__(self, n_experts, top_k):
        self.n_experts, self.top_k = n_experts, top_k
        self.losses = []

    def install(self):
        qwen.Qwen3_5MoeSparseMoeBlock.forward = lambda block, hidden: self.forward(block, hidden)

    def forward(self, block, hidden):
        batch, length, width = hidden.shape
        x = hidden.reshape(-1, width)
        logits = F.linear(x.float(), block.gate.weight.float())
        probabilities = logits.softmax(-1)
        top, chosen = probabilities.topk(self.top_k, -1)
        weights = torch.zeros_like(probabilities).scatter(1, chosen, top / top.sum(-1, keepdim=True))

        experts = block.experts
        projected = F.linear(x, experts.gate_up_proj.reshape(-1, width)).view(-1, self.n_experts, 2 * experts.intermediate_dim)
        gate, up = projected.chunk(2, -1)
        active = F.silu(gate) * up * weights.unsqueeze(-1).to(gate.dtype)
        down = experts.down_proj.to(active.dtype).permute(0, 2, 1).reshape(-1, width)
        y = active.reshape(x.shape[0], -1) @ down
        y = y + torch.sigmoid(block.shared_expert_gate(x)) * block.shared_expert(x)
        if block.training:
            self.losses.append(self.router_loss(logits, probabilities, weights))
        return y.view(batch, length, width)

    def router_loss(self, logits, probabilities, weights):
        share = (weights > 0).float().mean(0)
        balance = self.n_experts * (share * probabilities.mean(0)).sum() / self.top_k
        return BALANCE_WEIGHT * balance + ROUTER_Z_WEIGHT * torch.logsumexp(logits, -1).pow(2).mean()


def initialise(model):
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2 or "conv1d" in name:
            continue
        is_output = any(it in name for it in ("o_proj", "out_proj", "down_proj"))
        std = (OUTPUT_SCALE if is_output else 1.0) / math.sqrt(parameter.shape[-1])
        torch.nn.init.normal_(parameter, std=EMBEDDING_STD if "embed" in name or "lm_head" in name else std)


def optimizer_of(model, device):
    decays, keeps = [], []
    for name, parameter in model.named_parameters():
        (decays if parameter.dim() >= 2 and "embed" not in name else keeps).append(parameter)
    groups = [dict(params=decays, weight_decay=WEIGHT_DECAY), dict(params=keeps, weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, fused=device == "cuda")


def learning_rate(step, progress):
    """Rises for the first steps, and falls as a cosine over the time of the training (0 to 1)."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1, progress)))
    return LEARNING_RATE * min(1, (step + 1) / WARMUP_STEPS) * (cosine * (1 - LAST_RATE_SHARE) + LAST_RATE_SHARE)


class Batches:
    def __init__(self, docs, chat, device):
        self.docs, self.chat, self.device = docs, chat, device
        self.n_rows, self.length = BATCH[device]
        self.rng = np.random.default_rng(SEED)

    def draw(self):
        rows = []
        for row in range(self.n_rows):
            source = self.chat if row % 5 < CHAT_ROWS_OF_FIVE else self.docs
            start = self.rng.integers(0, len(source) - self.length - 1)
            rows.append(source[start : start + self.length + 1])
        tokens = torch.from_numpy(np.stack(rows).astype(np.int64)).to(self.device)
        return tokens[:, :-1], tokens[:, 1:]


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.reshape(-1))


def train(model, moe, batches, seconds):
    optimizer = optimizer_of(model, batches.device)
    model.train()
    begin, step = time.time(), 0
    while (elapsed := time.time() - begin) < seconds:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, elapsed / seconds)
        x, y = batches.draw()
        moe.losses.clear()
        with torch.autocast(batches.device, dtype=torch.bfloat16):
            logits = model(input_ids=x, use_cache=False).logits
        entropy = cross_entropy(logits, y)
        loss = entropy + sum(moe.losses) / len(moe.losses)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        optimizer.step()
        if step % 50 == 0 or step < 3:
            print(f"step {step}, {elapsed:.0f} s, cross entropy {entropy.item():.3f}", flush=True)
        step += 1
    print(f"{step} steps, {step * batches.n_rows * batches.length} tokens")


@torch.no_grad()
def validate(model, tokens, length, device):
    losses = []
    for start in range(0, len(tokens) - length - 1, length):
        x = torch.from_numpy(tokens[start : start + length + 1].astype(np.int64)).to(device)[None]
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(input_ids=x[:, :-1], use_cache=False).logits
        losses.append(cross_entropy(logits, x[:, 1:]).item())
    print("validation, cross entropy", np.mean(losses) if losses else "not measured: too few tokens")


def checkpoint_tensors(model):
    """The weights under the names that checkpoints have, one tensor per expert and projection."""
    tensors = {}
    for name, value in model.state_dict().items():
        value = value.detach().to(torch.bfloat16).cpu()
        if name.endswith("experts.gate_up_proj"):
            prefix = name.removesuffix("gate_up_proj")
            for expert, both in enumerate(value):
                gate, up = both.chunk(2, 0)
                tensors[f"{prefix}{expert}.gate_proj.weight"] = gate.contiguous()
                tensors[f"{prefix}{expert}.up_proj.weight"] = up.contiguous()
        elif name.endswith("experts.down_proj"):
            prefix = name.removesuffix("down_proj")
            for expert, down in enumerate(value):
                tensors[f"{prefix}{expert}.down_proj.weight"] = down.clone()
        else:
            tensors[name] = value.contiguous()
    return tensors


def save(model, config, data, out):
    save_file(checkpoint_tensors(model), str(out / "model.safetensors"), metadata={"format": "pt"})
    config.dtype = "bfloat16"
    write_json(out / "config.json", config.to_dict())
    write_json(out / "generation_config.json", dict(do_sample=False, eos_token_id=[END_OF_TURN, END_OF_TEXT], pad_token_id=END_OF_TEXT))
    write_json(out / "tokenizer_config.json", TOKENIZER_CONFIG)
    shutil.copy(data / "tokenizer.json", out)
    shutil.copy(Path(__file__).with_name("chat_template.jinja"), out)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, default=str) + "\n")


@torch.no_grad()
def print_samples(model, tokenizer, device):
    """Greedy continuations, to be read by a person."""
    for prompt in SAMPLES:
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        for _ in range(SAMPLE_TOKENS):
            with torch.autocast(device, dtype=torch.bfloat16):
                logits = model(input_ids=torch.tensor([ids], device=device), use_cache=False).logits[0, -1]
            ids.append(int(logits.argmax()))
            if ids[-1] in (END_OF_TEXT, END_OF_TURN):
                break
        print("-----", tokenizer.decode(ids, skip_special_tokens=False), sep="\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the tokens and the tokenizer")
    parser.add_argument("out", type=Path, help="folder for the checkpoint")
    parser.add_argument("--seconds", type=float, default=18 * 60, help="how long to train (default: %(default)s)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(SEED)
    torch.backends.cuda.matmul.allow_tf32 = True
    config = Qwen3_5MoeTextConfig(**CONFIG, attn_implementation="sdpa")
    moe = DenseMoe(config.num_experts, config.num_experts_per_tok)
    moe.install()
    model = qwen.Qwen3_5MoeForCausalLM(config).to(device)
    initialise(model)
    print(f"{sum(it.numel() for it in model.parameters()) / 1e6:.1f} million parameters", flush=True)

    docs, chat, val = (np.fromfile(args.data / f"{name}.bin", dtype="<u2") for name in ("docs", "chat", "val"))
    batches = Batches(docs, chat, device)
    train(model, moe, batches, args.seconds)
    model.eval()
    validate(model, val, batches.length, device)
    save(model, config, args.data, args.out)
    print_samples(model, Tokenizer.from_file(str(args.data / "tokenizer.json")), device)
    routing.record(model, {"val": val, "chat": chat}, batches.length, device, args.out / "routing-traces.npz")


if __name__ == "__main__":
    main()
