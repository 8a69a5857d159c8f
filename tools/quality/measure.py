#!/usr/bin/env python3
"""What fewer bits for the experts cost the demo model: packs its BF16 checkpoint in several ways and measures each against the 8-bit model.

    python3 tools/quality/measure.py MOEFLUX CHECKPOINT DATA WORK [VARIANT ...]

DATA holds val.bin, qa.json and tokenizer.json as tools/demo-model makes them (needs the `tokenizers` package); WORK is for containers and
results. Measured: the divergence from the 8-bit model and the perplexity on documentation that the model was not trained on, the
divergence on conversations, and the share of right greedy answers to held-out sums and to requests for a tool (valid JSON, right tool,
right argument). Prints a Markdown table; results are kept in WORK/results.json, so that a second run measures what is missing.
"""
import array
import itertools
import json
import random
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "demo-model"))
from prepare_tokens import METHOD_QUESTIONS, SUM_QUESTIONS, TOOLS, TOOLS_HEAD, is_held_out, tool_definition  # noqa: E402

CALIBRATION_TOKENS, MEASURED_TOKENS = 24_000, 4_000
N_CALIBRATION_CHATS, N_CALIBRATION_CALLS, N_CALIBRATION_SUMS = 300, 36, 40
N_CHATS, N_TOOL_CALLS, N_SUMS = 12, 18, 20

# Name: flags of `pack`; {i} is the importance file.
VARIANTS = {"8": "--bits 8"}
for bits in (4, 3, 2):
    common = f"--bits {bits} --resident-bits 8"
    VARIANTS[f"{bits} nearest"] = f"{common} --rounding nearest"
    VARIANTS[f"{bits} fitted"] = common
    VARIANTS[f"{bits} importance"] = f"{common} --importance {{i}}"
VARIANTS["3 importance, down 4"] = "--bits 3 --down-bits 4 --resident-bits 8 --importance {i}"
VARIANTS["2 importance, groups of 32"] = "--bits 2 --resident-bits 8 --group-size 32 --importance {i}"
VARIANTS["2 importance, down 3"] = "--bits 2 --down-bits 3 --resident-bits 8 --importance {i}"


def tool_cases(rng, part, n):
    """System text, request, tool, argument's name and value; calibration and measurement have values of their own."""
    for i in range(n):
        name = list(TOOLS)[i % len(TOOLS)]
        argument, values, requests = TOOLS[name]
        value = rng.choice(values[part::2])
        names = rng.sample(list(TOOLS), rng.randint(1, 3))
        if name not in names:
            names[0] = name
        system = TOOLS_HEAD + "\n".join(tool_definition(it) for it in names) + "\n</tools>"
        yield system, rng.choice(requests).format(value), name, argument, value


def sum_cases(rng, held_out):
    while True:
        a, b = rng.randint(0, 99), rng.randint(0, 99)
        if is_held_out(a, b) == held_out:
            op = rng.choice("+-")
            yield rng.choice(SUM_QUESTIONS).format(a=a, op=op, b=b), str(a + b if op == "+" else a - b)


def call_text(name, argument, value):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": {argument: value}}) + "\n</tool_call>"


def call_chats(rng, part, n):
    for system, request, *call in tool_cases(rng, part, n):
        yield [("system", system), ("user", request), ("assistant", call_text(*call))]


def chats(rng, qa, n):
    for path, answer, kind in rng.sample([it for it in qa if it[2] == "method"], n):
        question = rng.choice(METHOD_QUESTIONS).format(path=path)
        yield [("user", question), ("assistant", re.sub(r"\n ", "\n", answer).strip())]


def write_chats(path, conversations):
    lines = [json.dumps({"messages": [dict(role=r, content=c) for r, c in it]}) for it in conversations]
    path.write_text("\n".join(lines) + "\n")


