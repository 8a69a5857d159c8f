"""A loaded model: answers, scores, sessions, and its tokenizer."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, overload

from moeflux._api import Api
from moeflux._errors import Error
from moeflux._requests import PromptArg, messages_of, params_of, prompt_of, request_of, schema_of, tokens_of, tools_of
from moeflux._session import Session, numpy
from moeflux._stream import Stream
from moeflux._types import (
    Completion,
    Memory,
    Message,
    Prompt,
    ResponseFormat,
    Sampling,
    SamplingParams,
    Score,
    Stats,
)
from moeflux._values import flag_of, list_of, text_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Unpack

    from moeflux import _moeflux

    class Asking(Sampling, total=False):
        """What can be said of an answer, as keywords."""

        tools: Sequence[Mapping[str, Any]] | None
        tool_choice: str | Mapping[str, Any] | None
        parallel_tool_calls: bool | None
        continue_final_message: bool


T = TypeVar("T")

#: Keywords of `Asking` that are no sampling.
_OF_CONVERSATIONS = ("tools", "tool_choice", "parallel_tool_calls", "continue_final_message")


#: Fields of `Stats` that the model itself counts since it was loaded.
_OF_ANSWERS = (
    "prompt_tokens",
    "reused_tokens",
    "completion_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "steps",
    "answers",
    "busy_s",
)


class Tokenizer:
    """The tokenizer of a model."""

    def __init__(self, model: _moeflux.Model, facts: Mapping[str, Any]) -> None:
        self._model = model
        self.vocab_size: int = facts["tokenizer_vocab"]
        """One more than the largest id. A model may have more logits than this."""
        self.eos_token_id: int | None = facts["eos_id"]
        """The token that the model's files call the end."""
        self.eos_token_ids: tuple[int, ...] = tuple(facts["eos_ids"])
        """Tokens that end an answer, ascending."""
        self.bos_token_id: int | None = facts["bos_id"]
        """The token that begins a text, if there is one."""
        self.has_chat_template: bool = facts["has_chat_template"]

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of a text, without one that begins every text.

        Args:
            text: The text.
            special: Whether ``<|im_end|>`` is a control token, in place of ten characters. Texts of others must not
                have any.
        """
        return self._model.encode(text_of(text, "text"), flag_of(special, "special"))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids, control tokens included. Bytes that are not UTF-8 become U+FFFD."""
        return self._model.decode(tokens_of(tokens))

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool | None = None,
        continue_final_message: bool = False,
        tokenize: Literal[True] = True,
    ) -> list[int]: ...

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool | None = None,
        continue_final_message: bool = False,
        tokenize: Literal[False],
    ) -> str: ...

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool | None = None,
        continue_final_message: bool = False,
        tokenize: bool = True,
    ) -> list[int] | str:
        """The prompt that a conversation becomes, up to where the answer begins.

        Token ids are what the model reads: text of messages never becomes a control token. In the text both look alike.

        Args:
            messages: The conversation.
            tools: Tools that the model may call.
            thinking: Whether the model thinks before it answers, for models that can be asked to.
            continue_final_message: Whether the last message is the beginning of the answer.
            tokenize: Whether token ids are returned, in place of text.
        """
        conversation, pictures = messages_of(messages)
        thinks = None if thinking is None else flag_of(thinking, "thinking")
        continues = flag_of(continue_final_message, "continue_final_message")
        text, tokens = self._model.render(conversation, pictures, tools_of(tools), thinks, continues)
        return tokens if tokenize else text


