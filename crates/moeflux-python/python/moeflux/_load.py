"""From a name to a model, and what is known of models that are not loaded."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from moeflux import _moeflux
from moeflux._model import Model
from moeflux._program import program_of
from moeflux._types import Alternative, LoadOptions, Memory, Plan, Progress, StoredModel, StrPath
from moeflux._values import flag_of, json_of, path_of, refused

if TYPE_CHECKING:
    from typing_extensions import Unpack


def load(
    model: StrPath | None = None,
    *,
    download: bool = False,
    progress: bool | Progress | None = None,
    **options: Unpack[LoadOptions],
) -> Model:
    """Loads a model.

    Args:
        model: A folder of a checkpoint as it was published or packed, a GGUF file, or a name on the Hub such as
            ``org/name`` or ``org/name:Q4_K_M``, which is looked up in the Hub's cache. The demo model where absent.
        download: Whether what the cache lacks is downloaded. Without it no connection is opened.
        progress: What is called meanwhile; ``True`` shows a bar of tqdm, and so does ``None`` where tqdm is installed
            and standard error is a terminal. What else is to be known of a download is a warning of Python: that a
            request is repeated, that another process downloads the same, which of several files is taken.
        **options: See `LoadOptions`.

    Returns:
        The model. As a context it is closed at the end.

    Raises:
        Error: Where there is no such model, it is damaged or of no known family, an option makes no sense, or memory
            does not suffice.
        TypeError: Where there is no such option.
    """
    _render_in_children()
    name, given = _name_of(model), _options_of(options)
    with _Bar(progress) as bar:
        fetches = flag_of(download, "download", "option")
        return Model(_moeflux.open_model(name, given, fetches, bar.callback, _note))


def plan(model: StrPath | None = None, **options: Unpack[LoadOptions]) -> Plan:
    """What a model would take in memory with options. Headers are read, no weights, and no connection is opened.

    Raises:
        Error: Where there is no such model, or an option makes no sense. That it does not fit is no error.
        TypeError: Where there is no such option.
    """
    found = json.loads(_moeflux.plan(_name_of(model), _options_of(options)))
    alternatives = tuple(Alternative(**other) for other in found.pop("alternatives"))
    return Plan(memory=Memory(**found.pop("memory")), alternatives=alternatives, **found)


def models() -> list[StoredModel]:
    """The models in the Hub's cache, by name."""
    return [StoredModel(**found) for found in json.loads(_moeflux.models())]


def _note(text: str) -> None:
    """Passes on what a user should know of a download, such as that the Hub cannot be asked."""
    warnings.warn(text.removeprefix("warning: "), stacklevel=3)


def _name_of(model: StrPath | None) -> str | None:
    if model is None:
        return None
    # An empty name gets the sentence of the command.
    name = path_of(model, "model", "option") if model else ""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise refused("model", model, "its path is not UTF-8: rename it, or link to it", "option") from None
    return name


def _options_of(options: Mapping[str, object]) -> str:
    parts = [f"{json.dumps(name)}: {json_of(value, name, 'option')}" for name, value in options.items()]
    return "{" + ", ".join(parts) + "}"


def _render_in_children() -> None:
    """Chat templates are programs that come with models: processes with limits run them."""
    program = program_of(_moeflux.__file__)
    if program is not None:
        _moeflux.render_in_children(program)


class _Bar:
    """Calls what the user gave for progress, or shows bars of tqdm."""

    def __init__(self, progress: object) -> None:
        self._bar: Any = None
        self._make: Any = None
        self.callback: Progress | None = None
        if callable(progress):
            self.callback = cast("Progress", progress)
        elif progress is not None and not isinstance(progress, bool):
            raise refused("progress", progress, "a function, True, False or None is needed", "option")
        elif progress or (progress is None and _is_terminal()):
            self._make = _tqdm()
            self.callback = self._show if self._make is not None else None

    def _show(self, what: str, done: int, total: int) -> None:
        if total == 0:
            return
        if self._bar is None or self._bar.desc != what:
            self._close()
            is_bytes = what != "reading headers"
            self._bar = self._make(
                desc=what,
                total=total,
                unit="B" if is_bytes else "",
                unit_scale=is_bytes,
                unit_divisor=1024,
                leave=False,
            )
            self._bar.desc = what
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _tqdm() -> Any:
    try:
        from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return None
    return tqdm
