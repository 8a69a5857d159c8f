#!/usr/bin/env bash
# Makes the folder that containers are built in, OUT/container, and builds them where an engine runs:
# moeflux:VERSION and moeflux:VERSION-vulkan.
#   tools/package/container.sh OUT [--target TARGET] [--binary MOEFLUX]
#
# MOEFLUX_ENGINE names the engine [default: docker or podman, whichever answers; none makes the folder only].
set -euo pipefail
# shellcheck source=tools/package/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

parse "$@"
case $target in
x86_64-unknown-linux-gnu) platform=linux/amd64 ;;
aarch64-unknown-linux-gnu) platform=linux/arm64 ;;
*) fail "--target $target: containers are for Linux" ;;
esac
if [ -z "$binary" ]; then
    "$tree/tools/package/build.sh" "$out/build" --target "$target"
    binary=$out/build/$target/moeflux
fi
context=$out/container
rm -rf "$context"
mkdir -p "$context"
install -m 755 "$binary" "$context/moeflux"
cp "$tree"/{LICENSE-APACHE,LICENSE-MIT} "$tree/tools/package/container/Dockerfile" "$context/"
chmod 644 "$context"/{LICENSE-APACHE,LICENSE-MIT,Dockerfile}

engine=${MOEFLUX_ENGINE-}
for candidate in docker podman; do
    if [ -z "$engine" ] && command -v "$candidate" >/dev/null && "$candidate" info >/dev/null 2>&1; then
        engine=$candidate
    fi
done
if [ -z "$engine" ] || [ "$engine" = none ]; then
    echo "no engine built it (docker, podman): docker build --target cpu $context"
    exit 0
fi
for stage in cpu vulkan; do
    tag=moeflux:$version
    [ "$stage" = cpu ] || tag=$tag-$stage
    "$engine" build --platform "$platform" --target "$stage" --tag "$tag" "$context"
    answer=$("$engine" run --rm --platform "$platform" "$tag" run --quiet 'What is 23 + 45?')
    [ "$answer" = 68 ] || fail "$tag answers '$answer' to 23 + 45"
    echo "$tag"
done
