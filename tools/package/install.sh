#!/bin/sh
# Installs moeflux on Linux and macOS: downloads the archive of a release, checks its SHA-256, and puts the program into
# ~/.local/bin with its manual pages and completions beside it.
#
#     sh install.sh                      installs the release that this script came with
#     sh install.sh --version 0.1.0      installs this version; alone, --version prints the script's own
#     sh install.sh --to DIR             puts the program into DIR
#     sh install.sh --uninstall          removes what was installed; models and caches stay
#
# MOEFLUX_INSTALL    the folder for the program [default: ~/.local/bin]
# MOEFLUX_BASE_URL   where archive and SHA256SUMS are: an address, or a folder (an installation without a network)
#
# Nothing is changed before the archive was checked; the program appears by rename, so a run that is cut off leaves the
# old one. All of the script is functions until its last line, so a download of it that is cut off does nothing.
set -eu

# Filled when a release is made.
version='@VERSION@'
repository='@REPOSITORY@'
oldest_glibc='@GLIBC@'

say() {
    printf 'moeflux: %s\n' "$*" >&2
}

fail() {
    say "$*"
    exit 1
}

has() {
    command -v "$1" >/dev/null 2>&1
}

print_help() {
    cat <<'END'
Installs moeflux on Linux and macOS.

Usage: sh install.sh [OPTIONS]

  --version VERSION  Install this version; alone, print the version of this script
  --to DIR           Put the program into DIR [default: $MOEFLUX_INSTALL, else ~/.local/bin]
  --uninstall        Remove the program, its manual pages and completions
  --help             Show this text

MOEFLUX_BASE_URL names the address or folder of archive and SHA256SUMS.
END
}

# 2.31 is at least 2.28.
is_at_least() {
    [ "$(printf '%s\n%s\n' "$1" "$2" | sort -t . -k 1,1n -k 2,2n | head -n 1)" = "$2" ]
}

glibc_version() {
    # Other C libraries do not know the name, or call themselves musl.
    { getconf GNU_LIBC_VERSION || ldd --version; } 2>/dev/null |
        sed -n -e 's/^glibc \([0-9.]*\).*/\1/p' -e '1s/^ldd (.*) \([0-9][0-9.]*\)$/\1/p'
}

# The target of this machine's archive, or why there is none.
find_target() {
    system=$(uname -s)
    machine=$(uname -m)
    case $system in
    Linux)
        glibc=$(glibc_version)
        [ -n "$glibc" ] ||
            fail "the archives need the GNU C library $oldest_glibc; this system has another: build from source"
        is_at_least "$glibc" "$oldest_glibc" ||
            fail "the archives need the GNU C library $oldest_glibc; this system has $glibc: build from source"
        # A 64-bit kernel may carry a 32-bit system.
        bits=$(getconf LONG_BIT 2>/dev/null || echo 64)
        [ "$bits" = 64 ] || fail "the archives are for 64-bit systems; this one has $bits bits: build from source"
        case $machine in
        x86_64 | amd64) target=x86_64-unknown-linux-gnu ;;
        aarch64 | arm64) target=aarch64-unknown-linux-gnu ;;
        *) fail "there is no archive for Linux on $machine: build from source" ;;
        esac
        ;;
    Darwin)
        # A shell that Rosetta translates calls an ARM machine x86_64.
        if [ "$machine" = x86_64 ] && [ "$(sysctl -n sysctl.proc_translated 2>/dev/null || echo 0)" = 1 ]; then
            machine=arm64
        fi
        [ "$machine" = arm64 ] || fail "there is no archive for macOS on $machine: build from source"
        target=aarch64-apple-darwin
        ;;
    MINGW* | MSYS* | CYGWIN*) fail "on Windows run install.ps1 in PowerShell" ;;
    *) fail "there is no archive for $system on $machine: build from source" ;;
    esac
}

# download URL FILE
# An address, file://, or the path of a file. Only loopback may lack TLS.
download() {
    case $1 in
    file://*) cp "${1#file://}" "$2" 2>/dev/null || fail "cannot read ${1#file://} (MOEFLUX_BASE_URL)" ;;
    https://* | http://127.0.0.1[:/]* | http://localhost[:/]* | http://\[::1\][:/]*) fetch "$1" "$2" ;;
    http://*) fail "$1 is not encrypted: give an address that begins with https:// (MOEFLUX_BASE_URL)" ;;
    *) cp "$1" "$2" 2>/dev/null || fail "cannot read $1 (MOEFLUX_BASE_URL)" ;;
    esac
}

