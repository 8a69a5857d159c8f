#!/usr/bin/env python3
"""Reference data of the demo model: tokenizer cases, greedy answers, and the likelihood of a text. Environment A of make_golden.py:

    A/bin/python tools/golden/make_demo.py CHECKPOINT [--logits FILE]

Writes demo-tokenizer.json (by the `tokenizers` package) and demo.json (by transformers in FP32) into the golden folder and reads
demo-text.txt from there. `--logits FILE` also saves all logits of the first prompt (large; not for the repository).
"""
import argparse
import json
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
DEFAULT_OUT = HERE.parent.parent / "crates" / "moeflux-engine" / "tests" / "golden"
PROMPTS = ["What does Vec::push do?", "What is 23 + 45?", "What is `Option::unwrap_or` for?"]
STEPS = 32
TEXTS = [
    "", " ", "   ", "\n", "a", "Hello, world!", "It's what we'll say; I'M sure they'RE 'S.", "  leading and trailing  ", "tabs\tand\nnew\r\nlines\r\n\r\n  \n end",
    "fn main() {\n    let v: Vec<i32> = (0..10).map(|x| x * 2).collect();\n    println!(\"{v:?}\");\n}\n", "def f(x):\n\treturn x**2  # comment\n",
    "12345 3.14159 1_000_000 0xFF 1e-6", "naïve café — Zürich, Ærø, ß", "e\u0301 and \u00e9, ﬁ and fi, \u212b", "你好，世界。こんにちは 안녕하세요", "नमस्ते Привет مرحبا שלום",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈 ½ ① ™", "\u00a0nbsp\u2003em space\u200bzero\u3000wide", "<|im_start|>user\nWhat is 7*6?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n42<|im_end|>",
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>", "<|im_start|><|im_end|><|endoftext|><|im_start", "a<think>b</think>c <|im_end|> d",
    "\x00\x01\x7f\u0080\ufeffbom", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" + " " * 40 + "!" * 30, "https://doc.rust-lang.org/std/vec/struct.Vec.html#method.push?x=1&y=%20",
]


def logits_of(model, ids, **kw):
    return model(input_ids=torch.tensor([ids]), **kw)


def greedy(model, prompt):
    o, out, margins = logits_of(model, prompt, use_cache=True), [], []
    for _ in range(STEPS):
        top = o.logits[0, -1].float().topk(2)
        out.append(int(top.indices[0]))
        margins.append(round(float(top.values[0] - top.values[1]), 4))
        o = logits_of(model, out[-1:], past_key_values=o.past_key_values, use_cache=True)
    return out, margins


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("checkpoint", type=Path)
    ap.add_argument("--out", type=Path, default=DEFAULT_OUT)
    ap.add_argument("--logits", type=Path)
    a = ap.parse_args()
    torch.set_grad_enabled(False)
    tok = Tokenizer.from_file(str(a.checkpoint / "tokenizer.json"))
    encode = lambda text: tok.encode(text, add_special_tokens=False).ids
    cases = [dict(text=t, ids=encode(t)) for t in TEXTS]
    for c in cases:
        c["decoded"] = tok.decode(c["ids"], skip_special_tokens=False)
        c["decoded_without_special"] = tok.decode(c["ids"], skip_special_tokens=True)
    path = a.out / "demo-tokenizer.json"
    path.write_text(json.dumps(dict(tokenizers=tokenizers.__version__, cases=cases), ensure_ascii=False, indent=None).replace(', {"text"', ',\n{"text"') + "\n")

    load = lambda dtype: transformers.AutoModelForCausalLM.from_pretrained(a.checkpoint, dtype=dtype, attn_implementation="eager", experts_implementation="eager").eval()
    model, low = load(torch.float32), load(torch.bfloat16)
    template = transformers.AutoTokenizer.from_pretrained(a.checkpoint)
    answers = []
    for question in PROMPTS:
        text = template.apply_chat_template([dict(role="user", content=question)], tokenize=False, add_generation_prompt=True)
        ids = encode(text)
        out, margins = greedy(model, ids)
        answers.append(dict(question=question, prompt=text, prompt_ids=ids, greedy_ids=out, greedy_margins=margins, text=tok.decode(out, skip_special_tokens=False),
                            last_logits_top=[[int(i), float(v)] for v, i in zip(*logits_of(model, ids).logits[0, -1].topk(8))]))
        print(question, "->", repr(answers[-1]["text"]), f"margin {min(margins):.3f}")
    text = (a.out / "demo-text.txt").read_text()
    ids = encode(text)

    def nll(m):
        logp = logits_of(m, ids, use_cache=False).logits[0].double().log_softmax(-1)
        return logp, float(-logp[:-1].gather(1, torch.tensor(ids[1:])[:, None]).mean())
    p, exact = nll(model)
    q, rounded = nll(low)
    likelihood = dict(file="demo-text.txt", tokens=len(ids), mean_nll=exact, perplexity=float(np.exp(exact)), bf16_mean_nll=rounded, bf16_kl=float((p.exp() * (p - q)).sum(-1).mean()))
    print(likelihood)
    versions = dict(transformers=transformers.__version__, torch=torch.__version__, tokenizers=tokenizers.__version__)
    (a.out / "demo.json").write_text(json.dumps(dict(reference="transformers FP32, eager", **versions, prompts=answers, likelihood=likelihood), ensure_ascii=False, indent=1) + "\n")
    if a.logits:
        from safetensors.numpy import save_file
        first = answers[0]["prompt_ids"]
        a.logits.parent.mkdir(parents=True, exist_ok=True)
        save_file({"tokens": np.array(first, np.int32), "logits": logits_of(model, first).logits[0].numpy()}, str(a.logits))


if __name__ == "__main__":
    main()
