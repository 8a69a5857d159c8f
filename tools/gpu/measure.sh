#!/usr/bin/env bash
# What a machine with a GPU is asked, and nothing else is needed there: do the kernels give what the
# specification says, does every family agree with its reference, streamed as resident, does the
# device come back when it is closed or its process is killed, and how fast is all that. It builds
# nothing; the programs come from `tools/gpu/build.sh`.
#
#   tools/gpu/measure.sh [checks] [kernels] [model]      all parts where none is named
#
# MODEL is the directory of a model; where it is not set, random weights in the shape of
# Qwen3.6-35B-A3B are written to SCRATCH (18 GB, [default: /tmp/moeflux-gpu]) and kept there.
set -euo pipefail
cd "$(dirname "$0")"
export MOEFLUX_EXPECTED_GPU=1
export MOEFLUX_GOLDEN=${MOEFLUX_GOLDEN:-$PWD/../../crates/moeflux-engine/tests/golden}
scratch=${SCRATCH:-/tmp/moeflux-gpu}
mkdir -p "$scratch"
# What was measured here before would hide how long measuring takes.
export MOEFLUX_CACHE=$scratch/cache-$$
cd bin

say() { echo "== $*"; }

# The same text whatever lies where, and after what.
text() {
    ./moeflux run --device gpu --model "$model" --raw --max-tokens 64 --temperature 0 --quiet "$@" \
        "Once upon a time"
}
check_text() {
    if [ "$(text "$@")" != "$wanted" ]; then
        echo "ANOTHER TEXT with $*" >&2
        exit 1
    fi
}

bench() { ./moeflux bench --device gpu --model "$model" --gen-tokens 128 --repeat 3 "$@"; }

checks() {
    say conformance
    ./conformance --test-threads=1 --nocapture
    say devices opened and closed
    ./reopen --nocapture
    for round in 1 2 3; do
        say "families, round $round"
        ./goldens gpu --test-threads=1 --nocapture
    done
}

kernels() {
    say kernels by the shapes of A3B, A17B and Cogito
    ./speed
    say the same with measured layouts
    ./speed --tuned
}

model() {
    model=${MODEL:-$scratch/qwen3.6-35b-a3b}
    if [ ! -e "$model" ]; then
        say "random weights, $model"
        ./moeflux synth --shape qwen3.6-35b-a3b --out "$model"
    fi
    experts=$(./moeflux inspect --json --model "$model" | grep -o '"expert_bytes": [0-9]*' |
        grep -o '[0-9]*$')
    say "products of $model; the first time they are measured, then they are known"
    ./moeflux bench --kernels --device gpu --model "$model" --prompt-tokens 512 --ctx 1024
    wanted=$(text)
    say all experts on the device: 512 tokens, and 4,096 in one step
    bench --prompt-tokens 512
    bench --prompt-tokens 4096 --chunk 4096 --json
    for part in 2 10; do
        say "one in $part of the experts on the device, all in memory"
        check_text --device-cache $((experts / part))
        bench --prompt-tokens 512 --device-cache $((experts / part))
        say "one in $part of the experts on the device, a quarter in memory, the others on the drive"
        limits=(--device-cache $((experts / part)) --expert-cache $((experts / 4))
            --expert-io direct)
        check_text "${limits[@]}"
        bench --prompt-tokens 512 "${limits[@]}" --cold --json
    done
    say killed in the middle of a token
    for _ in 1 2 3; do
        ./moeflux run --device gpu --model "$model" --raw --max-tokens 100000 --temperature 0 \
            --ctx 4096 --quiet "Once upon a time" >"$scratch/killed" 2>/dev/null &
        # Its first words are out.
        for _ in $(seq 600); do
            [ -s "$scratch/killed" ] && break
            sleep 0.1
        done
        kill -9 $!
        wait $! 2>/dev/null || true
    done
    check_text
    echo "the same text afterwards"
}

say devices
./moeflux inspect --devices
for part in "${@:-checks kernels model}"; do
    # Several words where none was named.
    for name in $part; do "$name"; done
done
say devices, with what was measured
./moeflux inspect --devices
