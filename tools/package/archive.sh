#!/usr/bin/env bash
# Makes the archive of a release and its bill of materials:
# OUT/moeflux-VERSION-TARGET.tar.gz (.zip for Windows) and OUT/moeflux-VERSION-TARGET.cdx.json.
#   tools/package/archive.sh OUT [--target TARGET] [--binary MOEFLUX] [--pages FOLDER]
#
# Builds the program where --binary names none, and the pages where --pages names no folder of pages.sh. The same
# program and commit give the same bytes. Needs cargo and Python 3.
set -euo pipefail
# shellcheck source=tools/package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

parse "$@"
needs python3 cargo
prepare

name=moeflux-$version-$target
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=$work/$name
mkdir -p "$folder"
cp "$binary" "$folder/$(program)"
chmod 755 "$folder/$(program)"
cp "$tree"/{README.md,CHANGELOG.md,SECURITY.md,LICENSE-APACHE,LICENSE-MIT} "$folder/"
cp -R "$pages/completions" "$folder/completions"
case $target in
*-windows-*) ending=zip ;;
*)
    ending=tar.gz
    cp -R "$pages/man" "$folder/man"
    ;;
esac
case $target in
*-linux-*) cp "$tree/tools/package/service/moeflux.service" "$folder/" ;;
*-apple-*) cp "$tree/tools/package/service/moeflux.serve.plist" "$folder/" ;;
esac
# Files of the tree are links in some checkouts, and not writable in others.
find "$folder" -type f -exec chmod u+w {} +
python3 "$tree/tools/package/reproducible.py" "$out/$name.$ending" "$folder" "$(epoch)"
python3 "$tree/tools/package/sbom.py" --target "$target" --seconds "$(epoch)" --out "$out/$name.cdx.json"
wc -c "$out/$name.$ending" "$out/$name.cdx.json" | sed '$d'
