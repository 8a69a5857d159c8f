#!/usr/bin/env bash
# What a machine with a GPU is asked: do the kernels give what the specification says there, and
# how fast are they. It builds nothing; the programs come from `tools/gpu/build.sh`.
#
#   tools/gpu/measure.sh [MODEL_DIR]
set -euo pipefail
cd "$(dirname "$0")/bin"

echo "== devices"
./moeflux inspect --devices
echo "== speed of kernels"
./speed
echo "== conformance"
./conformance --test-threads=1 --nocapture
if [ $# -gt 0 ]; then
    echo "== decode of $1"
    ./moeflux run --device gpu --model "$1" --raw --max-tokens 64 --temperature 0 "Once upon a time" >/dev/null
fi
