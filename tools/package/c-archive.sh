#!/usr/bin/env bash
# Makes the archive of the C interface and its bill of materials: OUT/moeflux-VERSION-c-TARGET.tar.gz (.zip for Windows)
# and OUT/moeflux-VERSION-c-TARGET.cdx.json.
#   tools/package/c-archive.sh OUT [--target TARGET] [--library FOLDER]
#
# Unpacked it is a prefix: include/moeflux.h, lib with both libraries and lib/pkgconfig; on Windows bin/moeflux_c.dll and its
# import library. Builds the crate moeflux-c as build.sh does the program, unless FOLDER has its libraries. Needs cargo and
# Python 3, and what c-library.sh needs.
set -euo pipefail
# shellcheck source=tools/package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=tools/ci/venv.sh
source "$tree/tools/ci/venv.sh"

parse "$@"
needs python3 cargo
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
name=moeflux-$version-c-$target
folder=$work/$name
mkdir "$folder"

if [ -z "$library" ]; then
    build_crate moeflux-c
    library=$(build_folder)/$target/release
    case $target in
    *-linux-gnu)
        # The shared library is linked against that C library, too.
        printf '#!/bin/sh\nexec "%s" -m ziglang cc -target %s "$@"\n' "$venv/bin/python" \
            "${target%%-*}-linux-gnu.$MOEFLUX_GLIBC" >"$work/cc"
        chmod 755 "$work/cc"
        export CC=$work/cc
        ;;
    esac
fi
case $target in
*-windows-*)
    ending=zip
    mkdir "$folder/bin" "$folder/include" "$folder/lib"
    cp "$tree/crates/moeflux-c/include/moeflux.h" "$folder/include/"
    cp "$library/moeflux_c.dll" "$folder/bin/"
    cp "$library/moeflux_c.dll.lib" "$library/moeflux_c.lib" "$folder/lib/"
    ;;
*)
    ending=tar.gz
    "$tree/tools/package/c-library.sh" "$folder" --library "$library"
    ;;
esac
case $target in
*-linux-gnu)
    [ -z "${CC-}" ] ||
        python3 "$tree/tools/package/check_elf.py" "$folder/lib/libmoeflux.so.$version" "$target" "$MOEFLUX_GLIBC"
    ;;
esac
mkdir "$folder/examples"
cp "$tree"/examples/c/* "$folder/examples/"
cp "$tree/docs/guide/c.md" "$folder/README.md"
cp "$tree"/{CHANGELOG.md,LICENSE-APACHE,LICENSE-MIT} "$folder/"
find "$folder" -type f -exec chmod u+w {} +
python3 "$tree/tools/package/reproducible.py" "$out/$name.$ending" "$folder" "$(epoch)"
python3 "$tree/tools/package/sbom.py" --target "$target" --crate moeflux-c --seconds "$(epoch)" --out "$out/$name.cdx.json"
wc -c "$out/$name.$ending" "$out/$name.cdx.json" | sed '$d'
