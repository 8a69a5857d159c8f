#!/usr/bin/env bash
# Tests the server with the clients that people use: those of OpenAI and Anthropic, a browser, a fuzzer of
# its OpenAPI description, and broken ones; and chat in a terminal. Needs Python 3.10 with venv, and PyPI on the first run.
#   tools/ci/clients.sh [MOEFLUX] [arguments of pytest]
set -euo pipefail
cd "$(dirname "$0")/../.."

binary=${1:-${CARGO_TARGET_DIR:-target}/release/moeflux}
shift || true
if [ ! -x "$binary" ]; then
    cargo build --release --locked -p moeflux-cli
fi
tests=crates/moeflux-server/tests/clients
venv=${MOEFLUX_CLIENTS_VENV:-${CARGO_TARGET_DIR:-target}/clients-venv}
if [ ! -e "$venv/made" ] || [ "$tests/requirements.txt" -nt "$venv/made" ]; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$tests/requirements.txt"
    touch "$venv/made"
fi
MOEFLUX_BIN=$(realpath "$binary") "$venv/bin/python" -m pytest -q -p no:cacheprovider "$tests" "$@"
