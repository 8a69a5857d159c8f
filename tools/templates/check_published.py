#!/usr/bin/env python3
"""Renders every template of a folder with jinja2, set up as transformers does, and with the product.

    check_published.py MOEFLUX FOLDER [--table]

FOLDER holds NAME.jinja files. Each is rendered on the conversations of conversations.py, with the arguments
of calls as an object, or, where the template refuses that, as text. Fails where one renders a text and the
other does not, or where the texts differ, unless that is known. `--table` prints a row of Markdown for each template.
"""

import copy
import json
import sys
from pathlib import Path

import compare
from conversations import CONVERSATIONS

# Template and conversation: see "else" in docs/reference/chat-templates.md.
KNOWN = {("language-tour", "parts")}

BEGIN, END = "<|begin|>", "<|end|>"


def with_text_arguments(variables):
    variables = copy.deepcopy(variables)
    for message in variables["messages"]:
        for call in message.get("tool_calls", []):
            function = call["function"]
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return variables


def shaped(render, variables):
    """The variables as the template takes them, and what it makes of them."""
    variables = {"documents": None, "bos_token": BEGIN, "eos_token": END, **variables}
    text, reason = compare.result(lambda: render(variables))
    if text is None:
        other = with_text_arguments(variables)
        text_of_other, _ = compare.result(lambda: render(other))
        if text_of_other is not None:
            return other, text_of_other, ""
    return variables, text, reason


def first_difference(want, got):
    at = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
    start = max(at - 30, 0)
    return f"at {at}: {want[start:at + 40]!r} against {got[start:at + 40]!r}"


def check(path, env, product):
    """Counts of equal texts and of equal refusals, and all differences that are not known."""
    source = path.read_text(encoding="utf-8")
    equal, refused, differences = 0, 0, []
    for name, conversation in CONVERSATIONS.items():
        variables, want, why = shaped(lambda v: compare.reference(env, source, v), conversation)
        got, why_not = compare.result(lambda: product.render(source, variables))
        if (path.stem, name) in KNOWN:
            if want == got:
                differences.append(f"{name}: is known to differ, and does not")
        elif want == got:
            equal += want is not None
            refused += want is None
        elif want is None:
            differences.append(f"{name}: jinja2 refuses it ({why.splitlines()[0]}), the product gives {got[:60]!r}")
        elif got is None:
            differences.append(f"{name}: the product refuses it: {why_not.splitlines()[0]}")
        else:
            differences.append(f"{name}: {first_difference(want, got)}")
    return equal, refused, differences


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--table"]
    if len(arguments) != 2:
        sys.exit(__doc__.strip())
    paths = sorted(Path(arguments[1]).glob("*.jinja"))
    if not paths:
        sys.exit(f"{arguments[1]} holds no *.jinja files")
    env, product = compare.reference_environment(), compare.Product(arguments[0])
    total, n_different = 0, 0
    for path in paths:
        equal, refused, differences = check(path, env, product)
        total += equal + refused
        n_different += len(differences)
        if "--table" in sys.argv:
            print(f"| {path.stem} | {equal} | {refused} | {len(differences)} |")
        for difference in differences:
            print(f"{path.name}: {difference}")
    product.close()
    print(f"{len(paths)} templates, {len(CONVERSATIONS)} conversations each: {total} equal, {n_different} differ")
    sys.exit(1 if n_different else 0)


if __name__ == "__main__":
    main()
