#!/usr/bin/env bash
# Installs the clients that run.py tries, from npm and PyPI, with the versions that docs/guide/clients.md names.
#   tools/clients/install.sh FOLDER
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cd "$1"
npm install --no-audit --no-fund --prefix . \
    node@22 @anthropic-ai/claude-code@2.1.332 @openai/codex@0.169.0 opencode-ai@1.18.33 cline@3.0.65 \
    @qwen-code/qwen-code@0.15.10 @continuedev/cli@1.5.47 ai@6.0.326 @ai-sdk/openai@3.0.141
# A folder each: what they need of libraries excludes one another.
while read -r requirement; do
    name=${requirement%%[-=\[]*}
    python3 -m venv "$name"
    "$name/bin/pip" install --quiet --disable-pip-version-check "$requirement"
done <"$here/requirements.txt"
