"""The command ``moeflux``: ``python -m moeflux``, and the script that pip installs."""

from __future__ import annotations

import sys

from moeflux import _moeflux
from moeflux._program import program_of, run


def main() -> int:
    """Runs the command with the arguments of this process, and returns its exit code."""
    return run(_moeflux, sys.argv[1:], program_of(_moeflux.__file__) or [])


if __name__ == "__main__":
    sys.exit(main())
