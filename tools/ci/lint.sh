#!/usr/bin/env bash
# Lints the shell scripts, container recipes and hosted workflows of the tree. Needs Linux on x86-64, Python 3 with venv,
# and PyPI on the first run.
#   tools/ci/lint.sh
#   tools/ci/lint.sh --prepare     installs the linters only
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tools/ci/venv.sh
source tools/ci/venv.sh

venv=${CARGO_TARGET_DIR:-target}/ci-tools
make_venv "$venv" tools/ci/tools.txt --require-hashes --only-binary :all:
[ "${1-}" != --prepare ] || exit 0

# actionlint runs shellcheck on the steps of workflows where it finds it.
PATH=$(realpath "$venv")/bin:$PATH

# Files of the tree whose first line names a shell, and those that others source.
scripts() {
    git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
        if [ ! -f "$file" ] || [ -L "$file" ]; then
            continue
        fi
        case $file in
        *.sh) printf '%s\0' "$file" ;;
        *.*) ;;
        *) case $(head -c 64 "$file" | head -n 1 | tr -d '\0') in
            '#!'*sh) printf '%s\0' "$file" ;;
            esac ;;
        esac
    done
}

failed=0
scripts | xargs -0 shellcheck --external-sources || failed=1
git ls-files -z --cached --others --exclude-standard '*Dockerfile*' | xargs -0 -r hadolint || failed=1
if [ -d .github/workflows ]; then
    actionlint || failed=1
    # Offline: what it would look up elsewhere (known faults of actions) is left to the hosted run.
    zizmor --offline --quiet .github || failed=1
fi
[ "$failed" = 0 ] && echo "linted $(scripts | tr -cd '\0' | wc -c) scripts, recipes and workflows"
exit "$failed"
