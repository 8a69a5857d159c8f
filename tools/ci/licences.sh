#!/usr/bin/env bash
# Checks licences and sources of all crates, of every platform, by deny.toml. Needs cargo and Python 3.11.
#   tools/ci/licences.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
metadata=$(mktemp)
trap 'rm -f "$metadata"' EXIT
cargo metadata --quiet --locked --all-features --format-version 1 >"$metadata"
tools/ci/licences.py deny.toml <"$metadata"
