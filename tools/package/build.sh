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
cargo=${CARGO:-cargo}
build=${CARGO_TARGET_DIR:-$tree/target}
case $build in
/* | [A-Za-z]:*) ;;
*) build=$PWD/$build ;;
esac

# Names of files in messages of panics, the same wherever it is built.
remap() {
    local from=$1
    if command -v cygpath >/dev/null; then
        from=$(cygpath --windows "$from")
    fi
    printf '%s' "--remap-path-prefix=$from=$2"
}
flags=("$(remap "$tree" /moeflux)" "$(remap "${CARGO_HOME:-$HOME/.cargo}" /cargo)")
case $target in
# No C library of Visual Studio has to be there.
*-windows-msvc) flags+=(-Ctarget-feature=+crt-static) ;;
esac
# Separated so that paths may have spaces.
CARGO_ENCODED_RUSTFLAGS=$(printf '%s\x1f' "${flags[@]}")
export CARGO_ENCODED_RUSTFLAGS=${CARGO_ENCODED_RUSTFLAGS%$'\x1f'}
export CARGO_PROFILE_RELEASE_STRIP=symbols
export CARGO_INCREMENTAL=0
SOURCE_DATE_EPOCH=$(epoch)
export SOURCE_DATE_EPOCH

cd "$tree"
case $target in
*-linux-gnu)
    venv=$build/zig-venv
    make_venv "$venv" tools/package/requirements.txt --require-hashes
    PATH=$venv/bin:$PATH "$cargo" zigbuild --release --locked --package moeflux-cli --target-dir "$build" \
        --target "$target.$MOEFLUX_GLIBC"
    ;;
*) "$cargo" build --release --locked --package moeflux-cli --target-dir "$build" --target "$target" ;;
esac
mkdir -p "$out/$target"
cp "$build/$target/release/$(program)" "$out/$target/$(program)"
case $target in
*-linux-gnu) python3 tools/package/check_elf.py "$out/$target/moeflux" "$target" "$MOEFLUX_GLIBC" ;;
esac
