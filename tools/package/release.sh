#!/usr/bin/env bash
# Completes a release: OUT holds its archives, those of the C library, .deb, .rpm, wheels and bills of materials; this adds the installers, the
# manifests of package managers, and SHA256SUMS of all.
#   tools/package/release.sh OUT
#
# Needs Python 3, and the repository's address (MOEFLUX_REPOSITORY, tools/package/release.env).
set -euo pipefail
# shellcheck source=tools/package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [ $# != 1 ] || [ "${1#-}" != "$1" ]; then
    usage >&2
    exit 2
fi
[ -d "$1" ] || fail "$1: no such folder"
needs python3
[ -n "$MOEFLUX_REPOSITORY" ] ||
    fail "the repository's address is not set: MOEFLUX_REPOSITORY in tools/package/release.env"
out=$(cd "$1" && pwd)
cd "$out"

# sums FILE...
# In the form of sha256sum, which systems other than Linux lack.
sums() {
    python3 - "$@" <<'END'
import hashlib
import sys

for name in sorted(sys.argv[1:]):
    with open(name, "rb") as file:
        print(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}")
END
}

made=(install.sh install.ps1 moeflux.rb moeflux.json moeflux-flake.tar.gz
    moeflux.moeflux.yaml moeflux.moeflux.installer.yaml moeflux.moeflux.locale.en-US.yaml SHA256SUMS)
rm -f "${made[@]}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
shopt -s nullglob
packages=(moeflux[-_]*)
[ "${#packages[@]}" -gt 0 ] || fail "$out holds no archive: archive.sh makes them"
for package in "${packages[@]}"; do
    [ -f "$package" ] || fail "$package: a folder is no part of a release"
    case $package in
    moeflux-"$version"-* | moeflux_"$version"-* | moeflux-"$version".tar.gz) ;;
    *) fail "$package is not of version $version" ;;
    esac
done
sums "${packages[@]}" >"$work/SHA256SUMS"
python3 "$tree/tools/package/fill.py" --version "$version" --repository "$MOEFLUX_REPOSITORY" \
    --glibc "$MOEFLUX_GLIBC" --seconds "$(epoch)" --sums "$work/SHA256SUMS" --out "$work/filled" \
    "$tree"/tools/package/install.{sh,ps1} "$tree"/tools/package/templates/* >/dev/null
mv "$work"/filled/install.{sh,ps1} "$work"/filled/homebrew/moeflux.rb "$work"/filled/scoop/moeflux.json \
    "$work"/filled/winget/*.yaml .
# Nix takes a flake from the address of an archive.
mv "$work/filled/nix" "$work/moeflux-flake"
python3 "$tree/tools/package/reproducible.py" "$out/moeflux-flake.tar.gz" "$work/moeflux-flake" "$(epoch)"
files=(install.* moeflux*)
sums "${files[@]}" >SHA256SUMS
cat SHA256SUMS
