#!/usr/bin/env python3
"""Renders expressions.txt with jinja2, set up as transformers does, and with the product, and compares.

    check_expressions.py MOEFLUX

Fails on a difference that known_differences.txt does not list, and on a listed one that is gone unless
its reason begins with "by chance". Both
refusing a template is no difference, whatever they say. Needs jinja2 (requirements.txt).
"""

import json
import sys
from pathlib import Path

import compare

HERE = Path(__file__).resolve().parent


def lines(name):
    """The lines of a file without comments and empty ones; a "#" in a template is none."""
    for line in (HERE / name).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(("# ", "## ")) and line != "#":
            yield line


def as_template(line):
    source = line.replace("⏎", "\n").replace("␍", "\r")
    is_template = any(mark in source for mark in ("{{", "{%", "{#")) or "\n" in source or "\r" in source
    return source if is_template else "{{ " + source + " }}"


def shown(text, reason):
    return f"refused ({reason.splitlines()[0] if reason else ''})" if text is None else repr(text)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    context = json.loads((HERE / "context.json").read_text(encoding="utf-8"))
    known = dict(line.split(" ## ", 1) for line in lines("known_differences.txt"))
    env, product = compare.reference_environment(), compare.Product(sys.argv[1])
    count, different = 0, set()
    wrong = []
    for line in lines("expressions.txt"):
        count += 1
        source = as_template(line)
        want, why = compare.result(lambda: compare.reference(env, source, context))
        got, why_not = compare.result(lambda: product.render(source, context))
        if want == got:
            continue
        different.add(line)
        if line not in known:
            wrong.append(f"{line}\n    jinja2:  {shown(want, why)}\n    moeflux: {shown(got, why_not)}")
    product.close()
    gone = {line for line in known.keys() - different if not known[line].startswith("by chance")}
    for line in gone:
        wrong.append(f"{line}\n    is listed as a difference, and there is none")
    print("\n".join(wrong), end="\n" if wrong else "")
    print(f"{count} expressions, {len(different)} differ, {len(known)} are listed as different")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
