#!/usr/bin/env bash
# Builds what `tools/gpu/measure.sh` runs elsewhere, into tools/gpu/bin.
set -euo pipefail
cd "$(dirname "$0")/../.."

target="${CARGO_TARGET_DIR:-target}"
cargo build --release --locked -p moeflux-cli
cargo build --release --locked -p moeflux-wgpu --example speed
tests=$(cargo test --release --locked -p moeflux-wgpu --lib --no-run --message-format=json |
    grep -o '"executable":"[^"]*"' | tail -1 | cut -d'"' -f4)
mkdir -p tools/gpu/bin
cp "$target/release/moeflux" "$target/release/examples/speed" tools/gpu/bin/
cp "$tests" tools/gpu/bin/conformance
strip tools/gpu/bin/*
ls -l tools/gpu/bin
