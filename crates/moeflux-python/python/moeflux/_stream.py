"""An answer while it is made, as an iterator."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Generic, NoReturn, TypeVar, cast

from moeflux import _moeflux
from moeflux._errors import Error
from moeflux._requests import completion_of
from moeflux._types import Chunk, Completion, ToolCall

T = TypeVar("T")


class Stream(Generic[T]):
    """An answer while it is made: an iterator over its parts, for ``for`` and for ``async for``.

    It ends after the last part or with the first error. Closing or dropping it ends the answer on the model's side, and
    so does leaving it as a context. It is one answer: two iterations share its parts.
    """

    def __init__(self, answer: _moeflux.Answer, response_format: object, wants_logprobs: bool) -> None:
        self._answer: _moeflux.Answer | None = answer
        self._response_format = response_format
        self._wants_logprobs = wants_logprobs
        self._completion: Completion[T] | None = None

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> Chunk:
        answer = self._open()
        if answer is None:
            raise StopIteration
        try:
            piece = answer.next()
        except BaseException:
            self.close()
            raise
        if piece is None:
            self._end(answer)
            raise StopIteration
        return _chunk(piece)

    def __aiter__(self) -> Stream[T]:
        return self

    async def __anext__(self) -> Chunk:
        answer = self._open()
        if answer is None:
            raise StopAsyncIteration
        try:
            is_ready, piece = answer.poll()
            if not is_ready:
                piece = await _next(answer)
        except BaseException:
            self.close()
            raise
        if piece is None:
            self._end(answer)
            raise StopAsyncIteration
        return _chunk(piece)

    def _open(self) -> _moeflux.Answer | None:
        """The answer; ``None`` where it has ended."""
        return self._answer

    def _end(self, answer: _moeflux.Answer) -> None:
        self._answer = None
        self._completion = completion_of(answer, self._response_format, self._wants_logprobs)

    def result(self) -> Completion[T]:
        """Waits for the end and returns the whole answer.

        Raises:
            Error: Where a step failed, or the stream was closed before its end.
        """
        answer = self._answer
        if answer is not None:
            try:
                answer.finish()
            except BaseException:
                self.close()
                raise
            self._end(answer)
        return self.completion

    @property
    def completion(self) -> Completion[T]:
        """The whole answer, once it has ended.

        Raises:
            Error: Where it has not, or was closed before its end.
        """
        if self._completion is None:
            state = "was closed before its end" if self._answer is None else "has not ended: call result()"
            raise Error(f"the answer {state}", "stopped")
        return self._completion

    def close(self) -> None:
        """Ends the answer, if it has not ended."""
        if self._answer is not None:
            self._answer.cancel()
            self._answer = None

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Stream[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an answer that is being made cannot be pickled: send its completion")


async def _next(answer: _moeflux.Answer) -> Any:
    """Waits for the next part of an answer."""
    # Programs without asyncio need not import it.
    from moeflux._news import waker

    while True:
        with waker().bell(answer) as more:
            is_ready, piece = answer.poll()
            if is_ready:
                return piece
            await more


def _chunk(piece: Any) -> Chunk:
    kind, text, call = piece
    if kind == "text":
        return Chunk(text=text)
    if kind == "thought":
        return Chunk(thought=text)
    name, arguments = cast("tuple[str, str]", call)
    return Chunk(tool_call=ToolCall(text, name, arguments))
