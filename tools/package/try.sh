#!/usr/bin/env bash
# Tries the packages of Linux on systems without Rust: each must give the demo's answer within ten seconds of the
# command, and be gone after it is removed.
#   tools/package/try.sh OUT SYSTEM...
#
# OUT holds the packages of one architecture; with install.sh and SHA256SUMS of release.sh the installer is tried, too.
# A SYSTEM is the folder of a fresh one (debootstrap makes it; needs root), which is copied for every try, or the image
# of a container, for which docker must run. None of them gets a network.
set -euo pipefail
# shellcheck source=tools/package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case ${1-} in
'' | -*) usage >&2 && exit 2 ;;
esac
[ -d "$1" ] || fail "$1: no such folder"
out=$(realpath "$1")
shift
[ $# -gt 0 ] || fail "name a system: a folder, or an image"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Run inside: how the package gets there, what gives the program, how it leaves.
cat >"$work/try" <<'END'
set -eu
export HOME=/root LC_ALL=C
case $1 in
archive)
    # The archive of the C interface has no program.
    for archive in /out/moeflux-*-unknown-linux-gnu.tar.gz; do
        case $archive in *-c-*) ;; *) tar -xzf "$archive" -C /opt ;; esac
    done
    PATH=$(echo /opt/moeflux-*):$PATH
    ;;
package)
    if command -v dpkg >/dev/null; then
        dpkg --install /out/moeflux_*.deb >/dev/null
    else
        rpm --install /out/moeflux-*.rpm
    fi
    ;;
installer)
    MOEFLUX_BASE_URL=/out sh /out/install.sh
    PATH=$HOME/.local/bin:$PATH
    ;;
esac
answer=$(moeflux run --quiet "What is 23 + 45?")
[ "$answer" = 68 ] || { echo "$1: the answer to 23 + 45 is '$answer'" >&2 && exit 1; }
case $1 in
archive) rm -r /opt/moeflux-* ;;
package)
    if command -v dpkg >/dev/null; then
        dpkg --purge moeflux >/dev/null
    else
        rpm --erase moeflux
    fi
    ;;
installer) sh /out/install.sh --uninstall ;;
esac
left=$(find /usr /opt /etc "$HOME/.local" -name '*moeflux*' ! -path '/usr/share/bug/*' 2>/dev/null || true)
[ -z "$left" ] || { echo "$1 leaves $left" >&2 && exit 1; }
END

# inside SYSTEM ARGUMENT...
inside() {
    local system=$1
    shift
    if [ -d "$system" ]; then
        unshare --net --pid --fork --mount-proc="$work/root/proc" chroot "$work/root" sh /try "$@"
    else
        docker run --rm --network none --volume "$out:/out:ro" --volume "$work/try:/try:ro" "$system" sh /try "$@"
    fi
}

failed=0
# try SYSTEM WAY
try() {
    local system=$1 way=$2 start end ms
    if [ -d "$system" ]; then
        rm -rf "$work/root"
        cp --archive "$system" "$work/root"
        cp --recursive "$out" "$work/root/out"
        cp "$work/try" "$work/root/try"
    else
        docker image inspect "$system" >/dev/null 2>&1 || docker pull --quiet "$system" >/dev/null
    fi
    start=$(date +%s%N)
    if inside "$system" "$way"; then
        end=$(date +%s%N)
        ms=$(((end - start) / 1000000))
        printf '%-24s %-10s %6d ms, answer and removal\n' "$(basename "$system")" "$way" "$ms"
        [ "$ms" -le 10000 ] || { echo "$way on $system takes longer than 10 s" >&2 && failed=1; }
    else
        echo "$way fails on $system" >&2
        failed=1
    fi
}

for system; do
    try "$system" archive
    try "$system" package
    if [ -f "$out/install.sh" ]; then
        try "$system" installer
    fi
done
exit "$failed"
