#!/usr/bin/env bash
# Whether moeflux survives another program that takes memory all at once in the same control group, and still
# says the same. Needs root and a control group hierarchy (version 1 or 2) with the memory controller.
#
#   tools/memory/burst.sh [--limit MB] [--hog MB] [--runs N] [--when decode|prefill|load]
#                         [--binary FILE] [--model DIR] [--layers N] [--tokens N]
#
# Without --model it makes one: layers of the Qwen3.6-35B-A3B shape, four of which take 2.3 GiB. Exit codes: 0 passed,
# 1 failed, 77 where no control group can be made.
set -euo pipefail

limit=2200 hog=900 runs=5 moment=decode model='' layers=4 tokens=200
binary=$(dirname "$0")/../../target/release/moeflux
while [ $# -gt 0 ]; do
    case $1 in
    --limit) limit=$2 ;;
    --hog) hog=$2 ;;
    --runs) runs=$2 ;;
    --when) moment=$2 ;;
    --binary) binary=$2 ;;
    --model) model=$2 ;;
    --layers) layers=$2 ;;
    --tokens) tokens=$2 ;;
    *)
        echo "burst.sh: $1 is no option" >&2
        exit 2
        ;;
    esac
    shift 2
done

# shellcheck source=tools/memory/common.sh
source "$(dirname "$0")/common.sh"

# Takes $1 MB as fast as the kernel gives them, and keeps them for a while.
take_memory() {
    in_group python3 -c '
import sys, time
blocks = []
start = time.monotonic()
for _ in range(int(sys.argv[1]) // 25):
    blocks.append(bytearray(b"\1") * (25 << 20))
print(f"hog: {sys.argv[1]} MB in {time.monotonic() - start:.2f} s", file=sys.stderr)
time.sleep(float(sys.argv[2]))
' "$1" "$2"
}

peak() {
    cat "$group/memory.max_usage_in_bytes" "$group/memory.peak" 2>/dev/null | head -1 || true
}

if ! command -v python3 >/dev/null || ! make_group "$limit"; then
    echo "SKIP: no Python 3, or no control group with a memory limit can be made here"
    exit 77
fi
remove_group

make_model "$layers"
prompt="The quick brown fox jumps over the lazy dog. Once upon a time"
if [ "$moment" = prefill ]; then
    prompt=$(for _ in $(seq 120); do printf '%s ' "$prompt"; done)
    tokens=$((tokens / 10 + 1))
fi

# Runs the model in the group, its text into $1.
say() {
    in_group "$binary" run --model "$model" --temperature 0 --max-tokens "$tokens" --raw "$prompt" \
        >"$1" 2>"$1.err"
}

# Waits until the running model is where the burst is to come.
wait_for_moment() {
    local n=0
    case $moment in
    load) sleep 0.15 ;;
    prefill) sleep 1.5 ;;
    decode)
        # Its first text is out.
        while [ ! -s "$1" ] && [ $((n += 1)) -lt 600 ]; do sleep 0.1; done
        ;;
    esac
}

make_group "$limit"
say "$dir/alone" || {
    echo "FAIL: the model does not run in $limit MB by itself: $(tail -1 "$dir/alone.err")"
    exit 1
}
remove_group
n_failed=0
for run in $(seq "$runs"); do
    make_group "$limit"
    say "$dir/text" &
    model_pid=$!
    wait_for_moment "$dir/text"
    kill -0 "$model_pid" 2>/dev/null || echo "run $run: the model had ended before the burst" >&2
    take_memory "$hog" 3 2>"$dir/hog.err" &
    hog_pid=$!
    code=0 hog_code=0
    wait "$model_pid" || code=$?
    wait "$hog_pid" || hog_code=$?
    same=no
    cmp -s "$dir/alone" "$dir/text" && same=yes
    echo "run $run: model $code, hog $hog_code, same text $same, peak $(($(peak) >> 20)) MB," \
        "$(tail -1 "$dir/hog.err")"
    [ "$code$hog_code$same" = 00yes ] || n_failed=$((n_failed + 1))
    remove_group
done
if [ "$n_failed" -gt 0 ]; then
    echo "FAIL: $n_failed of $runs ($hog MB at once in $limit MB, during $moment)"
    exit 1
fi
echo "PASS: $runs of $runs ($hog MB at once in $limit MB, during $moment)"
