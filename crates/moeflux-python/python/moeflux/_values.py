"""Values that users write: each is what it has to be, or an error names it."""

from __future__ import annotations

import json
import math
import numbers
import os
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from moeflux._errors import Error, ErrorKind

#: Values of this size and above are no amounts of anything; they also have no room in a 32-bit float.
_TOO_LARGE = 1e30

#: Whole numbers end below this.
_MOST = 1 << 64


def refused(name: str, value: object, remedy: str, kind: ErrorKind = "request") -> Error:
    """The error for a value."""
    return Error(f"{name} {short(value)}: {remedy}", kind, name)


def short(value: object) -> str:
    """A value in a message: one line, and not all of a long one."""
    return " ".join(reprlib.repr(value).split())


def whole_number_of(value: object, name: str) -> int:
    """A whole number, those of numpy included."""
    if not isinstance(value, bool) and isinstance(value, numbers.Integral) and 0 <= int(value) < _MOST:
        return int(value)
    raise refused(name, value, "a whole number is needed, at least 0")


def number_of(value: object, name: str, remedy: str = "a number is needed") -> float:
    """A finite number, those of numpy included."""
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if abs(number) < _TOO_LARGE:
            return number
    raise refused(name, value, remedy)


def flag_of(value: object, name: str, kind: ErrorKind = "request") -> bool:
    """A truth value."""
    if isinstance(value, bool):
        return value
    raise refused(name, value, "True or False is needed", kind)


def text_of(value: object, name: str) -> str:
    """A text that has a form in UTF-8."""
    if not isinstance(value, str):
        raise refused(name, value, "a text is needed")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Error(
            f"{name}: character {error.start} is half of a surrogate pair, which is no text",
            "request",
            "messages" if name == "prompt" else name,
        ) from None
    return value


def path_of(value: object, name: str, kind: ErrorKind = "request") -> str:
    """The path of a file or a folder."""
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise refused(name, value, "a path is needed", kind)
    path = os.fsdecode(cast("str | bytes | os.PathLike[str]", value))
    given = cast("object", value)
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise refused(name, given, "it is no path, as it is half of a surrogate pair", kind) from None
    if not path or "\0" in path:
        raise refused(name, given, "a path is needed", kind)
    return path


def is_list(value: object) -> bool:
    """Whether something is a sequence of values, in place of one value."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview))


def list_of(values: object, name: str, items: str) -> list[Any]:
    """The values of a list, a tuple or an iterator."""
    given = values
    try:
        if not isinstance(values, (str, bytes, bytearray, Mapping)):
            return [*cast("Any", values)]
    except TypeError:
        pass
    raise refused(name, given, f"a list of {items} is needed")


def json_of(value: object, name: str, kind: ErrorKind = "request") -> str:
    """JSON of something that users wrote."""
    try:
        text = json.dumps(value, default=_plain, allow_nan=False, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        problem = "a text in it has half of a surrogate pair"
    except Exception as error:
        # Values may be of any class, whose methods may raise anything.
        problem = " ".join(str(error).split()) or type(error).__name__
    else:
        return text
    raise Error(f"{name}: no JSON can be made of it ({problem})", kind, name)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, object]", value))
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump()
    if is_list(value):
        return list(cast("Sequence[object]", value))
    raise TypeError(f"{type(value).__name__} has no form in JSON")
