#!/usr/bin/env bash
# Builds the book of docs/. Its links and anchors are checked by the tests of xtask. mdbook is the installed one, else
# a wheel of PyPI, else it is built, which takes minutes.
#   tools/ci/book.sh
#   tools/ci/book.sh --prepare     only finds or installs mdbook; fails where it cannot be had
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tools/ci/venv.sh
source tools/ci/venv.sh

venv=${CARGO_TARGET_DIR:-target}/book-venv
if command -v mdbook >/dev/null; then
    mdbook=mdbook
elif make_venv "$venv" tools/ci/book.txt --require-hashes; then
    mdbook=$venv/bin/mdbook
else
    cargo install mdbook --locked --debug --no-default-features --features search
    mdbook=mdbook
fi
[ "${1-}" != --prepare ] || exit 0
"$mdbook" build docs
