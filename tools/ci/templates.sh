#!/usr/bin/env bash
# Compares the rendering of chat templates with jinja2. Needs Python 3.10 with venv, and PyPI on the first run.
#   tools/ci/templates.sh [MOEFLUX]
set -euo pipefail
cd "$(dirname "$0")/../.."

binary=${1:-${CARGO_TARGET_DIR:-target}/release/moeflux}
if [ ! -x "$binary" ]; then
    cargo build --release --locked -p moeflux-cli
fi
requirements=tools/templates/requirements.txt
venv=${MOEFLUX_TEMPLATES_VENV:-${CARGO_TARGET_DIR:-target}/templates-venv}
if [ ! -e "$venv/made" ] || [ "$requirements" -nt "$venv/made" ]; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"
    touch "$venv/made"
fi
binary=$(realpath "$binary")
"$venv/bin/python" tools/templates/check_expressions.py "$binary"
"$venv/bin/python" tools/templates/check_published.py "$binary" tools/golden/templates
