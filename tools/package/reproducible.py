"""Archives of a folder that have the same bytes wherever they are made: entries sorted, one owner, one time.

    reproducible.py OUT.tar.gz|OUT.zip FOLDER SECONDS

Entries begin with the folder's own name. Files that are executable stay so. A link in a .tar.gz may name a file of its own
folder; other links and devices are refused.
"""

import gzip
import os
import stat
import sys
import tarfile
import time
import zipfile


def is_link(path):
    """Whether it is a link to a file of its own folder."""
    if not os.path.islink(path):
        return False
    target = os.readlink(path)
    return target == os.path.basename(target) and os.path.isfile(path)


def entries(folder, with_links):
    """Paths of the folder, itself first, and their names in the archive, sorted by name."""
    parent = os.path.dirname(os.path.abspath(folder))
    found = [os.path.abspath(folder)]
    for place, folders, files in os.walk(folder):
        found += [os.path.abspath(os.path.join(place, name)) for name in folders + files]
    named = sorted((os.path.relpath(path, parent).replace(os.sep, "/"), path) for path in found)
    for name, path in named:
        kind = os.lstat(path).st_mode
        if not (stat.S_ISDIR(kind) or stat.S_ISREG(kind) or (with_links and is_link(path))):
            raise ValueError(f"{path}: neither a file nor a folder")
    return named


def mode(path):
    """Permissions for everybody: those of the file system here depend on a umask."""
    if os.path.isdir(path) or os.path.islink(path) or os.access(path, os.X_OK):
        return 0o755
    return 0o644


def write_tar(out, folder, seconds):
    # The header of gzip has a time and a name, too.
    with open(out, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for name, path in entries(folder, with_links=True):
                entry = tarfile.TarInfo(name)
                entry.mtime, entry.mode = seconds, mode(path)
                if os.path.islink(path):
                    entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
                    tar.addfile(entry)
                    continue
                if os.path.isdir(path):
                    entry.type = tarfile.DIRTYPE
                    tar.addfile(entry)
                    continue
                entry.size = os.path.getsize(path)
                with open(path, "rb") as file:
                    tar.addfile(entry, file)


def write_zip(out, folder, seconds):
    date = time.gmtime(max(seconds, 315532800))[:6]  # the format begins in 1980
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name, path in entries(folder, with_links=False):
            if os.path.isdir(path):
                continue
            entry = zipfile.ZipInfo(name, date)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, whose permissions follow
            entry.external_attr = (stat.S_IFREG | mode(path)) << 16
            with open(path, "rb") as file:
                packed.writestr(entry, file.read())


def main(out, folder, seconds):
    write = write_zip if out.endswith(".zip") else write_tar
    partial = out + ".partial"
    try:
        write(partial, folder, int(seconds))
        os.replace(partial, out)
    finally:
        if os.path.exists(partial):
            os.remove(partial)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
