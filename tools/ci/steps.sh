# shellcheck shell=bash
# Steps of .ci/run, which sources this file: their seconds, those that run beside others, and which sources passed.

# begin_steps LOGS PASSED
# LOGS is a folder for this run; in PASSED are, by the name of a check, the hashes of sources that passed.
begin_steps() {
    logs=$1 passed=$2
    rm -rf "$logs"
    mkdir -p "$logs" "$passed"
    : >"$logs/steps"
    trap finish EXIT
}

# step NAME COMMAND...
step() {
    local name=$1 began=$SECONDS code=0
    shift
    printf '\n== %s: %s (at %d s)\n' "$name" "$*" "$began"
    "$@" || code=$?
    local outcome=passed
    [ "$code" = 0 ] || outcome="exit code $code"
    printf '%s\t%d\t%d\t%s\n' "$name" "$began" $((SECONDS - began)) "$outcome" >>"$logs/steps"
    return "$code"
}

# skip WHAT AND WHY
skip() {
    printf '\nSKIP %s\n' "$*"
    printf '%s\t%d\t0\tskipped\n' "${*%%:*}" "$SECONDS" >>"$logs/steps"
}

declare -A pids=()

# beside NAME COMMAND...
# Runs a command in the background, in a process group of its own. What it prints is in a file of that name.
beside() {
    local name=$1
    shift
    set -m
    (
        set +m
        trap 'echo $? >"$logs/$name.code"' EXIT
        "$@"
    ) >"$logs/$name.log" 2>&1 </dev/null &
    pids[$name]=$!
    set +m
}

# await NAME
# Waits for what runs beside, also where another process began it; fails if it failed.
await() {
    until [ -e "$logs/$1.code" ]; do
        kill -0 "${pids[$1]}" 2>/dev/null || [ -e "$logs/$1.code" ] || return 1
        sleep 1
    done
    return "$(cat "$logs/$1.code")"
}

# sources CHECK CRATE TARGET FOLDER FILE...
# Notes the hash of what a check depends on: FOLDER of the crate and of the crates of this workspace that it is built
# from for TARGET (all of a crate that has no such folder), the packages of others that it is built from, files and
# folders.
sources() {
    local check=$1 crate=$2 triple=$3 folder=$4 tree crates
    shift 4
    tree=$(cargo tree --locked --edges normal,build,dev --target "$triple" --prefix none --format '{p} {f}' \
        --package "$crate" | sed "s|$PWD/||; s/ (\*)$//" | sort -u)
    crates=$(printf '%s\n' "$tree" | sed -n 's/^[^ ]* [^ ]* (\(crates[^)]*\)).*/\1/p')
    for crate in $crates; do
        if [ -d "$crate/$folder" ]; then
            set -- "$@" "$crate/$folder" "$crate/Cargo.toml"
        else
            set -- "$@" "$crate"
        fi
    done
    {
        printf '%s\n' "$tree"
        rustc --version --verbose
        # What a profile, a lint or an edition is, but not which versions others want.
        awk '/^\[/ { is_wanted = $0 != "[workspace.dependencies]" } is_wanted' Cargo.toml
        find "$@" -type f -print0 | sort -zu | xargs -0 sha256sum
    } | sha256sum | cut -d ' ' -f 1 >"$logs/$check.sources"
}

# is_due CHECK
# Whether its sources have changed since it passed, or everything is to be run.
is_due() {
    [ -n "${MOEFLUX_CI_ALL:-}" ] || ! cmp -s "$logs/$1.sources" "$passed/$1"
}

# unchanged CHECK
unchanged() {
    printf '\nUNCHANGED %s: not run, its sources passed before, says %s (MOEFLUX_CI_ALL=1 runs it)\n' "$1" "$passed/$1"
    printf '%s\t%d\t0\tunchanged\n' "$1" "$SECONDS" >>"$logs/steps"
}

# end_steps NAME...
# Waits for what runs beside, prints what it printed, and notes which sources passed.
end_steps() {
    local name failed=0
    for name in "$@"; do
        [ -n "${pids[$name]:-}" ] || continue
        await "$name" || failed=1
        cat "$logs/$name.log"
    done
    [ "$failed" = 0 ] || return 1
    for name in "$logs"/*.sources; do
        cp "$name" "$passed/$(basename "$name" .sources)"
    done
}

# Prints the table, and ends what still runs beside.
finish() {
    local code=$? name
    for name in "${!pids[@]}"; do
        if [ ! -e "$logs/$name.code" ]; then
            kill -- -"${pids[$name]}" 2>/dev/null || true
        fi
    done
    printf '\n%-24s %8s %8s  %s\n' step "began at" seconds outcome
    sort -t "$(printf '\t')" -k 2n "$logs/steps" | while IFS=$'\t' read -r name began seconds outcome; do
        printf '%-24s %8d %8d  %s\n' "$name" "$began" "$seconds" "$outcome"
    done
    printf '\n== %s in %d s, skipped: %d, unchanged: %d\n' "$([ "$code" = 0 ] && echo passed || echo FAILED)" \
        "$SECONDS" "$(grep -c 'skipped$' "$logs/steps")" "$(grep -c 'unchanged$' "$logs/steps")"
    exit "$code"
}
