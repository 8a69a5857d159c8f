#!/usr/bin/env bash
# Runs Metal's texts of kernels on the processor, see README.md here.
#
#     tools/metal/check.sh [--cases FOLDER] [--keep FOLDER]
#
# Needs clang++ (CXX names another one) on x86-64, and the tests of moeflux-wgpu with a Vulkan device, which write the
# cases; with --cases those of a folder are taken, which another device wrote. --keep leaves all in a folder.
# Exits with 77 where there is no clang++.
set -euo pipefail
cd "$(dirname "$0")/../.."

cxx=${CXX:-clang++}
work='' given=''
while [ $# -gt 0 ]; do
    case $1 in
    --cases) given=$(realpath "$2") ;;
    --keep) mkdir -p "$2" && work=$(realpath "$2") ;;
    *) echo "unknown: $1" >&2 && exit 2 ;;
    esac
    shift 2
done
command -v "$cxx" >/dev/null && [ "$(uname -m)" = x86_64 ] || exit 77
if [ -z "$work" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
cases=${given:-$work/cases}

write_cases() {
    rm -rf "$cases"
    mkdir -p "$cases"
    MOEFLUX_METAL_CASES=$cases cargo test --workspace --profile ci --locked --lib --quiet -- with_the_specification \
        tests::{activation,attention,chain,coop_matrix,grouped,mixers,quantize}:: >"$work/write.log" 2>&1 || {
        cat "$work/write.log"
        exit 1
    }
}

# What all is compiled with: in Metal 1.0 is a float.
build() {
    "$cxx" -std=c++17 -w -march=native -fsigned-char -Xclang -cl-single-precision-constant \
        -I tools/metal/include -I tools/metal "$@"
}

# compile STRICT-OR-FAST PROGRAM: as IEEE says, or as Metal does unless told otherwise.
compile() {
    local maths=(-ffp-contract=off)
    # Apple's square roots and divisions are no estimates of this processor.
    [ "$1" = strict ] || maths=(-ffast-math -ffp-contract=fast -mrecip=none)
    build -O1 "${maths[@]}" -c "$cases/$2.cpp" -o "$work/$1/$2.o" 2>"$work/$1/$2.log" ||
        printf '%s %s does not compile: %s\n' "$1" "$2" "$(grep -m 1 error: "$work/$1/$2.log")"
}

# run_case KERNEL PROGRAM CASE LANES INPUTS STRICT-OR-FAST CONDITION...
# Prints a line for each condition: kernel, program, lanes, inputs, condition, outcome, details.
run_case() {
    local name="$1 $2 $4 $5" case=$3 program=$2 lanes=$4 how=$6 code=0 out
    shift 6
    out=$(timeout 120 "$work/run-$how" "$program" "$cases/$case" "$lanes" "$@" 2>&1) || code=$?
    [ "$code" = 0 ] || out="$how FAILED exit code $code ${out//$'\n'/ }"
    while IFS= read -r line; do printf '%s %s\n' "$name" "$line"; done <<<"$out"
}
export cxx cases work
export -f build compile run_case

# Differences that are meant: a kernel, inputs and a condition in known.txt, where `*` is any condition.
mark_known() {
    awk 'FNR == NR { if ($0 !~ /^#/ && NF) known[$1, $2, $3]; next }
        $6 == "FAILED" && !/ threads were| absent lanes| wrote behind/ &&
            ((($1, $4, $5) in known) || (($1, $4, "*") in known)) { $6 = "known" }
        { print }' tools/metal/known.txt "$work/raw" >"$work/results"
}

# By kernel, and by inputs and condition.
table() {
    awk '
        function row(name, a, b) {
            printf "%-28s %8s %10s %6d %6d %6d %6d %6d\n", name, a, b, runs[name],
                of[name, "equal"], of[name, "within"], of[name, "known"], of[name, "FAILED"]
        }
        function count(name) { runs[name]++; of[name, $6]++ }
        FNR == NR { if (!(($1, $3) in seen) && $5 == "usual") { seen[$1, $3]; dispatches[$1]++ } next }
        {
            count($1); count($4 " " $5); count("all")
            if (!($1 in kernels)) { kernels[$1]; order[++n] = $1 }
            if (!(($4 " " $5) in conditions)) { conditions[$4 " " $5]; names[++m] = $4 " " $5 }
            if (!(($1, $2) in texts)) { texts[$1, $2]; n_texts[$1]++; n_texts["all"]++ }
        }
        END {
            for (i in dispatches) dispatches_of_all += dispatches[i]
            printf "%-28s %8s %10s %6s %6s %6s %6s %6s\n", "kernel", "texts", "dispatches", "runs", "equal", "within", "known", "failed"
            for (i = 1; i <= n; i++) row(order[i], n_texts[order[i]], dispatches[order[i]])
            row("all", n_texts["all"], dispatches_of_all)
            printf "\n%-28s %8s %10s %6s %6s %6s %6s %6s\n", "inputs, condition", "", "", "runs", "equal", "within", "known", "failed"
            for (i = 1; i <= m; i++) row(names[i], "", "")
        }' "$work/list" "$work/results"
}

if [ -z "$given" ]; then write_cases; fi
cat "$cases"/list-* >"$work/list"
mkdir -p "$work/strict" "$work/fast"
build -O2 -ffp-contract=off -c tools/metal/runner.cpp -o "$work/runner.o"
awk '{ print $6, $2 }' "$work/list" | sort -u | xargs -P "$(nproc)" -n 2 bash -c 'compile "$@"' _ | tee "$work/broken"
for how in strict fast; do
    build "$work/runner.o" "$work/$how"/*.o -o "$work/run-$how"
done
xargs -P "$(nproc)" -L 1 bash -c 'run_case "$@"' _ <"$work/list" | sort >"$work/raw"
mark_known
table
grep ' FAILED ' "$work/results" | head -40 || true
! [ -s "$work/broken" ] && ! grep -q ' FAILED ' "$work/results"