def prepare(data, work):
    from tokenizers import Tokenizer

    tokens = array.array("H", (data / "val.bin").read_bytes())
    text = Tokenizer.from_file(str(data / "tokenizer.json")).decode
    (work / "calibration.txt").write_text(text(list(tokens[:CALIBRATION_TOKENS])))
    (work / "measured.txt").write_text(text(list(tokens[CALIBRATION_TOKENS:][:MEASURED_TOKENS])))
    qa = json.loads((data / "qa.json").read_text())
    rng = random.Random(1)
    sums = [[("user", q), ("assistant", a)] for q, a in itertools.islice(sum_cases(rng, False), N_CALIBRATION_SUMS)]
    write_chats(work / "calibration.jsonl", [*chats(rng, qa, N_CALIBRATION_CHATS), *call_chats(rng, 0, N_CALIBRATION_CALLS), *sums])
    rng = random.Random(2)
    write_chats(work / "measured.jsonl", [*chats(rng, qa, N_CHATS), *call_chats(rng, 1, N_TOOL_CALLS)])


def run(*args):
    done = subprocess.run([str(it) for it in args], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, args))}: {done.stderr}")
    return done.stdout


def numbers(text):
    return [float(it) for it in re.findall(r"[-+]?\d+\.\d+", text)]


def answers(moeflux, model):
    ask = lambda prompt, *flags: run(moeflux, "run", "-q", "--model", model, "--temperature", 0, "--max-tokens", 40, *flags, prompt).strip()
    rng = random.Random(2)
    sums = sum(ask(q) == a for q, a in itertools.islice(sum_cases(rng, True), N_SUMS))
    rng, valid, right = random.Random(2), 0, 0
    for system, request, name, argument, value in tool_cases(rng, 1, N_TOOL_CALLS):
        found = re.fullmatch(r"<tool_call>\n(.*)\n</tool_call>", ask(request, "--system", system), re.S)
        try:
            call = json.loads(found[1]) if found else None
        except ValueError:
            call = None
        valid += call is not None
        right += call == {"name": name, "arguments": {argument: value}}
    return sums, valid, right


def measure(moeflux, checkpoint, work, flags):
    model = work / "model"
    packed = run(moeflux, "pack", checkpoint, model, "--force", *flags.format(i=work / "importance").split())
    experts = sum(it.stat().st_size for it in (model / "packed_experts").iterdir())
    against = ("--against", work / "reference", "--window", 512)
    own, reference, kl, same = numbers(run(moeflux, "perplexity", "--model", model, "--text", work / "measured.txt", *against))[:4]
    chat = numbers(run(moeflux, "perplexity", "--model", model, "--text", work / "measured.jsonl", *against))
    sums, valid, right = answers(moeflux, model)
    error = re.search(r"experts.* ([\d.]+) %", packed)
    return dict(mb=experts / 1e6, error=error and float(error[1]), kl=kl, same=same, perplexity=own, reference=reference,
                chat_kl=chat[2], chat_same=chat[3], sums=sums, json=valid, tool=right)


def main():
    moeflux, checkpoint, data, work = (Path(it).resolve() for it in sys.argv[1:5])
    work.mkdir(exist_ok=True)
    if not (work / "measured.jsonl").exists():
        prepare(data, work)
    if not (work / "reference").exists():
        run(moeflux, "pack", checkpoint, work / "reference", "--bits", 8)
    if not (work / "importance").exists():
        texts = [flag for it in ("txt", "jsonl") for flag in ("--text", work / f"calibration.{it}")]
        run(moeflux, "calibrate", "--model", work / "reference", *texts, "--out", work / "importance", "--window", 512)
    kept = work / "results.json"
    results = json.loads(kept.read_text()) if kept.exists() else {}
    for name in sys.argv[5:] or VARIANTS:
        if name not in results:
            results[name] = measure(moeflux, checkpoint, work, VARIANTS[name])
            kept.write_text(json.dumps(results, indent=1))
            print(name, results[name], file=sys.stderr, flush=True)
    print("| experts | MB | error | KL | same choice | perplexity | KL, chat | sums | valid JSON | right call |\n|---|" + "---:|" * 9)
    for name, it in results.items():
        print(f"| {name} | {it['mb']:.2f} | {it['error'] or 0:.1f} % | {it['kl']:.4f} | {it['same']:.1f} % | {it['perplexity']:.2f} "
              f"| {it['chat_kl']:.4f} | {it['sums']}/{N_SUMS} | {it['json']}/{N_TOOL_CALLS} | {it['tool']}/{N_TOOL_CALLS} |")


if __name__ == "__main__":
    main()
