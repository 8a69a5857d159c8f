"""Compares the ids and the decoding of the engine's tokenizer with published libraries.

    compare.py [--tokenize BINARY] [--count 1000] FOLDER...

A folder holds what a model's repository holds: tokenizer.json, tiktoken.model, vocab.json with merges.txt, or
tokenizer.model, and tokenizer_config.json. BINARY is the example of moeflux-engine `tokenize`
(`cargo build -p moeflux-engine --example tokenize`). Ends with 1 where anything differs.
"""

import argparse
import json
import subprocess
import sys

import references
import texts


def answers(binary, folder, all_texts):
    lines = "".join(json.dumps(text) + "\n" for text in all_texts)
    done = subprocess.run([binary, folder], input=lines, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{folder}: {done.stderr.strip()}")
    facts, *rest = map(json.loads, done.stdout.strip("\n").split("\n"))
    return facts, rest


def compare(binary, folder, count):
    """Prints what differs; how much that is."""
    reference = references.of(folder)
    all_texts = texts.texts(count, reference.special)
    facts, ours = answers(binary, folder, all_texts)
    wrong_ids, wrong_texts, n_ties, first = 0, 0, 0, None
    for text, our in zip(all_texts, ours, strict=True):
        want = reference.encode(text)
        if our["ids"] != want:
            if reference.is_as_good(our["ids"], want):
                n_ties += 1
                continue
            wrong_ids += 1
            first = first or ("ids", text, our["ids"], want)
        elif reference.decode and our["text"] != reference.decode(want):
            wrong_texts += 1
            first = first or ("text", text, our["text"], reference.decode(want))
    print(
        f"{folder}: {facts['files']}, {facts['vocab_size']} tokens, opened in {facts['seconds']:.2f} s; "
        f"of {count} texts {f'{n_ties} have other ids of the same score, ' if n_ties else ''}"
        f" {wrong_ids} have other ids and {wrong_texts} another decoding than {reference.name}"
    )
    if first:
        kind, text, got, want = first
        print(f"  first: {kind} of {text!r:.300}\n    are  {got!r:.300}\n    want {want!r:.300}")
    return wrong_ids + wrong_texts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenize", default="target/debug/examples/tokenize")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("folder", nargs="+")
    args = parser.parse_args()
    sys.exit(int(any([compare(args.tokenize, folder, args.count) for folder in args.folder])))


if __name__ == "__main__":
    main()
