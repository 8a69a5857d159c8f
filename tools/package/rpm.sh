#!/usr/bin/env bash
# Makes OUT/moeflux-VERSION-1.ARCH.rpm for Fedora, RHEL, openSUSE and their kin.
#   tools/package/rpm.sh OUT [--target TARGET] [--binary MOEFLUX] [--pages FOLDER]
#
# Builds the program where --binary names none, and the pages where --pages names no folder of pages.sh. The same
# program and commit give the same bytes. Needs rpmbuild (Debian: the package rpm).
set -euo pipefail
# shellcheck source=tools/package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

parse "$@"
needs rpmbuild
case $target in
x86_64-unknown-linux-gnu) arch=x86_64 ;;
aarch64-unknown-linux-gnu) arch=aarch64 ;;
*) fail "--target $target: .rpm is for Linux" ;;
esac
prepare

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
stage_linux "$work/stage" site-functions
mkdir -p "$work/stage/usr/share/licenses/moeflux"
cp "$tree"/{LICENSE-APACHE,LICENSE-MIT} "$work/stage/usr/share/licenses/moeflux/"
chmod 644 "$work"/stage/usr/share/licenses/moeflux/*
SOURCE_DATE_EPOCH=$(epoch)
export SOURCE_DATE_EPOCH
find "$work/stage" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +

# The program was stripped by its build, and its dependencies are those that check_elf.py allows.
rpmbuild -bb --quiet --target "$arch-linux" \
    --define "_topdir $work/rpm" \
    --define "_rpmdir $work" \
    --define "_rpmfilename package.rpm" \
    --define "_buildhost release" \
    --define "_binary_payload w9.gzdio" \
    --define "use_source_date_epoch_as_buildtime 1" \
    --define "clamp_mtime_to_source_date_epoch 1" \
    --define "the_version $sorted_version" \
    --define "the_glibc $MOEFLUX_GLIBC" \
    --define "the_stage $work/stage" \
    --define "the_packager $MOEFLUX_MAINTAINER" \
    ${MOEFLUX_REPOSITORY:+--define "the_url $MOEFLUX_REPOSITORY"} \
    "$tree/tools/package/moeflux.spec"
file=$out/moeflux-$version-1.$arch.rpm
mv "$work/package.rpm" "$file"
wc -c "$file"
