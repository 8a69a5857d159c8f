#!/usr/bin/env bash
# Installs the C interface into a prefix: PREFIX/include/moeflux.h, PREFIX/lib/libmoeflux.so (.dylib on macOS),
# PREFIX/lib/libmoeflux.a and PREFIX/lib/pkgconfig/moeflux.pc, which finds the others from where it is.
#   tools/package/c-library.sh PREFIX [--profile PROFILE] [--library FOLDER]
#
# Builds the crate moeflux-c by PROFILE [release] unless FOLDER has its libraries. On Linux nothing but the interface is
# visible in either library: crates below export functions of their own to C, and the static library can be linked with
# others written in Rust. Needs cargo, and on Linux a C compiler with the binutils.
set -euo pipefail
# shellcheck source=tools/package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prefix='' profile=release library=''
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage && exit 0 ;;
    --profile | --library)
        [ -n "${2-}" ] || fail "$1 needs a value"
        printf -v "${1#--}" '%s' "$2"
        shift
        ;;
    -*) fail "there is no flag $1 (see --help)" ;;
    *)
        [ -z "$prefix" ] || fail "'$1' is one argument too many (see --help)"
        prefix=$1
        ;;
    esac
    shift
done
[ -n "$prefix" ] || fail "name the prefix (see --help)"

header=$tree/crates/moeflux-c/include/moeflux.h
abi=$(sed -n 's/^#define MOEFLUX_ABI_VERSION //p' "$header")
if [ -z "$library" ]; then
    needs cargo
    (cd "$tree" && cargo build --locked --package moeflux-c --profile "$profile")
    library=${CARGO_TARGET_DIR:-$tree/target}/$profile
    [ "$profile" != dev ] || library=${library%dev}debug
fi
system=$(uname -s)
case $system in
Linux)
    needs "${CC:-cc}" ld objcopy ar nm
    built=(libmoeflux_c.a) installed=libmoeflux.so.$version links=("libmoeflux.so.$abi" libmoeflux.so)
    private='-lgcc_s -lutil -lrt -lpthread -lm -ldl'
    ;;
Darwin)
    needs install_name_tool
    built=(libmoeflux_c.a libmoeflux_c.dylib) installed=libmoeflux.$version.dylib
    links=("libmoeflux.$abi.dylib" libmoeflux.dylib)
    private='-framework Metal -framework Foundation -framework CoreGraphics -framework QuartzCore -lobjc -liconv -lm'
    ;;
*) fail "the C library is laid out on Linux and macOS, not on $system: cargo build --package moeflux-c builds it" ;;
esac
for file in "${built[@]}"; do
    [ -f "$library/$file" ] || fail "--library $library: there is no $file"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# visible FILE FLAG...
# Symbols that others can link to.
visible() {
    local file=$1
    shift
    nm --defined-only --extern-only --format=posix "$@" "$file" | awk 'NF > 1 { print $1 }' | sort -u
}

# check_visible FILE FLAG...
check_visible() {
    local others
    others=$(visible "$@" | grep -v '^moeflux_' || true)
    [ -z "$others" ] || fail "$1 shows more than moeflux_*: $(printf '%s' "$others" | head -n 5 | tr '\n' ' ')"
    [ -n "$(visible "$@")" ] || fail "$1 shows nothing"
}

if [ "$system" = Linux ]; then
    # One object whose inner symbols are its own, without the bitcode that objects of the standard library carry. Both
    # libraries are made of it: the one that rustc links shows what crates below export to C, too.
    ld -r --whole-archive "$library/libmoeflux_c.a" -o "$work/moeflux.o"
    objcopy --wildcard --keep-global-symbol='moeflux_*' --remove-section='.llvmbc' --remove-section='.llvmcmd' \
        "$work/moeflux.o"
    ar rcsD "$work/static" "$work/moeflux.o"
    read -ra needed <<<"$private"
    "${CC:-cc}" -shared "$work/moeflux.o" -o "$work/shared" "-Wl,-soname,libmoeflux.so.$abi" -Wl,--gc-sections -Wl,-z,defs \
        -Wl,-z,relro,-z,now,-s -Wl,--as-needed "${needed[@]}"
    check_visible "$work/shared" --dynamic
    check_visible "$work/static"
else
    cp "$library/libmoeflux_c.a" "$work/static"
    cp "$library/libmoeflux_c.dylib" "$work/shared"
    install_name_tool -id "@rpath/libmoeflux.$abi.dylib" "$work/shared"
fi

mkdir -p "$prefix/include" "$prefix/lib/pkgconfig"
install -m 644 "$header" "$prefix/include/moeflux.h"
install -m 755 "$work/shared" "$prefix/lib/$installed"
for link in "${links[@]}"; do
    ln -sf "$installed" "$prefix/lib/$link"
done
install -m 644 "$work/static" "$prefix/lib/libmoeflux.a"
cat >"$prefix/lib/pkgconfig/moeflux.pc" <<END
prefix=\${pcfiledir}/../..
includedir=\${prefix}/include
libdir=\${prefix}/lib
static=\${libdir}/libmoeflux.a $private

Name: moeflux
Description: Runs Mixture-of-Experts language models larger than memory
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lmoeflux
Libs.private: $private
END
chmod 644 "$prefix/lib/pkgconfig/moeflux.pc"
wc -c "$prefix/lib/$installed" "$prefix/lib/libmoeflux.a" | sed '$d'
