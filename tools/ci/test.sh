#!/usr/bin/env bash
# Runs a program of tests, as cargo's runner. Those of kernels compile thousands of shaders and run most of them once: there
# Mesa's software device is not to optimise them, which takes longer than to run them. A model's kernels run for every token.
#   tools/ci/test.sh PROGRAM ARGUMENTS...     as cargo calls it
set -euo pipefail

[ "${CARGO_PKG_NAME-}" != moeflux-wgpu ] || export GALLIVM_PERF=nopt
exec "$@"
