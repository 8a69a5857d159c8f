#!/usr/bin/env bash
# What can be known on Linux of other systems: whether the workspace and its tests
# compile for macOS and Windows, and whether tests pass on Windows as Wine has it.
#
#     tools/other-systems/run.sh check            compiles, links nothing
#     tools/other-systems/run.sh wine [ARGS]      cargo test ARGS, run by Wine
#
# Debian 12 has a compiler that comes with the sources of its standard library:
#
#     apt-get install --no-install-recommends rustc-web cargo-web rust-web-src \
#         gcc-mingw-w64-x86-64-posix g++-mingw-w64-x86-64-posix wine64
#
# About ten minutes each from nothing on two cores; too long for .ci/run.
set -euo pipefail
cd "$(dirname "$0")/../.."

mac=aarch64-apple-darwin
windows=x86_64-pc-windows-gnu
build=${CARGO_TARGET_DIR:-$PWD/target}/elsewhere
stand_ins=$build/stand-ins

# The standard library is built from its sources, which compilers call unstable.
with_std() {
    PATH=/usr/bin:$PATH RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$build \
        /usr/bin/cargo "$@" -Zbuild-std --locked
}

# For macOS there is no C compiler: what is in C is taken to compile.
make_stand_ins() {
    mkdir -p "$stand_ins"
    cat >"$stand_ins/cc" <<'END'
#!/usr/bin/env bash
for ((i = 1; i < $#; i++)); do
    [[ ${!i} == -o ]] && { next=$((i + 1)); : >"${!next}"; }
done
exit 0
END
    cat >"$stand_ins/ar" <<'END'
#!/usr/bin/env bash
for it; do [[ $it == *.a ]] && printf '!<arch>\n' >"$it"; done
exit 0
END
    chmod +x "$stand_ins"/{cc,ar}
}

for_windows() {
    CC_x86_64_pc_windows_gnu=x86_64-w64-mingw32-gcc-posix \
        CXX_x86_64_pc_windows_gnu=x86_64-w64-mingw32-g++-posix \
        CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER=x86_64-w64-mingw32-gcc-posix \
        with_std "$@" --target $windows
}

# Wine 8 lacks the one function of a library that Rust's own calls for random numbers.
make_prefix() {
    export WINEPREFIX=$build/wine WINEDEBUG=-all
    export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER=/usr/lib/wine/wine64
    [[ -e $WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll ]] && return
    mkdir -p "$WINEPREFIX"
    /usr/lib/wine/wine64 wineboot
    cat >"$build/random.c" <<'END'
#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE bytes, SIZE_T n) {
    return SystemFunction036(bytes, (ULONG)n);
}
END
    x86_64-w64-mingw32-gcc -shared -O1 "$build/random.c" -ladvapi32 \
        -o "$WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll"
}

case ${1:-} in
check)
    make_stand_ins
    CC_aarch64_apple_darwin=$stand_ins/cc CXX_aarch64_apple_darwin=$stand_ins/cc \
        AR_aarch64_apple_darwin=$stand_ins/ar \
        with_std check --workspace --all-targets --target $mac
    for_windows check --workspace --all-targets
    ;;
wine)
    make_prefix
    for_windows test --release "${@:2}"
    ;;
*)
    sed -n 2,9p "$0" >&2
    exit 2
    ;;
esac
