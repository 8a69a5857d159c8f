#!/usr/bin/env bash
# What a machine with a GPU is asked: do the kernels give what the specification says there, does
# every family agree with its reference, streamed as resident, does the device come back when it is
# closed, and how fast is all that. It builds nothing; the programs come from `tools/gpu/build.sh`.
#
#   tools/gpu/measure.sh [MODEL_DIR]
#
# With a model: decode with all experts on the device, which then chooses them itself, with half of
# them, and with a tenth; the last lines of each run must be the same text.
set -euo pipefail
cd "$(dirname "$0")"
export MOEFLUX_EXPECTED_GPU=1
export MOEFLUX_GOLDEN=${MOEFLUX_GOLDEN:-$PWD/../../crates/moeflux-engine/tests/golden}
cd bin

echo "== devices"
./moeflux inspect --devices
echo "== conformance"
./conformance --test-threads=1 --nocapture
echo "== devices opened and closed"
./reopen --nocapture
for round in 1 2 3; do
    echo "== families, round $round"
    ./goldens --test-threads=1 --nocapture
done
echo "== speed of kernels"
./speed
if [ $# -gt 0 ]; then
    bytes=$(du -sbL "$1" | cut -f1)
    for cache in "" "$((bytes / 2))" "$((bytes / 10))"; do
        echo "== decode of $1, bytes of experts on the device: ${cache:-all}"
        ./moeflux run --device gpu --model "$1" --raw --max-tokens 64 --temperature 0 \
            ${cache:+--device-cache "$cache"} "Once upon a time" >"text.${cache:-all}"
        ./moeflux bench --device gpu --model "$1" --prompt-tokens 512 --gen-tokens 64 --json \
            ${cache:+--device-cache "$cache"}
        sha256sum "text.${cache:-all}"
    done
fi
