# shellcheck shell=bash
# Parts that the scripts of this folder share; each sources this file.

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tools/package/release.env
source "$tree/tools/package/release.env"

# shellcheck disable=SC2034  # used by those who source this
version=$(sed -n '/^\[workspace\.package\]/,/^\[[^w]/s/^version = "\(.*\)"$/\1/p' "$tree/Cargo.toml")
# Package managers sort 1.0.0~rc.1 before 1.0.0, and read a - as the end of the version.
# shellcheck disable=SC2034  # likewise
sorted_version=${version/-/\~}

fail() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# The lines of comment at the top of a script, as help.
usage() {
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
}

needs() {
    local program
    for program; do
        command -v "$program" >/dev/null || fail "$program is missing: install it"
    done
}

# parse OUT [--target TARGET] [--binary FILE] [--pages FOLDER] [--library FOLDER]
# Sets out, target, binary, pages and library; makes OUT. Paths become absolute.
parse() {
    out='' target='' binary='' pages='' library=''
    while [ $# -gt 0 ]; do
        case $1 in
        -h | --help) usage && exit 0 ;;
        --target | --binary | --pages | --library)
            [ -n "${2-}" ] || fail "$1 needs a value"
            printf -v "${1#--}" '%s' "$2"
            shift
            ;;
        -*) fail "there is no flag $1 (see --help)" ;;
        *)
            [ -z "$out" ] || fail "'$1' is one argument too many (see --help)"
            out=$1
            ;;
        esac
        shift
    done
    [ -n "$out" ] || fail "name the folder for what is made (see --help)"
    mkdir -p "$out"
    out=$(cd "$out" && pwd)
    target=${target:-$(host_target)}
    case $target in
    x86_64-unknown-linux-gnu | aarch64-unknown-linux-gnu | aarch64-apple-darwin | x86_64-pc-windows-msvc) ;;
    *) fail "--target $target: packages are made for x86_64-unknown-linux-gnu, aarch64-unknown-linux-gnu," \
        "aarch64-apple-darwin and x86_64-pc-windows-msvc" ;;
    esac
    [ -z "$binary" ] || [ -f "$binary" ] || fail "--binary $binary: no such file"
    [ -z "$pages" ] || [ -d "$pages" ] || fail "--pages $pages: no such folder"
    [ -z "$library" ] || [ -d "$library" ] || fail "--library $library: no such folder"
    [ -z "$binary" ] || binary=$(realpath "$binary")
    [ -z "$pages" ] || pages=$(realpath "$pages")
    [ -z "$library" ] || library=$(realpath "$library")
}

# The target of this machine, as archives are named for it.
host_target() {
    case $(uname -s)-$(uname -m) in
    Linux-x86_64) echo x86_64-unknown-linux-gnu ;;
    Linux-aarch64) echo aarch64-unknown-linux-gnu ;;
    Darwin-arm64) echo aarch64-apple-darwin ;;
    MINGW*-x86_64 | MSYS*-x86_64) echo x86_64-pc-windows-msvc ;;
    *) fail "no package is made on $(uname -sm): name one with --target" ;;
    esac
}

# Seconds that all files of a package bear: those of the commit, or of SOURCE_DATE_EPOCH.
epoch() {
    if [ -n "${SOURCE_DATE_EPOCH-}" ]; then
        echo "$SOURCE_DATE_EPOCH"
    else
        git -C "$tree" log -1 --format=%ct
    fi
}

# remap FOLDER NAME
# Names of files in messages of panics, the same wherever it is built.
remap() {
    local from=$1
    if command -v cygpath >/dev/null; then
        from=$(cygpath --windows "$from")
    fi
    printf '%s' "--remap-path-prefix=$from=$2"
}

# Sets what cargo builds a release with: no paths of this machine, no symbols, the time of the commit.
export_release() {
    local flags
    flags=("$(remap "$tree" /moeflux)" "$(remap "${CARGO_HOME:-$HOME/.cargo}" /cargo)")
    case $target in
    # No C library of Visual Studio has to be there.
    *-windows-msvc) flags+=(-Ctarget-feature=+crt-static) ;;
    esac
    # Separated so that paths may have spaces.
    CARGO_ENCODED_RUSTFLAGS=$(printf '%s\x1f' "${flags[@]}")
    export CARGO_ENCODED_RUSTFLAGS=${CARGO_ENCODED_RUSTFLAGS%$'\x1f'}
    export CARGO_PROFILE_RELEASE_STRIP=symbols
    export CARGO_INCREMENTAL=0
    SOURCE_DATE_EPOCH=$(epoch)
    export SOURCE_DATE_EPOCH
}

# The folder in which cargo builds.
build_folder() {
    local build=${CARGO_TARGET_DIR:-$tree/target}
    case $build in
    /* | [A-Za-z]:*) echo "$build" ;;
    *) echo "$PWD/$build" ;;
    esac
}

# build_crate PACKAGE
# Builds a crate for a release, into the target's folder of build_folder. For Linux zig links against the C library of
# release.env; it is then in $venv/bin. Sourced by those who call this: tools/ci/venv.sh.
build_crate() {
    local build cargo=${CARGO:-cargo}
    build=$(build_folder)
    export_release
    cd "$tree" || exit
    case $target in
    *-linux-gnu)
        venv=$build/zig-venv
        make_venv "$venv" tools/package/requirements.txt --require-hashes
        PATH=$venv/bin:$PATH "$cargo" zigbuild --release --locked --package "$1" --target-dir "$build" \
            --target "$target.$MOEFLUX_GLIBC"
        ;;
    *) "$cargo" build --release --locked --package "$1" --target-dir "$build" --target "$target" ;;
    esac
}

# The program's name in the target's form.
program() {
    case $target in
    *-windows-*) echo moeflux.exe ;;
    *) echo moeflux ;;
    esac
}

# Builds the program unless --binary named it, and the pages unless --pages did.
prepare() {
    if [ -z "$binary" ]; then
        "$tree/tools/package/build.sh" "$out/build" --target "$target"
        binary=$out/build/$target/$(program)
    fi
    if [ -z "$pages" ]; then
        [ "$target" = "$(host_target)" ] ||
            fail "a program for $target does not run here: name a folder with --pages (pages.sh makes it)"
        pages=$out/pages
        "$tree/tools/package/pages.sh" "$pages" --binary "$binary"
    fi
    [ -s "$pages/man/moeflux.1" ] || fail "--pages $pages: no man/moeflux.1 in it (pages.sh makes it)"
}

# stage_linux ROOT SYSTEM_VENDOR
# Lays out what Linux packages install, man pages compressed. Vendors' folder of zsh differ between systems.
stage_linux() {
    local root=$1 zsh=$2
    install -D -m 755 "$binary" "$root/usr/bin/moeflux"
    install -D -m 644 "$tree/tools/package/service/moeflux.service" "$root/usr/lib/systemd/system/moeflux.service"
    install -D -m 644 "$pages/completions/moeflux.bash" "$root/usr/share/bash-completion/completions/moeflux"
    install -D -m 644 "$pages/completions/moeflux.fish" "$root/usr/share/fish/vendor_completions.d/moeflux.fish"
    install -D -m 644 "$pages/completions/_moeflux" "$root/usr/share/zsh/$zsh/_moeflux"
    mkdir -p "$root/usr/share/man/man1"
    cp "$pages"/man/*.1 "$root/usr/share/man/man1/"
    gzip -9n "$root"/usr/share/man/man1/*.1
    chmod 644 "$root"/usr/share/man/man1/*
}