fetch() {
    if has curl; then
        curl --fail --silent --show-error --location --proto '=https,http' --proto-redir '=https' --tlsv1.2 \
            --retry 3 --connect-timeout 20 --output "$2" "$1" || fail "cannot download $1"
    elif has wget; then
        wget -q -O "$2" "$1" || fail "cannot download $1"
    else
        fail "neither curl nor wget is here: install one, or set MOEFLUX_BASE_URL to a folder with the archive"
    fi
}

sha256_of() {
    if has sha256sum; then
        sha256sum <"$1" | cut -d ' ' -f 1
    elif has shasum; then
        shasum -a 256 <"$1" | cut -d ' ' -f 1
    elif has openssl; then
        openssl dgst -sha256 -r <"$1" | cut -d ' ' -f 1
    else
        fail "no program computes SHA-256 here: install sha256sum, shasum or openssl"
    fi
}

# check ARCHIVE NAME SUMS
check() {
    wanted=$(awk -v name="$2" '$2 == name || $2 == "*" name { print $1 }' "$3")
    case $wanted in
    *[!0-9a-f]* | '') fail "SHA256SUMS names no sum of $2" ;;
    esac
    [ "${#wanted}" = 64 ] || fail "SHA256SUMS names no sum of $2"
    found=$(sha256_of "$1")
    [ "$found" = "$wanted" ] || fail "$2 is damaged: its SHA-256 is $found, not $wanted; nothing was installed"
}

