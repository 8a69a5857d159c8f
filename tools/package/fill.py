"""Fills the templates of packages and installers with a release's version, addresses and hashes.

    fill.py --version V --repository URL --glibc G --seconds TIME --sums SHA256SUMS --out FOLDER FILE_OR_FOLDER...

Placeholders: @VERSION@, @REPOSITORY@, @GLIBC@, @DATE@, and @SHA256:TARGET.ENDING@ for the hash of the archive
moeflux-VERSION-TARGET.ENDING. One that nothing fills is an error, and then nothing is written.
"""

import argparse
import datetime
import pathlib
import re
import sys

PLACEHOLDER = re.compile(r"@([A-Z][A-Z0-9]*(?::[A-Za-z0-9_.-]+)?)@")
VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?")
LOOPBACK = re.compile(r"http://(127\.0\.0\.1|localhost)(:[0-9]+)?(/[A-Za-z0-9._/-]*)?")
ADDRESS = re.compile(r"https://[A-Za-z0-9.-]+(:[0-9]+)?(/[A-Za-z0-9._~-]+)+")


class Mistake(Exception):
    """Input from which no correct file can be made."""


def read_sums(text):
    """Hashes by file name, of a file as sha256sum writes it."""
    sums = {}
    for line in text.splitlines():
        match = re.fullmatch(r"([0-9a-f]{64}) [ *](\S+)", line)
        if not match:
            raise Mistake(f"no line of sha256sum: {line!r}")
        if sums.setdefault(match[2], match[1]) != match[1]:
            raise Mistake(f"two hashes of {match[2]}")
    return sums


def values(version, repository, glibc, seconds, sums):
    if not VERSION.fullmatch(version):
        raise Mistake(f"version '{version}': write it like 0.1.0")
    if not (ADDRESS.fullmatch(repository) or LOOPBACK.fullmatch(repository)):
        raise Mistake(
            f"repository '{repository}': an address like https://host/owner/name is needed, without a slash at its end "
            "(MOEFLUX_REPOSITORY in tools/package/release.env)"
        )
    if not re.fullmatch(r"[0-9]+\.[0-9]+", glibc):
        raise Mistake(f"glibc '{glibc}': write it like 2.28")
    date = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%d")
    known = {"VERSION": version, "REPOSITORY": repository, "GLIBC": glibc, "DATE": date}
    prefix = f"moeflux-{version}-"
    for name, digest in sums.items():
        if name.startswith(prefix):
            known[f"SHA256:{name[len(prefix):]}"] = digest
    return known


def fill(text, known, name):
    """The text with its placeholders filled, in one pass: values are not searched again."""
    missing = sorted({match[1] for match in PLACEHOLDER.finditer(text)} - known.keys())
    if missing:
        raise Mistake(f"{name}: nothing fills {', '.join('@' + key + '@' for key in missing)}")
    return PLACEHOLDER.sub(lambda match: known[match[1]], text)


def templates(paths):
    """Files to fill, and their names below the output folder."""
    for path in map(pathlib.Path, paths):
        if path.is_dir():
            for file in sorted(path.rglob("*")):
                if file.is_file():
                    yield file, file.relative_to(path.parent)
        else:
            yield path, pathlib.Path(path.name)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for flag in ("--version", "--repository", "--glibc", "--sums", "--out"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--seconds", required=True, type=int)
    parser.add_argument("paths", nargs="+")
    given = parser.parse_args(arguments)
    try:
        sums = read_sums(pathlib.Path(given.sums).read_text())
        known = values(given.version, given.repository, given.glibc, given.seconds, sums)
        filled = [(name, file, fill(file.read_text(), known, file)) for file, name in templates(given.paths)]
    except (Mistake, OSError) as err:
        sys.exit(f"fill.py: {err}")
    for name, file, text in filled:
        target = pathlib.Path(given.out) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, newline="\n")
        target.chmod(file.stat().st_mode & 0o777)
        print(target)


if __name__ == "__main__":
    main(sys.argv[1:])
