#!/usr/bin/env bash
# Writes the list of the demo model's files that the binary includes.
#   tools/demo-model/list_files.sh > crates/moeflux-cli/src/demo_files.in
set -euo pipefail
cd "$(dirname "$0")/../../crates/moeflux-cli/demo"
echo '['
find . -type f | LC_ALL=C sort | sed 's|^\./||' | while read -r name; do
    printf '    ("%s", include_bytes!("../demo/%s")),\n' "$name" "$name"
done
echo ']'
