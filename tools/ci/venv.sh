# shellcheck shell=bash
# Virtual environments of Python for the scripts in this folder, which source this file.

# make_venv FOLDER REQUIREMENTS [PIP ARGUMENT...]
# Makes the environment where it is missing or older than its requirements. Needs Python 3.10 with venv, and PyPI.
make_venv() {
    local folder=$1 requirements=$2 programs=bin
    shift 2
    case $(uname -s) in
    MINGW* | MSYS*) programs=Scripts ;;
    esac
    if [ -e "$folder/made" ] && [ ! "$requirements" -nt "$folder/made" ]; then
        return
    fi
    # Callers may test the result, where the shell goes on after a failure.
    rm -rf "$folder" &&
        python3 -m venv "$folder" &&
        "$folder/$programs/pip" install --quiet --disable-pip-version-check "$@" -r "$requirements" &&
        touch "$folder/made"
}
