"""Wakes tasks of asyncio: one thread waits for all answers, so that tasks need none."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

from moeflux import _moeflux

_Entry = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Waker:
    """The thread that waits, and the tasks that it wakes, by the number of their answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, list[_Entry]] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def bell(self, answer: _moeflux.Answer | _moeflux.Reply) -> Generator[asyncio.Future[None], None, None]:
        """A future that is done when an answer has more. `poll` is to be called once the future is there: what came
        before that wakes nothing.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        number, entry = answer.number, (loop, future)
        with self._lock:
            # Several tasks may iterate over one answer.
            self._waiting.setdefault(number, []).append(entry)
            self._start()
        try:
            yield future
        finally:
            with self._lock:
                if entry in (entries := self._waiting.get(number, [])):
                    entries.remove(entry)
                if not entries:
                    self._waiting.pop(number, None)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="moeflux-news", daemon=True)
            self._thread.start()
            atexit.register(self._stop)

    def _run(self) -> None:
        while numbers := _moeflux.wait_for_news():
            with self._lock:
                woken = [entry for number in numbers for entry in self._waiting.pop(number, [])]
            for loop, future in woken:
                try:
                    loop.call_soon_threadsafe(_wake, future)
                except RuntimeError:
                    # The loop was closed.
                    continue

    def _stop(self) -> None:
        """Ends the thread, which must not wake while the interpreter ends."""
        if self._thread is not None:
            _moeflux.stop_news()
            self._thread.join()
            self._thread = None


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_waker = Waker()


def waker() -> Waker:
    """The waker of this process."""
    return _waker


def _after_fork() -> None:
    # Its thread did not come with the process.
    global _waker
    _waker = Waker()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
