"""Prints the table of tools/bench/compare.sh, from the folder with what both programs printed.

    compare_table.py FOLDER MODEL DEVICE THREADS DEPTH [FILE.json]

Files are called PROGRAM-WHAT-TOKENS[-BATCH]-ROUND.json. Of llama.cpp's batch sizes the one with the better median
counts.
"""

import json
import pathlib
import re
import statistics
import sys

NAME = re.compile(r"(moeflux|llama)-(prompt|decode)-(\d+)(?:-(\d+))?-(\d+)\.json")


def rate(program, what, text):
    """Tokens a second, and what the program says of the machine."""
    data = json.loads(text)
    if program == "llama":
        return data[0]["avg_ts"], {key: data[0].get(key) for key in ("cpu_info", "gpu_info", "build_commit", "backends")}
    key = "prefill_tok_s" if what == "prompt" else "decode_tok_s"
    gpu = data.get("gpu") or {}
    return data[key], {"gpu": gpu.get("name"), "isa": data.get("isa"), "matrix_units": gpu.get("matrix_units")}


def read(folder):
    """Rates by program, work and batch size, in the order of rounds."""
    rates, machine = {}, {}
    for path in sorted(folder.iterdir()):
        match = NAME.fullmatch(path.name)
        if match is None:
            continue
        program, what, tokens, batch, _ = match.groups()
        value, facts = rate(program, what, path.read_text())
        machine.setdefault(program, facts)
        rates.setdefault((program, what, int(tokens)), {}).setdefault(int(batch or 0), []).append(value)
    return rates, machine


def shown(values):
    middle = statistics.median(values)
    digits = 0 if middle >= 100 else 1
    of = lambda value: f"{value:,.{digits}f}"
    return of(middle) if len(values) == 1 else f"{of(middle)} ({of(min(values))}–{of(max(values))})"


def main():
    folder, model, device, threads, depth, *out = sys.argv[1:]
    rates, machine = read(pathlib.Path(folder))
    llama, own = machine["llama"], machine["moeflux"]
    card = own["gpu"] if device == "gpu" else None
    print(f"{model}; {card or llama['cpu_info']}, {threads} threads; llama.cpp {llama['build_commit']} ({llama['backends']})\n")
    print("| work | moeflux | llama.cpp | times |")
    print("|---|---:|---:|---:|")
    rows = []
    for program, what, tokens in sorted(rates, key=lambda key: (key[1] == "prompt", key[2])):
        if program != "moeflux":
            continue
        ours = rates[program, what, tokens][0]
        batches = rates["llama", what, tokens]
        batch, theirs = max(batches.items(), key=lambda one: statistics.median(one[1]))
        times = statistics.median(ours) / statistics.median(theirs)
        name = f"prompt of {tokens:,}" if what == "prompt" else f"decode after {int(depth):,}"
        print(f"| {name} | {shown(ours)} | {shown(theirs)} | {times:.2f} |")
        rows.append({"work": name, "moeflux": ours, "llama.cpp": theirs, "ubatch": batch, "times": times})
    if out:
        facts = {"model": model, "device": device, "threads": int(threads), "machine": machine, "rows": rows}
        pathlib.Path(out[0]).write_text(json.dumps(facts, indent=2) + "\n")


main()
