#!/usr/bin/env bash
# Tests the package of Python with a module that was built: pytest on the demo model, also the examples of its page; mypy,
# pyright and ruff. Needs Python 3.10 with venv, and PyPI and npm on the first run.
#   tools/ci/python.sh [MODULE] [arguments of pytest]     MODULE: lib_moeflux.so as cargo built it, else it is built
#   tools/ci/python.sh --prepare                          installs the tools only
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tools/ci/venv.sh
source tools/ci/venv.sh

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
package=crates/moeflux-python
venv=$target/python-venv
make_venv "$venv" "$package/tests/requirements.txt"
if [ "${1-}" = --prepare ]; then
    # It fetches its program with the first call.
    PYRIGHT_PYTHON_IGNORE_WARNINGS=1 "$venv/bin/pyright" --version
    exit 0
fi

module=${1:-$target/release/lib_moeflux.so}
shift || true
if [ ! -f "$module" ]; then
    cargo build --release --locked -p moeflux-python
fi
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
cp -r "$package/python/moeflux" "$site/"
cp "$module" "$site/moeflux/_moeflux.abi3.so"
export MOEFLUX_CACHE=$site/cache HF_HUB_OFFLINE=1 PYTHONPATH=$site
# As pip leaves it.
"$venv/bin/python" -m compileall -q "$site/moeflux"

failed=0
cd "$package"
"$venv/bin/ruff" check --quiet --no-cache . || failed=1
"$venv/bin/ruff" format --quiet --no-cache --check . || failed=1
"$venv/bin/mypy" --cache-dir "$site/mypy" || failed=1
PYRIGHT_PYTHON_IGNORE_WARNINGS=1 "$venv/bin/pyright" --pythonpath "$venv/bin/python" || failed=1
"$venv/bin/python" -B -m pytest "$@" || failed=1
exit "$failed"
