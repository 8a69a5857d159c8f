#!/usr/bin/env bash
# The compiler of the crates of this workspace, as cargo's RUSTC_WORKSPACE_WRAPPER: it lints what it compiles, and documents
# libraries with what they were compiled from. `cargo doc` would check all dependencies once more, for minutes.
#   tools/ci/rustc.sh RUSTC ARGUMENTS...     as cargo calls it
set -euo pipefail

# Clippy's driver is a compiler that lints.
clippy-driver "$@"

shift
name='' out='' is_library='' is_test='' skips='' before=''
arguments=()
for argument in "$@"; do
    case $before in
    --crate-name) name=$argument ;;
    --crate-type) case $argument in lib | rlib) is_library=1 ;; esac ;;
    --out-dir) out=$argument ;;
    esac
    before=$argument
    if [ -n "$skips" ]; then
        skips=''
        continue
    fi
    case $argument in
    --test) is_test=1 ;;
    # Of the compiler alone.
    --emit=*) ;;
    --out-dir) skips=1 ;;
    *) arguments+=("$argument") ;;
    esac
done
# `___` is cargo's question what the compiler can do; the module of Python has no documentation of its own.
case $name in '' | ___ | _moeflux) exit 0 ;; esac
if [ -n "$is_library" ] && [ -z "$is_test" ] && [ -n "$out" ]; then
    rustdoc "${arguments[@]}" --out-dir "$out/../../doc"
fi
