"""The HTTP API of a model, called in its process: what `moeflux serve` answers, without a server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moeflux import _moeflux


class Reply:
    """A reply while it is made: an iterator over the parts of its body, for ``for`` and for ``async for``.

    Closing or dropping it ends the answer on the model's side, and so does leaving it as a context.

    Attributes:
        status: The status, such as 200.
        headers: Names, in lower case, and values.
    """

    status: int
    headers: list[tuple[str, str]]

    def __init__(self, reply: _moeflux.Reply, head: bytes | None, seconds: float | None) -> None:
        read = json.loads(head or b"{}")
        self.status = read.get("status", 500)
        self.headers = [(name, value) for name, value in read.get("headers", ())]
        self._reply: _moeflux.Reply | None = reply
        self._seconds = seconds

    def __iter__(self) -> Reply:
        return self

    def __next__(self) -> bytes:
        part = None if self._reply is None else _wait(self._reply, self._seconds)
        if part is None:
            self.close()
            raise StopIteration
        return part

    def __aiter__(self) -> Reply:
        return self

    async def __anext__(self) -> bytes:
        part = None if self._reply is None else await _await(self._reply, self._seconds)
        if part is None:
            self.close()
            raise StopAsyncIteration
        return part

    def read(self) -> bytes:
        """Waits for the rest of the body."""
        return b"".join(self)

    def close(self) -> None:
        """Ends it, if it has not ended."""
        if self._reply is not None:
            self._reply.close()
            self._reply = None

    def __enter__(self) -> Reply:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Api:
    """The paths of ``moeflux serve`` for a model, without a server: `Model.api` makes one. Any thread may use it."""

    def __init__(self, api: _moeflux.Api) -> None:
        self._api = api

    def request(
        self,
        method: str,
        path: str,
        body: bytes | Mapping[str, object] = b"",
        headers: Iterable[tuple[str, str]] = (),
        *,
        timeout: float | None = None,
    ) -> Reply:
        """Asks, and waits for the head of the reply.

        Args:
            method: Such as ``POST``.
            path: Such as ``/v1/chat/completions``, with a query where there is one.
            body: Bytes, or what becomes JSON.
            headers: Names and values.
            timeout: Seconds to wait for the head, and for each part of the body.

        Raises:
            TimeoutError: Where nothing comes in this time. The answer is ended.
            Error: Where there is no such method, or the model was closed.
        """
        reply = self._ask(method, path, body, headers)
        return Reply(reply, _wait(reply, timeout), timeout)

    async def arequest(
        self,
        method: str,
        path: str,
        body: bytes | Mapping[str, object] = b"",
        headers: Iterable[tuple[str, str]] = (),
        *,
        timeout: float | None = None,
    ) -> Reply:
        """As `request`, for asyncio. A reply whose task is cancelled is ended."""
        reply = self._ask(method, path, body, headers)
        return Reply(reply, await _await(reply, timeout), timeout)

    def _ask(
        self, method: str, path: str, body: bytes | Mapping[str, object], headers: Iterable[tuple[str, str]]
    ) -> _moeflux.Reply:
        fields = list(headers)
        if isinstance(body, Mapping):
            body = json.dumps(body).encode()
            fields.append(("content-type", "application/json"))
        return self._api.ask(method, path, fields, body)

    def close(self) -> None:
        """Ends all requests. The model stays."""
        self._api.close()

    def __enter__(self) -> Api:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _wait(reply: _moeflux.Reply, seconds: float | None) -> bytes | None:
    """The next part; the reply is ended where it is not waited for any more."""
    try:
        return reply.next(seconds)
    except BaseException:
        reply.close()
        raise


async def _await(reply: _moeflux.Reply, seconds: float | None) -> bytes | None:
    import asyncio

    try:
        return await asyncio.wait_for(_next(reply), seconds)
    except asyncio.TimeoutError:
        reply.close()
        raise TimeoutError("no part of the reply came in time") from None
    except BaseException:
        reply.close()
        raise


async def _next(reply: _moeflux.Reply) -> bytes | None:
    # Programs without asyncio need not import it.
    from moeflux._news import waker

    while True:
        with waker().bell(reply) as more:
            is_ready, part = reply.poll()
            if is_ready:
                return part
            await more
