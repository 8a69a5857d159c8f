"""What goes wrong, as an exception."""

from __future__ import annotations

from typing import Any, Literal

#: What an error is about.
#:
#: - ``model``: files of the model are missing, damaged, or of no kind that is read.
#: - ``option``: an option makes no sense for the model or the machine.
#: - ``memory``: memory does not suffice.
#: - ``request``: a part of a request cannot be used.
#: - ``unsupported``: the model can do no such thing.
#: - ``busy``: too many requests wait already.
#: - ``stopped``: the model or the session was closed, or the model's thread has ended.
#: - ``machine``: a device, a drive or a process failed.
#: - ``process``: the model belongs to another process, from which this one was forked.
ErrorKind = Literal["model", "option", "memory", "request", "unsupported", "busy", "stopped", "machine", "process"]


class Error(Exception):
    """What can go wrong between opening a model and the end of an answer.

    Its text is one line that names the file or the argument, the value and what helps.

    Attributes:
        kind: What it is about.
        option: The keyword at fault, or one of which another value helps; ``None`` where there is none.
    """

    kind: ErrorKind
    option: str | None

    def __init__(self, message: str, kind: ErrorKind, option: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.option = option

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (str(self), self.kind, self.option))
