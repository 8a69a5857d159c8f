#!/usr/bin/env bash
# Writes the lists of the demo model's files that the binary includes: those of moeflux-cli, and the experts
# of moeflux-demo-experts.
#   tools/demo-model/list_files.sh
set -euo pipefail
cd "$(dirname "$0")/../../crates/moeflux-cli/demo"

{
    echo '['
    find . -type f -not -path './packed_experts/*' | LC_ALL=C sort | sed 's|^\./||' | while read -r name; do
        printf '    ("%s", include_bytes!("../demo/%s")),\n' "$name" "$name"
    done
    echo ']'
} >../src/demo_files.in

experts=packed_experts/lib.rs
{
    sed '/^pub static FILES/q' "$experts"
    for file in packed_experts/layer_*.bin; do
        printf '    ("%s", include_bytes!("%s")),\n' "$file" "${file#*/}"
    done
    echo '];'
} >"$experts.new"
mv "$experts.new" "$experts"
