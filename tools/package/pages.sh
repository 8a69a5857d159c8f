#!/usr/bin/env bash
# Writes manual pages and completions, which are the same for all targets: OUT/man and OUT/completions.
#   tools/package/pages.sh OUT --binary MOEFLUX     a moeflux that runs on this machine
set -euo pipefail
# shellcheck source=tools/package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

parse "$@"
[ -n "$binary" ] || fail "name a moeflux that runs here with --binary"
made=$("$binary" --version) || fail "--binary $binary does not run on this machine"
[ "$made" = "moeflux $version" ] || fail "--binary $binary is '$made', not 'moeflux $version'"

rm -rf "$out/man" "$out/completions"
mkdir -p "$out/completions"
COLUMNS=100 "$binary" man --out "$out/man"
"$binary" completions bash >"$out/completions/moeflux.bash"
"$binary" completions elvish >"$out/completions/moeflux.elv"
"$binary" completions fish >"$out/completions/moeflux.fish"
"$binary" completions powershell >"$out/completions/moeflux.ps1"
"$binary" completions zsh >"$out/completions/_moeflux"
