#!/usr/bin/env bash
# Tests the server with coding agents as they come: Claude Code and Codex, in the versions of
# agents/package.json. Each reads a file with a tool and says what it holds. Needs Node.js with npm, Python 3
# and, on the first run, the registry of npm.
#   tools/ci/agents.sh [MOEFLUX]
#   tools/ci/agents.sh --prepare     installs the agents only
#   tools/ci/agents.sh --subagents [MOEFLUX]   says what agents and their sub-agents evaluate again; also with opencode,
#                                    where MOEFLUX_OPENCODE names a folder with it
set -euo pipefail
cd "$(dirname "$0")/../.."

agents=${MOEFLUX_AGENTS:-${CARGO_TARGET_DIR:-target}/agents}
if [ ! -e "$agents/made" ] || [ tools/ci/agents/package.json -nt "$agents/made" ]; then
    rm -rf "$agents"
    mkdir -p "$agents"
    cp tools/ci/agents/package.json "$agents/"
    # The programs are in packages of their own: no script of a package needs to run.
    npm install --prefix "$agents" --ignore-scripts --no-audit --no-fund --loglevel=error
    touch "$agents/made"
fi
[ "${1-}" != --prepare ] || exit 0
test=run.py
if [ "${1-}" = --subagents ]; then
    test=subagents.py
    shift
fi

binary=${1:-${CARGO_TARGET_DIR:-target}/release/moeflux}
if [ ! -x "$binary" ]; then
    cargo build --release --locked -p moeflux-cli
fi
others=()
if [ "$test" = subagents.py ] && [ -n "${MOEFLUX_OPENCODE-}" ]; then
    others=("$MOEFLUX_OPENCODE")
fi
python3 "tools/ci/agents/$test" "$(realpath "$binary")" "$(realpath "$agents")" "${others[@]}"
