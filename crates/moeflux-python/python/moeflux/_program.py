"""The command ``moeflux``, also started by the name of this file: without site-packages, and so in little time.

A child of that kind renders chat templates, which are programs that come with models, in a process with limits.
"""

from __future__ import annotations

import os
import signal
import sys
from types import ModuleType


def run(module: ModuleType, arguments: list[str], program: list[str]) -> int:
    """Runs the command with the module that computes, and returns its exit code."""
    _open_standard_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # The command ends with the signal, as programs do, or handles it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    code: int = module.run_program(["moeflux", *arguments], program)
    return code


def _open_standard_streams() -> None:
    """Opens what is closed of the standard streams, so that no file of the command takes its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def program_of(module_file: str) -> list[str] | None:
    """The program and the arguments that start this file with the module at ``module_file``.

    ``None`` where this process is no interpreter: a frozen program, or one in which Python is embedded.
    """
    executable = sys.executable or ""
    is_python = os.path.basename(executable).lower().startswith(("python", "pypy"))
    if not is_python or hasattr(sys, "frozen"):
        return None
    # Not the environment, not site-packages, and not the folder of this file.
    return [executable, "-I", "-S", os.path.abspath(__file__), module_file]


def _load(module_file: str) -> ModuleType:
    from importlib.machinery import ExtensionFileLoader
    from importlib.util import module_from_spec, spec_from_file_location

    loader = ExtensionFileLoader("_moeflux", module_file)
    spec = spec_from_file_location("_moeflux", module_file, loader=loader)
    if spec is None:
        raise ImportError(f"{module_file}: not the module of moeflux")
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(run(_load(sys.argv[1]), sys.argv[2:], program_of(sys.argv[1]) or []))
