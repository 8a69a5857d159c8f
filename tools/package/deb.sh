#!/usr/bin/env bash
# Makes OUT/moeflux_VERSION-1_ARCH.deb for Debian, Ubuntu and their kin.
#   tools/package/deb.sh OUT [--target TARGET] [--binary MOEFLUX] [--pages FOLDER]
#
# Builds the program where --binary names none, and the pages where --pages names no folder of pages.sh. The same
# program and commit give the same bytes. Needs dpkg-deb.
set -euo pipefail
# shellcheck source=tools/package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

parse "$@"
needs dpkg-deb
case $target in
x86_64-unknown-linux-gnu) arch=amd64 ;;
aarch64-unknown-linux-gnu) arch=arm64 ;;
*) fail "--target $target: .deb is for Linux" ;;
esac
prepare

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# mktemp's folder is private; the package's root must not be.
root=$work/moeflux
umask 022
mkdir -p "$root"
stage_linux "$root" vendor-completions

doc=$root/usr/share/doc/moeflux
mkdir -p "$doc" "$root/DEBIAN"
cat >"$doc/copyright" <<END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: moeflux
${MOEFLUX_REPOSITORY:+Source: $MOEFLUX_REPOSITORY
}
Files: *
Copyright: moeflux contributors
License: Expat or Apache-2.0

License: Expat
$(sed '1,4d; s/^$/./; s/^/ /' "$tree/LICENSE-MIT")

License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.
END
SOURCE_DATE_EPOCH=$(epoch)
export SOURCE_DATE_EPOCH
gzip -9n >"$doc/changelog.Debian.gz" <<END
moeflux ($sorted_version-1) unstable; urgency=medium

  * Release $version; CHANGELOG.md says what is new.

 -- $MOEFLUX_MAINTAINER  $(date --utc --date "@$SOURCE_DATE_EPOCH" --rfc-email)
END
gzip -9n <"$tree/CHANGELOG.md" >"$doc/changelog.gz"
installed_kib=$(du -k --apparent-size --summarize "$root/usr" | cut -f 1)
cat >"$root/DEBIAN/control" <<END
Package: moeflux
Version: $sorted_version-1
Architecture: $arch
Maintainer: $MOEFLUX_MAINTAINER
Installed-Size: $installed_kib
Depends: libc6 (>= $MOEFLUX_GLIBC)
Suggests: libvulkan1, mesa-vulkan-drivers
Section: science
Priority: optional
${MOEFLUX_REPOSITORY:+Homepage: $MOEFLUX_REPOSITORY
}Description: run Mixture-of-Experts language models larger than memory
 moeflux keeps dense weights in memory and streams routed experts from the
 drive. It runs, serves, packs and measures models, on the processor and on
 GPUs by Vulkan. A small demo model is part of the program.
END
(cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
# The service does not start by itself: it is for those who want one.
cat >"$root/DEBIAN/postinst" <<'END'
#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
END
cat >"$root/DEBIAN/prerm" <<'END'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl --no-reload disable --now moeflux.service || true
fi
END
cat >"$root/DEBIAN/postrm" <<'END'
#!/bin/sh
set -e
if [ "$1" = purge ]; then
    # What the service wrote. Where systemd makes its user, the folders are links into private.
    for folder in /var/cache /var/lib; do
        rm -rf "$folder/moeflux" "$folder/private/moeflux"
    done
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
END
chmod 755 "$root"/DEBIAN/{postinst,prerm,postrm}
find "$root" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +

file=$out/moeflux_$version-1_$arch.deb
# xz: older Debian does not read zstd.
dpkg-deb --root-owner-group -Zxz --build "$root" "$work/package.deb" >/dev/null
mv "$work/package.deb" "$file"
wc -c "$file"
