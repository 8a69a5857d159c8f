#!/usr/bin/env bash
# Tests the server with the clients that people use: those of OpenAI and Anthropic, a browser, a fuzzer of
# its OpenAPI description, and broken ones; and chat in a terminal. Needs Python 3.10 with venv, and PyPI on the first run.
#   tools/ci/clients.sh [MOEFLUX] [arguments of pytest]
#   tools/ci/clients.sh --prepare     installs the clients only
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tools/ci/venv.sh
source tools/ci/venv.sh

tests=crates/moeflux-server/tests/clients
venv=${MOEFLUX_CLIENTS_VENV:-${CARGO_TARGET_DIR:-target}/clients-venv}
make_venv "$venv" "$tests/requirements.txt"
[ "${1-}" != --prepare ] || exit 0

binary=${1:-${CARGO_TARGET_DIR:-target}/release/moeflux}
shift || true
if [ ! -x "$binary" ]; then
    cargo build --release --locked -p moeflux-cli
fi
MOEFLUX_BIN=$(realpath "$binary") "$venv/bin/python" -m pytest -q -p no:cacheprovider "$tests" "$@"
