#!/usr/bin/env bash
# Builds the program for a release: OUT/TARGET/moeflux, stripped, without paths of this machine in it.
#   tools/package/build.sh OUT [--target TARGET]     [default: this machine's]
#
# For Linux it is linked by zig against the C library of release.env, so that it runs on old systems; needs Python 3
# with venv, and PyPI on the first run. Other targets are built by cargo alone, on their own system. A cargo without
# the target's standard library can be replaced: RUSTC and CARGO name others.
set -euo pipefail
# shellcheck source=tools/package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=tools/ci/venv.sh
source "$tree/tools/ci/venv.sh"

parse "$@"
build=$(build_folder)
build_crate moeflux-cli
mkdir -p "$out/$target"
cp "$build/$target/release/$(program)" "$out/$target/$(program)"
case $target in
*-linux-gnu) python3 tools/package/check_elf.py "$out/$target/moeflux" "$target" "$MOEFLUX_GLIBC" ;;
esac
