#!/usr/bin/env bash
# Compares the ids and the decoding of small vocabularies of every kind, made here, with those of the libraries that
# models are published for. Needs Python 3.10 with venv, and PyPI on the first run.
#   tools/ci/tokenizers.sh [TOKENIZE]     TOKENIZE: the example of moeflux-engine of that name, else it is built
#   tools/ci/tokenizers.sh --prepare      installs the libraries only
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tools/ci/venv.sh
source tools/ci/venv.sh

target=${CARGO_TARGET_DIR:-target}
tools=tools/tokenizers
venv=$target/tokenizers-venv
make_venv "$venv" "$tools/requirements.txt"
[ "${1-}" != --prepare ] || exit 0

binary=${1:-$target/release/examples/tokenize}
if [ $# -eq 0 ]; then
    cargo build --release --locked -p moeflux-engine --example tokenize
fi
small=$(mktemp -d)
trap 'rm -rf "$small"' EXIT
"$venv/bin/python" -B "$tools/make_small.py" "$small"
"$venv/bin/python" -B "$tools/compare.py" --tokenize "$binary" "$small"/*
