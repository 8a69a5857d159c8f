"""Checks that a program for Linux starts on old systems: its processor, its libraries, and their versions.

    check_elf.py FILE TARGET GLIBC
"""

import re
import struct
import sys

MACHINES = {"x86_64-unknown-linux-gnu": 62, "aarch64-unknown-linux-gnu": 183}
# What the C library of every distribution has.
LIBRARIES = {
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libutil.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}
DT_NEEDED, DT_STRTAB = 1, 5
SHT_DYNAMIC, SHT_VERNEED = 6, 0x6FFFFFFE


class Elf:
    """A little-endian ELF file of 64 bits."""

    def __init__(self, data):
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a little-endian ELF file of 64 bits")
        self.data = data
        self.machine = struct.unpack_from("<H", data, 18)[0]
        offset = struct.unpack_from("<Q", data, 40)[0]
        size, count = struct.unpack_from("<HH", data, 58)
        # type, offset, size, link to the section of strings, number of entries
        self.sections = []
        for i in range(count):
            _, kind, _, _, start, length, link, info = struct.unpack_from("<IIQQQQII", data, offset + i * size)
            self.sections.append((kind, start, length, link, info))

    def text(self, start):
        return self.data[start : self.data.index(0, start)].decode("ascii")

    def of_kind(self, wanted):
        for kind, start, length, link, info in self.sections:
            if kind == wanted:
                yield start, length, self.sections[link][1], info

    def libraries(self):
        """Names of the libraries that the loader opens."""
        for start, length, strings, _ in self.of_kind(SHT_DYNAMIC):
            for at in range(start, start + length, 16):
                tag, value = struct.unpack_from("<QQ", self.data, at)
                if tag == DT_NEEDED:
                    yield self.text(strings + value)

    def versions(self):
        """Versions of symbols that the libraries must have."""
        for start, _, strings, n_files in self.of_kind(SHT_VERNEED):
            at = start
            for _ in range(n_files):
                _, n_versions, _, first, next_file = struct.unpack_from("<HHIII", self.data, at)
                entry = at + first
                for _ in range(n_versions):
                    _, _, _, name, next_entry = struct.unpack_from("<IHHII", self.data, entry)
                    yield self.text(strings + name)
                    entry += next_entry
                at += next_file


def numbers(version):
    return [int(part) for part in version.split(".")]


def faults(data, target, glibc):
    """What keeps the program from starting where it should."""
    elf = Elf(data)
    if elf.machine != MACHINES[target]:
        yield f"it is for processor {elf.machine}, not {MACHINES[target]} ({target})"
    for library in elf.libraries():
        if library not in LIBRARIES:
            yield f"it needs {library}, which not every system has"
    for version in sorted(set(elf.versions())):
        match = re.fullmatch(r"GLIBC_([0-9.]+)", version)
        if match and numbers(match[1]) > numbers(glibc):
            yield f"it needs {version}, newer than {glibc}"


def main(path, target, glibc):
    with open(path, "rb") as file:
        data = file.read()
    try:
        found = list(faults(data, target, glibc))
    except (ValueError, struct.error) as err:
        found = [f"no program that can be read: {err}"]
    for fault in found:
        print(f"{path}: {fault}", file=sys.stderr)
    if not found:
        print(f"{path}: {len(data)} bytes, {target}, glibc {glibc} or later")
    return 1 if found else 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
