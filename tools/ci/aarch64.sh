#!/usr/bin/env bash
# Builds the crates that hold kernels for 64-bit ARM and runs their tests in an
# emulator: on a processor with every instruction that kernels know, and on one
# with plain NEON.
#
#     tools/ci/aarch64.sh tools    fetches compilers and emulator, fails where they cannot be had
#     tools/ci/aarch64.sh test     builds and runs the tests
#
# It needs cargo, and Debian 12's apt-get and dpkg with package sources that
# work; no rights, and it installs nothing. Debian's own compiler is the one
# that comes with a standard library for ARM without rustup; it conflicts with
# no other, because its packages are only unpacked, with a C compiler, a C
# library and an emulator, in $MOEFLUX_CI_CACHE or target/. A second run finds
# them there. What cargo builds is in target/ in any case.
#
# Fresh machine: apt-get update (lists in a folder of its own), apt-get download
# of about 260 MB, dpkg --extract of about 1.2 GB, and three wrappers.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=aarch64-unknown-linux-gnu
build=$(realpath -m "${CARGO_TARGET_DIR:-target}")/aarch64/build
tools=${MOEFLUX_CI_CACHE:-$PWD/target}/aarch64/tools
root=$tools/root
lib=$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu

# The machine's own sources, asked for both architectures.
write_apt_configuration() {
    mkdir -p "$tools"/{lists/partial,archives/partial}
    : >"$tools/status"
    cat >"$tools/apt.conf" <<END
APT::Architecture "amd64";
APT::Architectures { "amd64"; "arm64"; };
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "5";
Acquire::http::Timeout "30";
Dir::State::lists "$tools/lists";
Dir::State::status "$tools/status";
Dir::Cache "$tools/archives";
END
}

# The packages that some packages need, themselves included. What every machine
# with apt-get has is left out: the C library must be the one of its loader.
with_dependencies() {
    apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
        --no-replaces --no-enhances "$@" |
        grep -E '^[a-z0-9]' | grep -Evx 'libc6|libgcc-s1|libstdc\+\+6|gcc-12-base|.*:.*' | sort -u
}

unpack_tools() {
    export APT_CONFIG=$tools/apt.conf
    write_apt_configuration
    apt-get update --quiet
    local packages
    packages=$(with_dependencies gcc-aarch64-linux-gnu libc6-dev-arm64-cross libstd-rust-web-dev)
    mkdir -p "$tools/packages"
    # shellcheck disable=SC2086
    (cd "$tools/packages" && apt-get download --quiet $packages rustc-web qemu-user-static \
        libstd-rust-web-dev:arm64)
    for package in "$tools"/packages/*.deb; do
        dpkg --extract "$package" "$root"
    done
    rm -r "$tools/packages" "$tools/lists" "$tools/archives"
}

# wrapper NAME PROGRAM [ARGUMENT]
wrapper() {
    mkdir -p "$tools/bin"
    printf '#!/bin/sh\nLD_LIBRARY_PATH="%s" exec "%s" %s "$@"\n' "$lib" "$root/usr/bin/$2" \
        "${3:+\"$3\"}" >"$tools/bin/$1"
    chmod +x "$tools/bin/$1"
}

fetch_tools() {
    [ ! -e "$tools/complete" ] || return 0
    rm -rf "$tools"
    unpack_tools
    wrapper rustc rustc
    wrapper cc aarch64-linux-gnu-gcc "--sysroot=$root"
    wrapper ar aarch64-linux-gnu-ar
    # Both run here, or they are no use.
    "$tools/bin/rustc" --version
    "$root/usr/bin/qemu-aarch64-static" --version
    touch "$tools/complete"
}

# cargo_test ARGUMENT...
cargo_test() {
    cargo test --release --locked --target "$target" --target-dir "$build" \
        -p moeflux-backend "$@"
}

# on PROCESSOR ISAS ARGUMENT...
# Tests on an emulated processor, which must offer these instruction sets.
on() {
    local emulator="$root/usr/bin/qemu-aarch64-static -cpu $1 -L $root/usr/aarch64-linux-gnu"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=$emulator
    export MOEFLUX_EXPECTED_ISAS=$2
    shift 2
    cargo_test "$@"
}

run_tests() {
    export RUSTC=$tools/bin/rustc
    export CC_aarch64_unknown_linux_gnu=$tools/bin/cc
    export AR_aarch64_unknown_linux_gnu=$tools/bin/ar
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$tools/bin/cc
    export CARGO_INCREMENTAL=0
    export CARGO_PROFILE_RELEASE_DEBUG=0
    # The emulator makes them dear, and they find nothing that they do not find elsewhere.
    export CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=false
    export CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=false
    export PROPTEST_CASES=${PROPTEST_CASES:-16}

    cargo_test --lib --test it --no-run
    printf 'aarch64: built at %d s\n' "$SECONDS"
    # Forks of several threads are the same everywhere, and dear here: of the
    # conformance suite the test of instruction sets is enough. It takes one
    # thread, so the second processor has the rest beside it.
    on max "scalar neon dotprod i8mm" --test it instruction_set &
    local max=$! failed=0
    on cortex-a72 "scalar neon" --test it instruction_set || failed=1
    on cortex-a72 "scalar neon" --lib cpu::matmul || failed=1
    on max "scalar neon dotprod i8mm" --lib cpu:: || failed=1
    wait "$max" || failed=1
    printf 'aarch64: done at %d s\n' "$SECONDS"
    return "$failed"
}

case ${1-} in
tools) fetch_tools ;;
test) run_tests ;;
*) sed -n '6,7s/^# *//p' "$0" >&2 && exit 2 ;;
esac
