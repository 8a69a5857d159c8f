#!/usr/bin/env bash
# Compares the ids and the decoding of small vocabularies of every kind, made here, with those of the libraries that
# models are published for. Needs Python 3.10 with venv, and PyPI on the first run.
#   tools/ci/tokenizers.sh [TOKENIZE]     TOKENIZE: the example of moeflux-text of that name, else it is built
set -euo pipefail
cd "$(dirname "$0")/../.."

target=${CARGO_TARGET_DIR:-target}
binary=${1:-$target/release/examples/tokenize}
if [ $# -eq 0 ]; then
    cargo build --release --locked -p moeflux-text --example tokenize
fi
tools=tools/tokenizers
venv=$target/tokenizers-venv
if [ ! -e "$venv/made" ] || [ "$tools/requirements.txt" -nt "$venv/made" ]; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$tools/requirements.txt"
    touch "$venv/made"
fi
small=$(mktemp -d)
trap 'rm -rf "$small"' EXIT
"$venv/bin/python" -B "$tools/make_small.py" "$small"
"$venv/bin/python" -B "$tools/compare.py" --tokenize "$binary" "$small"/*
