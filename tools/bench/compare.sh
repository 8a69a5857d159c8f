#!/usr/bin/env bash
# Compares moeflux with llama.cpp on one GGUF file: both in turns, medians, as a table of Markdown.
#
#   tools/bench/compare.sh FILE.gguf --llama DIR [--moeflux PROGRAM] [--device cpu|gpu] [--threads N]
#                          [--prompts 512,2048] [--depth N] [--gen N] [--rounds N] [--json FILE.json]
#
# DIR has `llama-bench`: build it with CUDA, Vulkan or Metal for `--device gpu` (the default). Nothing else
# should run meanwhile. llama.cpp gets flash attention and the better of `-ub 512` and `-ub 2048`, on a GPU
# all layers there. Decode is that of tokens after `--depth` (128) tokens of prompt. `--json` keeps every
# figure of every round with the commands.
set -euo pipefail

usage() {
    sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

fail() {
    echo "compare.sh: $1" >&2
    exit 1
}

file='' llama='' moeflux=moeflux device=gpu threads=$(nproc 2>/dev/null || sysctl -n hw.physicalcpu)
prompts=512,2048 depth=128 gen=64 rounds=5 json=''
while [ $# -gt 0 ]; do
    case $1 in
        --llama | --moeflux | --device | --threads | --prompts | --depth | --gen | --rounds | --json)
            [ $# -ge 2 ] || fail "$1 needs a value"
            printf -v "${1#--}" '%s' "$2"
            shift 2
            ;;
        -*) usage ;;
        *)
            [ -z "$file" ] || usage
            file=$1
            shift
            ;;
    esac
done
[ -n "$file" ] && [ -n "$llama" ] || usage
[ -f "$file" ] || fail "$file: no such file"
[ -x "$llama/llama-bench" ] || fail "$llama/llama-bench: no such program; build it, or name its folder with --llama"
command -v "$moeflux" >/dev/null || fail "$moeflux: no such program; name it with --moeflux"
[ -z "$json" ] || { [ -d "$(dirname "$json")" ] && [ ! -d "$json" ]; } || fail "--json $json: no folder of that name, or a folder itself"
case $device in cpu | gpu) ;; *) fail "--device $device: give cpu or gpu" ;; esac
for number in "$threads" "$depth" "$gen" "$rounds" ${prompts//,/ }; do
    [[ $number =~ ^[1-9][0-9]*$ ]] || fail "$number: give whole numbers above 0"
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
layers=$([ "$device" = gpu ] && echo 99 || echo 0)

# Prints the command that failed, and the last line that it wrote.
run() {
    local out=$1
    shift
    "$@" >"$out" 2>"$scratch/log" || fail "$*: $(tail -n 1 "$scratch/log")"
}

for round in $(seq "$rounds"); do
    echo "round $round of $rounds" >&2
    for prompt in ${prompts//,/ }; do
        run "$scratch/moeflux-prompt-$prompt-$round.json" "$moeflux" bench -m "$file" --device "$device" --threads "$threads" \
            --prompt-tokens "$prompt" --ctx $((prompt + 64)) --gen-tokens 1 --repeat 1 --json
        for batch in 512 2048; do
            run "$scratch/llama-prompt-$prompt-$batch-$round.json" "$llama/llama-bench" -m "$file" -ngl "$layers" -t "$threads" \
                -fa 1 -p "$prompt" -n 0 -b 2048 -ub "$batch" -r 1 -o json
        done
    done
    run "$scratch/moeflux-decode-$gen-$round.json" "$moeflux" bench -m "$file" --device "$device" --threads "$threads" \
        --prompt-tokens "$depth" --ctx $((depth + gen + 64)) --gen-tokens "$gen" --repeat 1 --json
    run "$scratch/llama-decode-$gen-512-$round.json" "$llama/llama-bench" -m "$file" -ngl "$layers" -t "$threads" \
        -fa 1 -p 0 -n "$gen" -d "$depth" -r 1 -o json
done

python3 "$(dirname "$0")/compare_table.py" "$scratch" "$(basename "$file")" "$device" "$threads" "$depth" ${json:+"$json"}
