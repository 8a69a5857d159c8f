"""The client of the package ``openai`` on a model of this process.

    client = moeflux.openai.OpenAI(model)
    client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hi"}])

It is the client itself, whose requests are answered by `Model.api` in place of a connection: all that it does with a
server of moeflux it does with a model, with the same answers, streams and errors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import openai

from moeflux._api import Api, Reply
from moeflux._errors import Error

if TYPE_CHECKING:
    import httpx2 as httpx

    from moeflux._model import Model
else:
    # The library that the client sends its requests with: releases before 3 have another one.
    httpx = import_module(openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0])

#: Where requests would go. Paths of the API stand behind it.
_URL = "http://moeflux/v1"

#: Errors of the package for which there is no sense in asking again.
_NOT_AGAIN = ("stopped", "process")


class OpenAI(openai.OpenAI):
    """`openai.OpenAI`, answered by a model of this process."""

    def __init__(self, model: Model | None = None, *, names: str | Sequence[str] | None = None, **options: Any) -> None:
        """Makes a client. It does not own the model: closing the client leaves that open.

        Args:
            model: The model, as `moeflux.load` returns it.
            names: What requests call it, see `Model.api`. Every name means it where absent.
            **options: Those of `openai.OpenAI`. Waiting has no end by default, and nothing is asked twice.
        """
        if model is not None:
            options["http_client"] = httpx.Client(transport=_Transport(model.api(names)), timeout=None)
        super().__init__(**_defaults(options))


class AsyncOpenAI(openai.AsyncOpenAI):
    """`openai.AsyncOpenAI`, answered by a model of this process, for asyncio."""

    def __init__(self, model: Model | None = None, *, names: str | Sequence[str] | None = None, **options: Any) -> None:
        """As `OpenAI`."""
        if model is not None:
            options["http_client"] = httpx.AsyncClient(transport=_AsyncTransport(model.api(names)), timeout=None)
        super().__init__(**_defaults(options))


def _defaults(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a client, which gives its own to copies of itself."""
    if options.get("http_client") is None:
        raise TypeError("a model is needed: OpenAI(moeflux.load())")
    return {"api_key": "none", "base_url": _URL, "timeout": None, "max_retries": 0, **options}


class _Transport(httpx.BaseTransport):
    def __init__(self, api: Api) -> None:
        self._api = api

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        try:
            reply = self._api.request(**_parts(request, request.read()))
        except (Error, TimeoutError) as error:
            raise _failure(error, request) from error
        return _response(reply, _Body(reply, request))

    def close(self) -> None:
        self._api.close()


class _AsyncTransport(httpx.AsyncBaseTransport):
    def __init__(self, api: Api) -> None:
        self._api = api

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            reply = await self._api.arequest(**_parts(request, await request.aread()))
        except (Error, TimeoutError) as error:
            raise _failure(error, request) from error
        return _response(reply, _AsyncBody(reply, request))

    async def aclose(self) -> None:
        self._api.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, reply: Reply, request: httpx.Request) -> None:
        self._reply = reply
        self._request = request

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._reply
        except (Error, TimeoutError) as error:
            raise _failure(error, self._request) from error

    def close(self) -> None:
        self._reply.close()


class _AsyncBody(httpx.AsyncByteStream):
    def __init__(self, reply: Reply, request: httpx.Request) -> None:
        self._reply = reply
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._reply:
                yield part
        except (Error, TimeoutError) as error:
            raise _failure(error, self._request) from error

    async def aclose(self) -> None:
        self._reply.close()


def _parts(request: httpx.Request, body: bytes) -> dict[str, Any]:
    """A request as `Api.request` takes it. What is not sent over a network needs no compression."""
    headers = [(name, value) for name, value in request.headers.items() if name.lower() != "accept-encoding"]
    return {
        "method": request.method,
        "path": request.url.raw_path.decode("ascii"),
        "body": body,
        "headers": headers,
        "timeout": request.extensions.get("timeout", {}).get("read"),
    }


def _response(reply: Reply, body: Any) -> httpx.Response:
    return httpx.Response(reply.status, headers=reply.headers, stream=body)


def _failure(error: Exception, request: httpx.Request) -> Exception:
    """The error that the client makes one of its own of."""
    if isinstance(error, TimeoutError):
        return httpx.ReadTimeout(str(error), request=request)
    if isinstance(error, Error) and error.kind not in _NOT_AGAIN:
        return httpx.LocalProtocolError(str(error), request=request)
    return httpx.ConnectError(str(error), request=request)