class Model:
    """A loaded model. Any thread and any task may ask it: answers that are made at the same time share steps.

    `close` frees its memory, and so does leaving it as a context.
    """

    def __init__(self, model: _moeflux.Model) -> None:
        """Use `load`."""
        self._model = model
        self._lock = threading.Lock()
        self._counted_before: dict[str, float] = {}
        self._open: weakref.WeakSet[Stream[Any] | Session | Api] = weakref.WeakSet()
        facts = json.loads(model.facts())
        self.path: str = facts["path"]
        """Where its files are."""
        self.family: str = facts["family"]
        """Such as ``qwen3_moe``."""
        self.device: str = facts["device"]
        """Where it runs."""
        self.threads: int = facts["threads"]
        """Threads that compute."""
        self.vocab: int = facts["vocab"]
        """Logits after a token."""
        self.memory = Memory(**facts["memory"])
        """What it takes."""
        self.warnings: tuple[str, ...] = tuple(facts["warnings"])
        """What its user should know although nothing failed."""
        self.tokenizer = Tokenizer(model, facts)

    @property
    def context_length(self) -> int:
        """Tokens of a prompt and its answer together."""
        return self.memory.ctx

    @overload
    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        response_format: type[T],
        **asking: Unpack[Asking],
    ) -> Completion[T]: ...

    @overload
    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        response_format: Mapping[str, Any] | None = None,
        **asking: Unpack[Asking],
    ) -> Completion[Any]: ...

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        response_format: ResponseFormat | None = None,
        **asking: Unpack[Asking],
    ) -> Completion[Any]:
        """Goes on with a prompt, or answers a conversation, and waits for the end.

        Args:
            prompt: A text, its token ids, or messages. A text is a raw prompt: no chat template is applied, and control
                tokens in it count.
            params: How the answer is made; keywords take the place of its fields.
            response_format: The form of the text: a class of pydantic or a JSON schema.
            **asking: The fields of `SamplingParams`; of conversations ``tools``, ``tool_choice`` (``auto``, ``none``,
                ``required`` or the name of a tool), ``parallel_tool_calls`` and ``continue_final_message``, for a last
                message that is the beginning of the answer.

        Raises:
            Error: Where the request cannot be used, or a step fails.
            KeyboardInterrupt: The answer is ended at once.
        """
        return self._stream(prompt, params, response_format, asking).result()

    async def agenerate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        response_format: ResponseFormat | None = None,
        **asking: Unpack[Asking],
    ) -> Completion[Any]:
        """As `generate`, for asyncio. An answer whose task is cancelled is ended."""
        async with self._stream(prompt, params, response_format, asking) as stream:
            async for _ in stream:
                pass
            return stream.completion

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        response_format: ResponseFormat | None = None,
        **asking: Unpack[Asking],
    ) -> Stream[Any]:
        """As `generate`, part by part, for ``for`` and ``async for``. Dropping the iterator ends the answer."""
        return self._stream(prompt, params, response_format, asking)

    astream = stream

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        response_format: type[T],
        **asking: Unpack[Asking],
    ) -> Completion[T]: ...

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        response_format: Mapping[str, Any] | None = None,
        **asking: Unpack[Asking],
    ) -> Completion[Any]: ...

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        response_format: ResponseFormat | None = None,
        **asking: Unpack[Asking],
    ) -> Completion[Any]:
        """Answers a conversation: `generate` for messages alone. `Completion.message` is what to append to them."""
        [stream] = self._streams([(messages_of(messages), params)], response_format, asking)
        return stream.result()

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        response_format: ResponseFormat | None = None,
        return_exceptions: bool = False,
        **asking: Unpack[Asking],
    ) -> list[Completion[Any]]:
        """Answers many prompts, as many at a time as there are sessions.

        Args:
            prompts: Each as `generate` takes it.
            params: How all answers are made, or one for each.
            response_format: As in `generate`.
            return_exceptions: Whether an answer that fails is an `Error` in the list, in place of ending all others.
            **asking: As in `generate`.

        Returns:
            The answers, in the order of the prompts.
        """
        all_prompts = [prompt_of(prompt) for prompt in list_of(prompts, "prompts", "prompts")]
        if params is None or isinstance(params, SamplingParams):
            many: list[SamplingParams | None] = [params] * len(all_prompts)
        else:
            many = list_of(params, "params", "SamplingParams")
        if len(many) != len(all_prompts):
            raise Error(f"params: there are {len(many)} for {len(all_prompts)} prompts", "request", "params")
        streams = self._streams(list(zip(all_prompts, many, strict=True)), response_format, asking)
        done: list[Any] = []
        try:
            for stream in streams:
                try:
                    done.append(stream.result())
                except Error as error:
                    if not return_exceptions:
                        raise
                    done.append(error)
        finally:
            for stream in streams:
                stream.close()
        return done

    def _stream(
        self, prompt: Prompt, params: SamplingParams | None, response_format: object, asking: Mapping[str, Any]
    ) -> Stream[Any]:
        return self._streams([(prompt_of(prompt), params)], response_format, asking)[0]

    def _streams(
        self,
        asked: Sequence[tuple[PromptArg, SamplingParams | None]],
        response_format: object,
        asking: Mapping[str, Any],
    ) -> list[Stream[Any]]:
        sampling = {name: value for name, value in asking.items() if name not in _OF_CONVERSATIONS}
        of_conversations = {name: asking[name] for name in _OF_CONVERSATIONS if name in asking}
        continues = of_conversations.pop("continue_final_message", False)
        schema = schema_of(response_format)
        all_params = [params_of(params, sampling) for _, params in asked]
        requests = [request_of(params, schema=schema, continues=continues, **of_conversations) for params in all_params]
        answers = self._model.answer([prompt for prompt, _ in asked], requests)
        streams = [
            Stream[Any](answer, response_format, params.logprobs is not None)
            for answer, params in zip(answers, all_params, strict=True)
        ]
        self._keep(*streams)
        return streams

    def _keep(self, *opened: Stream[Any] | Session) -> None:
        """Has `close` end what was opened, also where it was called meanwhile."""
        with self._lock:
            self._open.update(opened)
        if self._model.is_closed():
            for one in opened:
                one.close()

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Evaluates tokens in a session of their own.

        Returns:
            The logits after each, of shape ``(n_tokens, vocab)``. The array is the memory that they were written to.
        """
        with self.session() as session:
            return session.logits(tokens)

    def score(self, prompts: Sequence[Sequence[int]]) -> list[Score]:
        """Probabilities of given tokens. Prompts share steps, as answers do, and all of their logits are not kept.

        Args:
            prompts: Token ids of each, at least one and fewer than the context.
        """
        module = numpy()
        scores = self._model.score([tokens_of(prompt) for prompt in list_of(prompts, "prompts", "token ids of each")])
        return [
            Score(module.frombuffer(logprobs, module.float32), module.frombuffer(are_likeliest, module.bool_))
            for logprobs, are_likeliest in scores
        ]

    def session(self) -> Session:
        """Begins an empty session."""
        session = Session(self._model.session(), self.vocab)
        self._keep(session)
        return session

    def api(self, names: str | Sequence[str] | None = None) -> Api:
        """The HTTP API of ``moeflux serve`` for this model, called in this process.

        Args:
            names: What requests call the model, the first being its name; other names are refused. Where absent, it has
                the name of its files, and every name means it.
        """
        given = [names] if isinstance(names, str) else list(names or ())
        api = Api(self._model.api(given or [os.path.basename(self.path.rstrip("/\\")) or "moeflux"], not given))
        with self._lock:
            self._open.add(api)
        return api

    def stats(self) -> Stats:
        """Counts since the model was loaded, or since `reset_stats`."""
        counts = json.loads(self._model.stats())
        for name, before in self._counted_before.items():
            counts[name] -= before
        return Stats(**counts)

    def reset_stats(self) -> None:
        """Begins to count anew."""
        counts = json.loads(self._model.stats())
        self._counted_before = {name: counts[name] for name in _OF_ANSWERS}
        self._model.reset_stats()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, or belongs to another process."""
        return self._model.is_closed()

    def close(self) -> None:
        """Ends all answers and sessions and frees the memory. A second call does nothing."""
        with self._lock:
            all_open = list(self._open)
        for open_one in all_open:
            open_one.close()
        self._model.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else self.device
        return f"<moeflux.Model {self.path!r} ({self.family}, {state})>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a model cannot be pickled, as it holds weights and threads: load it in the process that uses it, or start "
            "`moeflux serve` for several"
        )