# Folders: the program's, and those of manual pages and completions beside it.
find_folders() {
    if [ -n "$to" ]; then
        folder=$to
    elif [ -n "${MOEFLUX_INSTALL-}" ]; then
        folder=$MOEFLUX_INSTALL
    else
        [ -n "${HOME-}" ] || fail "there is no home folder: set MOEFLUX_INSTALL to the folder for the program"
        folder=$HOME/.local/bin
    fi
    case $folder in
    /*) ;;
    *) folder=$PWD/$folder ;;
    esac
    # Beside ~/.local/bin, and beside a bin that has a share. Another folder gets the program alone.
    share=
    if [ "$(basename "$folder")" = bin ]; then
        share=$(dirname "$folder")/share
        [ -d "$share" ] || [ "$folder" = "${HOME-}/.local/bin" ] || share=
    fi
    pages=$share/man/man1
    bash_file=$share/bash-completion/completions/moeflux
    fish_file=$share/fish/vendor_completions.d/moeflux.fish
    zsh_file=$share/zsh/site-functions/_moeflux
}

# Manual pages and completions: for_pages COMMAND calls COMMAND FILE TARGET for each, and ends with the first that fails.
for_pages() {
    for page in "$from"/man/*.1; do
        "$1" "$page" "$pages/$(basename "$page")" || return 1
    done
    "$1" "$from/completions/moeflux.bash" "$bash_file" &&
        "$1" "$from/completions/moeflux.fish" "$fish_file" &&
        "$1" "$from/completions/_moeflux" "$zsh_file"
}

# What is copied beside a target, to be renamed.
staged() {
    printf '%s/.%s.partial.%s' "$(dirname "$1")" "$(basename "$1")" "$$"
}

stage() {
    [ -f "$1" ] && [ ! -d "$2" ] && mkdir -p "$(dirname "$2")" && cp "$1" "$(staged "$2")" && chmod 644 "$(staged "$2")"
} 2>/dev/null

# A page that was moved is no longer there to be discarded.
settle() {
    mv -f "$(staged "$2")" "$2"
} 2>/dev/null

discard() {
    rm -f "$(staged "$2")"
} 2>/dev/null

# All pages or none, before the program: it is of use without them.
place_pages() {
    staging=1
    if ! for_pages stage || ! for_pages settle; then
        say "cannot write manual pages and completions below $share: the program is installed without them"
    fi
    for_pages discard || true
    staging=
}

clean_up() {
    [ -z "$staging" ] || for_pages discard || true
    [ -z "$partial" ] || rm -f "$partial"
    [ -z "$work" ] || rm -rf "$work"
}

install_release() {
    case $version$repository in
    *@*) [ -n "${MOEFLUX_BASE_URL-}" ] || fail "this copy of the script belongs to no release: set MOEFLUX_BASE_URL" ;;
    esac
    case $version in
    *[!0-9A-Za-z.+-]* | '') fail "'$version' is no version: write it like 0.1.0 (--version)" ;;
    esac
    find_target
    name=moeflux-$version-$target
    base=${MOEFLUX_BASE_URL:-$repository/releases/download/v$version}
    base=${base%/}
    has tar || fail "tar is missing: install it"
    has gzip || fail "gzip is missing: install it"

    work=$(mktemp -d) || fail "cannot make a temporary folder (TMPDIR)"
    download "$base/SHA256SUMS" "$work/SHA256SUMS"
    download "$base/$name.tar.gz" "$work/$name.tar.gz"
    check "$work/$name.tar.gz" "$name.tar.gz" "$work/SHA256SUMS"
    (cd "$work" && tar -xzf "$name.tar.gz") || fail "cannot unpack $name.tar.gz"
    from=$work/$name

    [ ! -d "$folder/moeflux" ] || fail "$folder/moeflux is a folder: move it away, or name another place (--to)"
    mkdir -p "$folder" || fail "cannot make the folder $folder"
    # Tried where it will be, because temporary folders may forbid programs.
    partial=$folder/.moeflux.partial.$$
    { cp "$from/moeflux" "$partial" && chmod 755 "$partial"; } || fail "cannot write to $folder"
    started=$("$partial" --version 2>&1) ||
        fail "the program does not start here: $(printf '%s\n' "$started" | head -n 1)"
    [ "$started" = "moeflux $version" ] || fail "the archive has '$started', not version $version"
    [ -z "$share" ] || place_pages
    mv -f "$partial" "$folder/moeflux" || fail "cannot write $folder/moeflux"
    partial=
    say "moeflux $version is in $folder"
    case :$PATH: in
    *:"$folder":*)
        first=$(command -v moeflux || true)
        [ "$first" = "$folder/moeflux" ] || say "$first comes before it in PATH"
        say 'try it: moeflux run "What does Vec::push do?"'
        ;;
    *)
        say "add it to PATH: export PATH=\"$folder:\$PATH\""
        say "try it: $folder/moeflux run \"What does Vec::push do?\""
        ;;
    esac
}

remove_release() {
    [ -f "$folder/moeflux" ] || fail "there is no moeflux in $folder (--to, MOEFLUX_INSTALL)"
    # The program last: where something stays, the same command can be given again.
    if [ -n "$share" ]; then
        for file in "$pages/moeflux.1" "$pages"/moeflux-*.1 "$bash_file" "$fish_file" "$zsh_file"; do
            rm -f "$file" 2>/dev/null || fail "cannot remove $file: the program and what is left stay"
        done
    fi
    rm -f "$folder/moeflux" 2>/dev/null || fail "cannot remove $folder/moeflux"
    say "removed moeflux from $folder; downloaded models and caches stay (~/.cache/huggingface, ~/.cache/moeflux)"
}

main() {
    action=install_release to='' asked='' partial='' staging='' work=''
    while [ $# -gt 0 ]; do
        case $1 in
        --help | -h)
            print_help
            exit 0
            ;;
        --uninstall) action=remove_release ;;
        --version | -V)
            if [ $# = 1 ] && [ -z "$to$asked" ] && [ "$action" = install_release ]; then
                printf 'moeflux install script %s\n' "$version"
                exit 0
            fi
            case ${2-} in
            '' | -*) fail "--version needs a version like 0.1.0" ;;
            esac
            asked=${2#v}
            shift
            ;;
        --to)
            [ -n "${2-}" ] || fail "--to needs a folder"
            to=$2
            shift
            ;;
        *) fail "there is no option $1 (see --help)" ;;
        esac
        shift
    done
    if [ -n "$asked" ]; then
        [ "$action" = install_release ] || fail "--uninstall removes whatever version is there: leave --version out"
        version=$asked
    fi
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    find_folders
    "$action"
}

main "$@"
