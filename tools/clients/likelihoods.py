"""Runs a likelihood task of lm-evaluation-harness against the server: likelihoods.py MOEFLUX [LM_EVAL_VENV]

The log-likelihoods that the harness computes by `/v1/completions` must be those of `moeflux logits` to 1e-4. Without the
harness it prints SKIP. Needs lm-eval with its API extra, transformers and safetensors; no network.
"""

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from array import array
from math import exp, log
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "crates/moeflux-cli/demo"
MOST = 1e-4
QUESTIONS = [
    ("What does `Vec::push` do?", ["Appends an element to the back of a collection.", "It sleeps."], 0),
    ("What is 23 + 45?", ["68", "7", "a word that nothing asks for"], 0),
    ("`Option::unwrap_or` returns", [" the contained value or a default.", " 東京 😀."], 0),
    ("Ownership", [" is a set of rules", " of the sea"], 0),
]
TASK = """\
task: moeflux_likelihoods
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
"""


def start(binary: Path) -> tuple[subprocess.Popen, str]:
    command = [binary, "serve", "--addr", "127.0.0.1:0", "--no-expert-stats", "--no-prompt-cache"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in server.stderr:
        if found := re.search(r"listening on (http://\S+)", line):
            return server, found[1]
    sys.exit("the server does not start")


def measured(url: str, folder: Path) -> list[tuple[str, str, float, bool]]:
    """Contexts, continuations, and what the harness says of them."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    lines = [json.dumps({"question": q, "choices": c, "answer": a}) for q, c, a in QUESTIONS]
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "task.yaml").write_text(TASK.format(data=folder / "data.jsonl"))
    arguments = {"model": "moeflux-demo", "base_url": f"{url}/v1/completions", "tokenizer": str(DEMO),
                 "tokenizer_backend": "huggingface", "num_concurrent": 2, "max_length": 2048}
    found = simple_evaluate(
        model="local-completions", model_args=arguments, tasks=["moeflux_likelihoods"], log_samples=True,
        task_manager=TaskManager(include_path=str(folder), include_defaults=False), bootstrap_iters=0,
    )
    print("accuracy", found["results"]["moeflux_likelihoods"]["acc,none"])
    rows = []
    for sample in found["samples"]["moeflux_likelihoods"]:
        for argument, response in zip(sample["arguments"], sample["resps"]):
            context, continuation = argument
            [[likelihood, is_greedy]] = response
            rows.append((context, continuation, float(likelihood), is_greedy))
    return rows


def expected(binary: Path, folder: Path, rows: list) -> list[float]:
    """The same by all logits."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(DEMO))
    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False)
    sequences, lengths = [], []
    for context, continuation, *_ in rows:
        n_spaces = len(context) - len(context.rstrip())
        if n_spaces:
            context, continuation = context[:-n_spaces], context[-n_spaces:] + continuation
        sequences.append(encode(context + continuation))
        lengths.append(len(encode(context)))
    return summed(binary, folder, sequences, lengths)


def summed(binary: Path, folder: Path, sequences: list[list[int]], lengths: list[int]) -> list[float]:
    """The log-likelihoods of what follows the first tokens of sequences, of which there are `lengths`, by all logits."""
    (folder / "tokens.json").write_text(json.dumps(sequences))
    out = folder / "logits.safetensors"
    subprocess.run([binary, "logits", "-m", DEMO, "--tokens", folder / "tokens.json", "--out", out], check=True,
                   stderr=subprocess.DEVNULL)
    content = out.read_bytes()
    [n_header] = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + n_header])
    sums = []
    for i, (tokens, start) in enumerate(zip(sequences, lengths)):
        about = header[f"logits.{i}"]
        begin, end = (8 + n_header + at for at in about["data_offsets"])
        logits, vocab = array("f", content[begin:end]), about["shape"][1]
        total = 0.0
        for at in range(start, len(tokens)):
            row = logits[(at - 1) * vocab:at * vocab]
            top = max(row)
            total += row[tokens[at]] - top - log(sum(exp(it - top) for it in row))
        sums.append(total)
    return sums


def main() -> None:
    binary = Path(sys.argv[1]).resolve()
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRANSFORMERS_OFFLINE="1", OPENAI_API_KEY="none")
    try:
        import lm_eval  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as err:
        print(f"SKIP: {err}")
        return
    with tempfile.TemporaryDirectory(prefix="moeflux-likelihoods-") as scratch:
        folder = Path(scratch)
        os.environ["HF_HOME"] = scratch
        server, url = start(binary)
        try:
            rows = measured(url, folder)
        finally:
            server.terminate()
            server.wait(60)
        wants = expected(binary, folder, rows)
    worst = max(abs(row[2] - want) for row, want in zip(rows, wants))
    for (context, continuation, got, is_greedy), want in zip(rows, wants):
        print(f"{got:12.6f} {want:12.6f} {is_greedy!s:5} {context!r} {continuation!r}")
    print(f"{len(rows)} log-likelihoods, at most {worst:.2e} apart")
    if len(rows) != sum(len(choices) for _, choices, _ in QUESTIONS) or worst > MOST:
        sys.exit(f"they may be {MOST} apart")


if __name__ == "__main__":
    main()
