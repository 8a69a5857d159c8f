#!/bin/sh
# Runs every fuzz target, or those that are named, for some seconds each; the first that fails ends it.
# Usage: fuzz/run.sh [SECONDS] [TARGET...]
# Needs cargo-fuzz (cargo install cargo-fuzz). Inputs that are found are kept while a target runs.
set -eu
cd "$(dirname "$0")"
seconds=${1:-60}
[ $# -eq 0 ] || shift
# The stable compiler instruments as well as a nightly one, if it is told that it may.
export RUSTC_BOOTSTRAP=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Deep and growing templates, nested JSON: too large to be committed, short to describe.
repeat() { awk -v text="$1" -v n="$2" 'BEGIN { for (i = 0; i < n; i++) printf "%s", text }'; }
deep_seeds() {
    case $1 in
    chat_template)
        { printf '{{ '; repeat '(' 2000; printf 1; repeat ')' 2000; printf ' }}'; } > "$2/parentheses"
        { printf '{{ 1'; repeat '+1' 5000; printf ' }}'; } > "$2/sum"
        repeat '{% if 1 %}' 500 > "$2/ifs"
        printf '{%% set x = [0] %%}{%% for i in range(40) %%}{%% set x = x + x %%}{%% endfor %%}' > "$2/doubling"
        printf '{%% macro m() %%}{{ m() }}{%% endmacro %%}{{ m() }}' > "$2/recursion"
        ;;
    schema_grammar | conversation | request_body | pack_journal | shard_index)
        for first in '' 0 1 2 3; do
            { printf '%s' "$first"; repeat '[' 200; repeat ']' 200; } > "$2/arrays$first"
            { printf '%s' "$first"; repeat '{"a":' 120; printf 1; repeat '}' 120; } > "$2/objects$first"
        done
        ;;
    esac
}

targets=${*:-$(cargo fuzz list)}
for target in $targets; do
    found=$work/$target
    mkdir -p "$found"
    deep_seeds "$target" "$found"
    [ ! -d "seeds/$target" ] || cp "seeds/$target"/* "$found"
    echo "== $target"
    cargo fuzz run --sanitizer none "$target" "$found" -- \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1
done
