#!/usr/bin/env bash
# Tests the C interface from C and C++: installs it, builds the examples and the programs of tools/ci/c against it, and runs
# them on the demo model, also under AddressSanitizer (with LeakSanitizer and UndefinedBehaviorSanitizer) and ThreadSanitizer;
# looks at memory over many answers. Needs Linux, a C and a C++ compiler, and libraries that were built.
#   tools/ci/c.sh [FOLDER]     the folder of libmoeflux_c.a [target/ci/deps, where cargo test --no-run leaves it]
set -euo pipefail
cd "$(dirname "$0")/../.."

library=${1-${CARGO_TARGET_DIR:-target}/ci/deps}
demo=crates/moeflux-cli/demo
cc=${CC:-cc} cxx=${CXX:-c++}
if [ "$(uname -s)" != Linux ]; then
    echo "SKIP the C interface: it is tested on Linux"
    exit 0
fi
if ! command -v "$cc" >/dev/null || ! command -v "$cxx" >/dev/null; then
    echo "SKIP the C interface: no $cc or no $cxx"
    exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tools/package/c-library.sh "$work/prefix" --library "$library"
lib=$work/prefix/lib
# As pkg-config reads it: links to the shared library, and to the static one.
if command -v pkg-config >/dev/null; then
    export PKG_CONFIG_PATH=$lib/pkgconfig
    read -ra flags <<<"$(pkg-config --cflags moeflux)"
    read -ra shared <<<"$(pkg-config --libs moeflux)"
    read -ra static <<<"$(pkg-config --variable=static moeflux)"
else
    echo "SKIP moeflux.pc: no pkg-config"
    flags=("-I$work/prefix/include") shared=("-L$lib" -lmoeflux)
    static=("$lib/libmoeflux.a" -lgcc_s -lutil -lrt -lpthread -lm -ldl)
fi
warnings=(-Wall -Wextra -Wpedantic -Wshadow -Werror)
c=("$cc" -std=c11 -g -O1 "${warnings[@]}" "${flags[@]}")
cpp=("$cxx" -std=c++17 -g -O1 "${warnings[@]}" "${flags[@]}")

# compile KIND FLAG...
# Builds all programs with FLAGs into the folder KIND.
compile() {
    local kind=$1 name
    shift
    mkdir -p "$work/$kind"
    "${c[@]}" "$@" examples/c/chat.c -o "$work/$kind/chat" "${link[@]}"
    for name in hostile threads flat; do
        "${c[@]}" "$@" "tools/ci/c/$name.c" -o "$work/$kind/$name" "${link[@]}" -lpthread
    done
    "${cpp[@]}" "$@" examples/c/embed.cpp -o "$work/$kind/embed" "${link[@]}"
}

# can FLAG...
# Whether programs can be built and run with FLAGs.
can() {
    echo 'int main(void) { return 0; }' >"$work/empty.c"
    "$cc" "$@" "$work/empty.c" -o "$work/empty" 2>"$work/why" && "${run[@]}" "$work/empty" 2>"$work/why"
}

# examples KIND
# Runs the examples, and checks what they say.
examples() {
    local said
    said=$("${run[@]}" "$work/$1/chat" "$demo" 'What is 23 + 45?' 'What is 2 + 3?' 2>"$work/log") ||
        { cat "$work/log" >&2 && return 1; }
    [ "$(head -n 1 <<<"$said")" = 68 ] || { echo "chat ($1) says: $said" >&2 && return 1; }
    [ "$(wc -l <<<"$said")" = 2 ] || { echo "chat ($1) says: $said" >&2 && return 1; }
    said=$("${run[@]}" "$work/$1/embed" "$demo" 'What is 23 + 45?' 67 68 69)
    [ "$(sort -rn <<<"$said" | awk 'NR == 1 { print $2 }')" = 68 ] ||
        { echo "embed ($1) says: $said" >&2 && return 1; }
}

run=(env "LD_LIBRARY_PATH=$lib")
link=("${shared[@]}")
compile plain
examples plain
"${run[@]}" "$work/plain/hostile" "$demo"
"${run[@]}" "$work/plain/threads" "$demo"
"${run[@]}" "$work/plain/flat" "$demo" 200 256
echo "the shared library answers"

# The header alone, as the oldest language that it is for.
echo '#include <moeflux.h>' >"$work/header.c"
"$cc" -std=c99 "${warnings[@]}" "${flags[@]}" -fsyntax-only "$work/header.c"

run=(env)
link=("${static[@]}")
"${c[@]}" examples/c/chat.c -o "$work/static-chat" -Wl,--gc-sections "${link[@]}"
said=$("$work/static-chat" "$demo" 'What is 23 + 45?' 2>/dev/null)
[ "$said" = 68 ] || { echo "the static library says: $said" >&2 && exit 1; }
echo "the static library answers, in a program of $(($(wc -c <"$work/static-chat") >> 20)) MiB"

# The C side is instrumented; what the library allocates and frees is seen, too.
link=("${shared[@]}")
run=(env "LD_LIBRARY_PATH=$lib" ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=halt_on_error=1)
if can -fsanitize=address,undefined; then
    compile asan -fsanitize=address,undefined -fno-omit-frame-pointer
    examples asan
    "${run[@]}" "$work/asan/hostile" "$demo"
    "${run[@]}" "$work/asan/threads" "$demo"
    echo "AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer found nothing"
else
    echo "SKIP AddressSanitizer: $(tail -n 1 "$work/why")"
fi

# The library's own atomics are not instrumented: calls of memcpy and the like that it makes are left out, since nothing
# would say what orders them. The program's accesses, its callbacks included, are all looked at. Where addresses are
# random in more bits than the sanitizer knows, they are not randomised.
run=(env "LD_LIBRARY_PATH=$lib" TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1)
if command -v setarch >/dev/null && setarch --addr-no-randomize true 2>/dev/null; then
    run=(setarch --addr-no-randomize "${run[@]}")
fi
if can -fsanitize=thread; then
    compile tsan -fsanitize=thread
    "${run[@]}" "$work/tsan/threads" "$demo"
    "${run[@]}" "$work/tsan/hostile" "$demo"
    echo "ThreadSanitizer found nothing"
else
    echo "SKIP ThreadSanitizer: $(tail -n 1 "$work/why")"
fi
