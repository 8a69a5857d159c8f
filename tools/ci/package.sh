#!/usr/bin/env bash
# Packs every crate that is published, as `cargo publish --workspace` does, and checks their sizes. Builds nothing: a
# package holds the whole of `src/`, which other steps have built.
#   tools/ci/package.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

# What crates.io takes.
max_bytes=$((10 << 20))

packages=${CARGO_TARGET_DIR:-target}/package
rm -rf "$packages"
cargo package --workspace --exclude xtask --exclude moeflux-c --exclude moeflux-python \
    --locked --no-verify --allow-dirty --quiet
n_too_large=0
for package in "$packages"/*.crate; do
    bytes=$(stat --format %s "$package")
    printf '%10d %s\n' "$bytes" "$(basename "$package")"
    if [ "$bytes" -gt "$max_bytes" ]; then
        echo "$(basename "$package") is larger than $max_bytes bytes: split the crate, or leave files out" >&2
        n_too_large=$((n_too_large + 1))
    fi
done
[ "$n_too_large" = 0 ]
