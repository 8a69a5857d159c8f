#!/usr/bin/env bash
# Builds what `tools/gpu/measure.sh` runs elsewhere, into tools/gpu/bin.
set -euo pipefail
cd "$(dirname "$0")/../.."

# test_binary NAME CARGO_ARGUMENT...
test_binary() {
    local name=$1 path
    shift
    path=$(cargo test --release --locked "$@" --no-run --message-format=json |
        grep -o '"executable":"[^"]*"' | tail -1 | cut -d'"' -f4)
    cp "$path" "tools/gpu/bin/$name"
}

target="${CARGO_TARGET_DIR:-target}"
cargo build --release --locked -p moeflux-cli
cargo build --release --locked -p moeflux-wgpu --example speed
mkdir -p tools/gpu/bin
cp "$target/release/moeflux" "$target/release/examples/speed" tools/gpu/bin/
test_binary conformance -p moeflux-wgpu --lib
test_binary reopen -p moeflux-wgpu --test reopen
test_binary goldens -p moeflux-engine --features gpu --test it
strip tools/gpu/bin/*
ls -l tools/gpu/bin
