#!/usr/bin/env python3
"""Checks the results that users shared (docs/results/*.json) and draws their table.

    tools/results/check.py             check all results, the table and the list in the program
    tools/results/check.py --write     write the table and the list
    tools/results/check.py FILE...     check files before they are added

Needs Python 3.9 and nothing else. The schema is docs/results/schema.json; what of JSON Schema it uses is
what this program knows, and an unknown keyword is an error.
"""

import argparse
import datetime
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs/results"
README = RESULTS / "README.md"
LIST = ROOT / "crates/moeflux-cli/src/results.json"
BEGIN = "<!-- table: tools/results/check.py --write -->\n"
END = "<!-- end -->\n"
LONGEST = 1 << 16
NAME = re.compile(r"[a-z0-9][-a-z0-9._]*\.json")

NOTES = {"$schema", "title", "description", "$defs"}
KEYWORDS = NOTES | {
    "type", "const", "enum", "required", "properties", "additionalProperties", "pattern", "maxLength",
    "minimum", "maximum", "exclusiveMinimum", "$ref",
}


def is_type(value, name):
    if name in ("number", "integer"):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return name == "number" or isinstance(value, int)
    types = {"object": dict, "string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, types[name])


def shown(value):
    """A number for a message."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"a number of {len(text)} characters"


def violations(value, schema, root, at="result"):
    """What of a value is not as its schema says."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    unknown = set(schema) - KEYWORDS
    if unknown:
        raise SystemExit(f"{RESULTS / 'schema.json'}: keywords that this program does not know: {unknown}")
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(is_type(value, name) for name in types):
        yield f"{at} is {json.dumps(value)[:60]}, not of type {' or '.join(types)}"
        return
    # 1.0 and true are equal to 1 in Python.
    if "const" in schema and (value != schema["const"] or type(value) is not type(schema["const"])):
        yield f"{at} is {json.dumps(value)[:60]}, not {schema['const']}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at} is {json.dumps(value)[:60]}, not one of {', '.join(schema['enum'])}"
    if isinstance(value, str):
        if not value.isprintable():
            yield f"{at} has characters that cannot be printed"
        if not re.search(schema.get("pattern", ""), value):
            yield f"{at} is {json.dumps(value)[:100]}, which is not of the form {schema['pattern']}"
        if len(value) > schema.get("maxLength", len(value)):
            yield f"{at} has more than {schema['maxLength']} characters"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if "minimum" in schema and not value >= schema["minimum"]:
            yield f"{at} is {shown(value)}, less than {schema['minimum']}"
        if "exclusiveMinimum" in schema and not value > schema["exclusiveMinimum"]:
            yield f"{at} is {shown(value)}, not more than {schema['exclusiveMinimum']}"
        if "maximum" in schema and not value <= schema["maximum"]:
            yield f"{at} is {shown(value)}, more than {schema['maximum']}"
    if isinstance(value, dict):
        known = schema.get("properties", {})
        for name in schema.get("required", []):
            if name not in value:
                yield f"{at}.{name} is missing"
        for name, part in value.items():
            if name in known:
                yield from violations(part, known[name], root, f"{at}.{name}")
            elif schema.get("additionalProperties") is False:
                yield f"{at} has a field {json.dumps(name)[:60]} that is not in the schema"


def improbable(one):
    """What cannot be, though each field alone could."""
    try:
        day = datetime.date.fromisoformat(one["date"])
        if day > datetime.datetime.now(datetime.timezone.utc).date() + datetime.timedelta(days=1):
            yield f"the date {day} is in the future"
    except ValueError:
        yield f"there is no day {one['date']}"
    for name in ("decode_tok_s", "prompt_tok_s"):
        rate = one["result"][name]
        if not rate["min"] <= rate["median"] <= rate["max"]:
            yield f"{name}: the median is not between the extremes"
    model, run, drive = one["model"], one["run"], one["drive"]
    if model["experts_per_token"] > model["experts"]:
        yield "a token has more experts than there are"
    if run["prompt_tokens"] + run["gen_tokens"] > run["context"]:
        yield "more tokens than the context has room for"
    per_token = model["expert_bytes"] * model["experts_per_token"] / model["experts"]
    tok_s = one["result"]["decode_tok_s"]["median"]
    # Weights of small models stay in caches, and those of drafted tokens are read once for several.
    if one["hardware"]["gpu"] is None and one["memory_gb_s"] > 0:
        if tok_s * per_token > 20 * one["memory_gb_s"] * 1e9:
            yield "decoding read experts twenty times faster than memory is"
    if drive and run["expert_io"] == "direct":
        read = tok_s * per_token * (1 - one["result"]["hit_rate"])
        if read > 3 * drive["gb_s"] * 1e9:
            yield "decoding read experts three times faster than the drive is"


def printable(path):
    return "".join(c if c.isprintable() else "?" for c in str(path))


def read(path):
    """A result, and what is wrong with its file."""
    schema = json.loads((RESULTS / "schema.json").read_text())

    def refuse(name):
        raise ValueError(f"{name} is no number of JSON")

    def unique(pairs):
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            raise ValueError("a field stands there twice")
        return dict(pairs)

    try:
        if path.exists() and not path.is_file():
            return None, ["not a file"]
        with path.open("rb") as file:
            data = file.read(LONGEST + 1)
        if len(data) > LONGEST:
            return None, [f"longer than {LONGEST} bytes"]
        one = json.loads(data.decode(), parse_constant=refuse, object_pairs_hook=unique)
    except (OSError, ValueError, RecursionError) as err:
        return None, [str(err)]
    wrong = list(violations(one, schema, schema))
    return one, wrong or list(improbable(one))


def rate(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def row(one):
    hardware, model, run, result = one["hardware"], one["model"], one["run"], one["result"]
    machine = f"{hardware['cpu']}, {hardware['cores']} cores"
    if hardware["gpu"]:
        machine = f"{hardware['gpu']}, {machine}"
    drive = f"{one['drive']['gb_s']:.2g} GB/s" if one["drive"] else ""
    rh = "" if result["rh"] is None else f"{result['rh']:.2f}"
    return [
        model["shape"] or f"`{model['family']}`, {model['layers']} layers",
        model["format"],
        machine,
        f"{hardware['memory_gib']} GiB",
        drive,
        f"{100 * run['cached_share']:.0f} %",
        str(run["context"]),
        rate(result["decode_tok_s"]["median"]),
        rate(result["prompt_tok_s"]["median"]),
        rh,
        f"{one['moeflux']}, {one['date']}",
    ]


def table(results):
    if not results:
        return "\nThere are none yet.\n\n"
    head = [
        "model", "format", "machine", "memory", "drive", "experts cached", "context", "decode, tok/s",
        "prompt, tok/s", "`rh`", "version",
    ]
    sort = sorted(results, key=lambda one: (str(one["model"]["shape"]), -one["result"]["decode_tok_s"]["median"]))
    lines = [head, ["---"] * len(head)] + [row(one) for one in sort]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def with_table(text, made):
    head, _, rest = text.partition(BEGIN)
    _, mark, tail = rest.partition(END)
    if not mark:
        raise SystemExit(f"{README}: the marks of the table are missing")
    return head + BEGIN + made + END + tail


def main():
    parser = argparse.ArgumentParser(description="Checks results that users shared.")
    parser.add_argument("--write", action="store_true", help="write the table and the list in the program")
    parser.add_argument("files", nargs="*", type=Path, help="check these files alone")
    args = parser.parse_args()
    if args.write and args.files:
        parser.error("--write takes no files: add them to docs/results first")
    paths = args.files or sorted(path for path in RESULTS.glob("*.json") if path.name != "schema.json")
    results, n_wrong = [], 0
    for path in paths:
        one, wrong = read(path)
        n_wrong += bool(wrong)
        for what in wrong:
            print(f"{printable(path)}: {what}", file=sys.stderr)
        results.append(one)
    # The name of a file is as untrusted as what is in it.
    for path in () if args.files else paths:
        if not NAME.fullmatch(path.name):
            print(f"{path.parent}: {json.dumps(path.name)} is not named SHAPE-PROCESSOR-MEMORY.json in small letters",
                  file=sys.stderr)
            n_wrong += 1
    if n_wrong:
        sys.exit(f"{n_wrong} of {len(paths)} results are refused")
    if args.files:
        print(f"{len(paths)} results are right")
        return
    made = {
        README: with_table(README.read_text(), table(results)),
        LIST: json.dumps(results, indent=1, ensure_ascii=False) + "\n",
    }
    for path, text in made.items():
        if args.write:
            path.write_text(text)
        elif path.read_text() != text:
            sys.exit(f"{path} is not current: run tools/results/check.py --write")
    print(f"{len(paths)} results are right")


if __name__ == "__main__":
    main()
