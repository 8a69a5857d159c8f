#!/usr/bin/env bash
# Builds the package of Python: OUT/moeflux-*-cp310-abi3-*.whl, for any Python 3.10 and later, with its bill of materials;
# and OUT/moeflux-*.tar.gz, its sources.
#   tools/package/wheel.sh OUT [--target TARGET]     [default: this machine's]
#
# For Linux it is linked by zig against the C library of release.env, which the name of the wheel says. Other targets are
# built on their own system. Needs Python 3.11 with venv, and PyPI on the first run. MOEFLUX_PROFILE (default: release) is the
# profile of cargo.
set -euo pipefail
# shellcheck source=tools/package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=tools/ci/venv.sh
source "$tree/tools/ci/venv.sh"

parse "$@"
build=$(build_folder)
profile=${MOEFLUX_PROFILE:-release}
# The largest that PyPI shall get, in bytes.
most=$((45 * 1000 * 1000))

cd "$tree"
venv=$build/wheel-venv
make_venv "$venv" tools/package/wheel.txt --require-hashes --only-binary :all:
programs=$venv/bin
[ -d "$programs" ] || programs=$venv/Scripts
# maturin finds zig as a module of the environment's Python.
PATH=$programs:$PATH
export PATH VIRTUAL_ENV=$venv CARGO_TARGET_DIR=$build
export_release

options=(--profile "$profile" --locked --target "$target" --out "$out")
case $target in
*-linux-gnu) options+=(--zig --compatibility "manylinux_${MOEFLUX_GLIBC/./_}") ;;
esac
manifest=crates/moeflux-python/Cargo.toml
"$programs/maturin" sdist --manifest-path "$manifest" --out "$out"
"$programs/maturin" build --manifest-path "$manifest" "${options[@]}"

for file in "$out"/moeflux-"$version"-*.whl "$out"/moeflux-"$version".tar.gz; do
    [ -f "$file" ] || fail "$file was not made"
    bytes=$(wc -c <"$file")
    [ "$bytes" -le "$most" ] || fail "$file has $bytes bytes, at most $most are wanted"
    echo "$file: $bytes bytes"
done
