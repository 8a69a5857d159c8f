#!/usr/bin/env bash
# Tests what makes packages: the scripts of tools/package; and, with a program that was built, its archive, .deb and .rpm
# (where rpmbuild is), each unpacked or installed into a folder and asked; with libraries of C that were built, their archive,
# for which a program is built. Needs Python 3.11, cargo and dpkg-deb, and a C compiler for the last.
#   tools/ci/packages.sh [MOEFLUX [FOLDER]]     FOLDER: where libmoeflux_c.a is
set -euo pipefail
cd "$(dirname "$0")/../.."

python3 -B -m unittest discover --start-directory tools/package/tests
[ $# -gt 0 ] || exit 0

binary=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=$work/out
export MOEFLUX_CACHE=$work/cache HF_HUB_OFFLINE=1

# Debug information takes most of the time to pack.
if command -v strip >/dev/null; then
    strip -o "$work/moeflux" "$binary"
    binary=$work/moeflux
fi

# asks PROGRAM
asks() {
    local answer
    answer=$("$1" run --quiet 'What is 23 + 45?')
    [ "$answer" = 68 ] || { echo "$1 answers '$answer' to 23 + 45" >&2 && return 1; }
    echo "$1 answers"
}

tools/package/pages.sh "$work/pages" --binary "$binary"
package() {
    "tools/package/$1.sh" "$out" --binary "$binary" --pages "$work/pages"
}
package archive
(cd "$out" && sha256sum moeflux-*.tar.gz >SHA256SUMS)
MOEFLUX_BASE_URL=$out sh tools/package/install.sh --to "$work/installed" \
    --version "$("$binary" --version | cut -d ' ' -f 2)"
asks "$work/installed/moeflux"
package deb
dpkg-deb --extract "$out"/moeflux_*.deb "$work/deb"
asks "$work/deb/usr/bin/moeflux"
if command -v rpmbuild >/dev/null && command -v rpm2cpio >/dev/null && command -v cpio >/dev/null; then
    package rpm
    mkdir "$work/rpm"
    rpm2cpio "$out"/moeflux-*.rpm | (cd "$work/rpm" && cpio --extract --make-directories --quiet)
    asks "$work/rpm/usr/bin/moeflux"
else
    echo "SKIP .rpm: no rpmbuild, rpm2cpio or cpio"
fi

[ $# -gt 1 ] || exit 0
tools/package/c-archive.sh "$out" --library "$2"
mkdir "$work/c"
tar -xzf "$out"/moeflux-*-c-*.tar.gz -C "$work/c" --strip-components 1
"${CC:-cc}" -I"$work/c/include" "$work/c/examples/chat.c" -o "$work/c/chat" -L"$work/c/lib" -lmoeflux
answer=$(LD_LIBRARY_PATH=$work/c/lib "$work/c/chat" crates/moeflux-cli/demo 'What is 23 + 45?' 2>/dev/null)
[ "$answer" = 68 ] || { echo "the library of C answers '$answer' to 23 + 45" >&2 && exit 1; }
echo "the library of C answers"
