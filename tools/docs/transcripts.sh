#!/bin/sh
# Runs the commands that README.md and docs/quick-start.md show, each in the order of the document, and
# compares what they print with what the document shows; numbers may differ. With --write the documents
# get what they print now.
#
#   tools/docs/transcripts.sh [--write] [path of the moeflux binary]
set -eu
write=0
if [ "${1:-}" = --write ]; then write=1; shift; fi
root=$(cd "$(dirname "$0")/../.." && pwd)
binary=${1:-$root/target/debug/moeflux}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
ln -s "$(realpath "$binary")" "$work/bin/moeflux"
export PATH="$work/bin:$PATH" COLUMNS=80 MOEFLUX_CACHE="$work/cache" XDG_STATE_HOME="$work/state"
unset MOEFLUX_EXPERT_IO MOEFLUX_PROMPT_CACHE MOEFLUX_API_KEY || true
export HF_HUB_OFFLINE=1

# The document $1 as it would be with what its commands print now.
# A block that begins with ```console: lines with "$ " are commands, the others are output.
render() {
    rm -rf "$work/here" && mkdir "$work/here"
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
    ' "$1"
}

plain() { sed -E 's/[0-9]+(\.[0-9]+)?/N/g; s/ (B|KiB|MiB|GiB|TiB|GB)\b/ SIZE/g; s/[[:space:]]+/ /g; s/-+/-/g' "$1"; }

code=0
for name in README.md docs/quick-start.md; do
    render "$root/$name" >"$work/now.md"
    if [ "$write" = 1 ]; then
        cp "$work/now.md" "$root/$name"
        continue
    fi
    plain "$root/$name" >"$work/want"
    plain "$work/now.md" >"$work/got"
    if diff -u "$work/want" "$work/got"; then
        echo "$name shows what is printed"
    else
        echo "$name no longer shows what is printed (--write renews it)" >&2
        code=1
    fi
done
exit $code
