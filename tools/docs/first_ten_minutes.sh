#!/bin/sh
# Runs the commands of docs/first-ten-minutes.md, each in the order of the document, and compares
# what they print with what the document shows; numbers may differ. With --write the document gets
# what they print now.
#
#   tools/docs/first_ten_minutes.sh [--write] [path of the moeflux binary]
set -eu
write=0
if [ "${1:-}" = --write ]; then write=1; shift; fi
root=$(cd "$(dirname "$0")/../.." && pwd)
binary=${1:-$root/target/debug/moeflux}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/here"
ln -s "$(realpath "$binary")" "$work/bin/moeflux"
export PATH="$work/bin:$PATH" COLUMNS=80 MOEFLUX_CACHE="$work/cache" XDG_STATE_HOME="$work/state"
unset MOEFLUX_EXPERT_IO MOEFLUX_PROMPT_CACHE MOEFLUX_API_KEY || true
export HF_HUB_OFFLINE=1

# A block that begins with ```console: lines with "$ " are commands, the others are output.
awk -v work="$work" '
    function run() {
        if (command == "") return
        print command > (work "/command"); close(work "/command")
        system("cd " work "/here && sh " work "/command > " work "/out 2>&1 < /dev/null")
        while ((getline line < (work "/out")) > 0) print line
        close(work "/out"); command = ""
    }
    /^```console$/ { inside = 1; print; next }
    /^```$/ && inside { run(); inside = 0; print; next }
    inside && /^\$ / { run(); command = substr($0, 3); print; next }
    inside { next }
    { print }
' "$root/docs/first-ten-minutes.md" > "$work/now.md"

if [ "$write" = 1 ]; then
    cp "$work/now.md" "$root/docs/first-ten-minutes.md"
    exit 0
fi
plain() { sed -E 's/[0-9]+(\.[0-9]+)?/N/g; s/ (B|KiB|MiB|GiB|TiB|GB)\b/ SIZE/g; s/[[:space:]]+/ /g; s/-+/-/g' "$1"; }
plain "$root/docs/first-ten-minutes.md" > "$work/want"
plain "$work/now.md" > "$work/got"
if ! diff -u "$work/want" "$work/got"; then
    echo "docs/first-ten-minutes.md no longer shows what is printed (--write renews it)" >&2
    exit 1
fi
echo "docs/first-ten-minutes.md shows what is printed"
