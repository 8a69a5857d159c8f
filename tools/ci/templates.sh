#!/usr/bin/env bash
# Compares the rendering of chat templates with jinja2. Needs Python 3.10 with venv, and PyPI on the first run.
#   tools/ci/templates.sh [MOEFLUX]
#   tools/ci/templates.sh --prepare     installs jinja2 only
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tools/ci/venv.sh
source tools/ci/venv.sh

venv=${MOEFLUX_TEMPLATES_VENV:-${CARGO_TARGET_DIR:-target}/templates-venv}
make_venv "$venv" tools/templates/requirements.txt
[ "${1-}" != --prepare ] || exit 0

binary=${1:-${CARGO_TARGET_DIR:-target}/release/moeflux}
if [ ! -x "$binary" ]; then
    cargo build --release --locked -p moeflux-cli
fi
binary=$(realpath "$binary")
"$venv/bin/python" tools/templates/check_expressions.py "$binary"
"$venv/bin/python" tools/templates/check_published.py "$binary" tools/golden/templates
