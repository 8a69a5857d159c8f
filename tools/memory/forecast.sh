#!/usr/bin/env bash
# How far the forecast of `plan` is from what `bench` measures: one model in memory and under limits in which
# it streams. Run it where nothing else runs. Needs root and control groups with the memory controller.
#
#   tools/memory/forecast.sh [--binary FILE] [--model DIR] [--factor F] [LIMIT_MB ...]
#
# Without --model it makes one: eight layers of the Qwen3.6-35B-A3B shape, 4.1 GiB. A limit of 0 is none; the
# default is 0 3000 2000 1200. Exit codes: 0 within the factor (1.3), 1 not, 77 where no group can be made.
set -euo pipefail

binary=$(dirname "$0")/../../target/release/moeflux
model='' factor=1.3
while [ $# -gt 0 ]; do
    case $1 in
    --binary) binary=$2 ;;
    --model) model=$2 ;;
    --factor) factor=$2 ;;
    *) break ;;
    esac
    shift 2
done
[ $# -gt 0 ] || set -- 0 3000 2000 1200

# shellcheck source=tools/memory/common.sh
source "$(dirname "$0")/common.sh"
make_model 8

limited() {
    if [ -n "$group" ]; then in_group "$@"; else "$@"; fi
}

code=0
for limit; do
    if [ "$limit" != 0 ]; then
        make_group "$limit" || {
            echo "SKIP: no control group with a memory limit can be made here"
            exit 77
        }
    fi
    limited "$binary" plan --model "$model" --json >"$dir/plan.json"
    limited "$binary" bench --model "$model" --gen-tokens 64 --repeat 3 --json >"$dir/bench.json" 2>/dev/null
    [ -z "$group" ] || remove_group
    python3 - "$dir" "$limit" "$factor" <<'CODE' || code=1
import json, sys
folder, limit, factor = sys.argv[1], sys.argv[2], float(sys.argv[3])
plan, bench = (json.load(open(f"{folder}/{name}.json")) for name in ("plan", "bench"))
rate, measured = plan["tok_s_streamed"], bench["decode_tok_s"]
ratio = max(rate / measured, measured / rate)
print(f"limit {limit} MB: forecast {rate:.1f} ({plan['tok_s_low']:.1f} to {plan['tok_s_high']:.1f}), "
      f"measured {measured:.1f} tok/s, factor {ratio:.2f}; products {plan['product_gb_s']:.1f}, "
      f"drive {plan['drive_gb_s']:.2f} GB/s")
sys.exit(ratio > factor)
CODE
done
exit $code
