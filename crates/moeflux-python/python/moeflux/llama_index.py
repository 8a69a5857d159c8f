"""A language model of LlamaIndex on a model of this process.

    llm = MoefluxLLM(model="org/name", temperature=0, load_options={"ctx": 8192})
    llm.complete("What does Vec::push do?")

Needs ``llama-index-core`` alone.
"""

# LlamaIndex says nothing of the types of its decorators.
# pyright: reportUnknownVariableType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    ContentBlock,
    ImageBlock,
    LLMMetadata,
    LogProb,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection

import moeflux

if TYPE_CHECKING:
    from llama_index.core.tools.types import BaseTool

#: Fields of `MoefluxLLM` that are parameters of an answer.
_SAMPLING = ("temperature", "max_tokens", "top_p", "seed", "thinking")

#: Tokens of an answer that LlamaIndex leaves room for where `max_tokens` does not say it.
_NUM_OUTPUT = 256


class MoefluxLLM(FunctionCallingLLM):
    """A language model of LlamaIndex. It is loaded when it is first asked, or is one that is loaded already."""

    model: Any = Field(default=None, description="What `moeflux.load` takes or has returned; the demo model if absent.")
    load_options: dict[str, Any] = Field(default_factory=dict, description="Options of `moeflux.load`.")
    temperature: float | None = Field(default=None, description="As the model's makers recommend if absent.")
    max_tokens: int | None = Field(default=None, description="Tokens of an answer at most.")
    top_p: float | None = Field(default=None, description="As the model's makers recommend if absent.")
    seed: int | None = Field(default=None, description="Determines all draws.")
    thinking: bool | None = Field(default=None, description="Whether the model thinks before it answers.")
    additional_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Other fields of `moeflux.SamplingParams`."
    )

    _loaded: moeflux.Model | None = PrivateAttr(default=None)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    @classmethod
    def class_name(cls) -> str:
        """The name by which LlamaIndex knows it."""
        return "MoefluxLLM"

    @property
    def engine(self) -> moeflux.Model:
        """The loaded model."""
        if isinstance(self.model, moeflux.Model):
            return self.model
        with self._lock:
            if self._loaded is None:
                self._loaded = moeflux.load(self.model, progress=False, **self.load_options)
            return self._loaded

    @property
    def metadata(self) -> LLMMetadata:
        """What LlamaIndex plans its prompts with. It loads the model."""
        return LLMMetadata(
            context_window=self.engine.context_length,
            num_output=self.max_tokens or _NUM_OUTPUT,
            is_chat_model=self.engine.tokenizer.has_chat_template,
            is_function_calling_model=self.engine.tokenizer.has_chat_template,
            model_name=self.engine.path,
        )

    def _begin(self, prompt: moeflux.Prompt, asked: dict[str, Any]) -> moeflux.Stream[Any]:
        own = {name: getattr(self, name) for name in _SAMPLING if getattr(self, name) is not None}
        return self.engine.stream(prompt, **{**own, **self.additional_kwargs, **asked})

    def _prompt(self, text: str, formatted: bool) -> moeflux.Prompt:
        """A text that is formatted is a raw prompt, in which control tokens count; another is a message."""
        is_raw = formatted or not self.engine.tokenizer.has_chat_template
        return text if is_raw else [{"role": "user", "content": text}]

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answers a conversation."""
        return self._response(self._begin(_messages(messages), kwargs).result())

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """As `chat`, for asyncio."""
        return self._response(await _ended(self._begin(_messages(messages), kwargs)))

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """As `chat`, part by part."""
        stream = self._begin(_messages(messages), kwargs)

        def parts() -> ChatResponseGen:
            so_far = _Parts()
            with stream:
                for part in stream:
                    yield so_far.add(part)
                yield self._response(stream.completion, delta="")

        return parts()

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """As `stream_chat`, for asyncio."""
        stream = self._begin(_messages(messages), kwargs)

        async def parts() -> ChatResponseAsyncGen:
            so_far = _Parts()
            async with stream:
                async for part in stream:
                    yield so_far.add(part)
                yield self._response(stream.completion, delta="")

        return parts()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Answers a text; where it is formatted it goes on with it."""
        return self._completion(self._begin(self._prompt(prompt, formatted), kwargs).result())

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """As `complete`, for asyncio."""
        return self._completion(await _ended(self._begin(self._prompt(prompt, formatted), kwargs)))

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """As `complete`, part by part."""
        stream = self._begin(self._prompt(prompt, formatted), kwargs)

        def parts() -> CompletionResponseGen:
            text = ""
            with stream:
                for part in stream:
                    text += part.text
                    yield CompletionResponse(text=text, delta=part.text)
                yield self._completion(stream.completion, delta="")

        return parts()

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        """As `stream_complete`, for asyncio."""
        stream = self._begin(self._prompt(prompt, formatted), kwargs)

        async def parts() -> CompletionResponseAsyncGen:
            text = ""
            async with stream:
                async for part in stream:
                    text += part.text
                    yield CompletionResponse(text=text, delta=part.text)
                yield self._completion(stream.completion, delta="")

        return parts()

    def _response(self, answer: moeflux.Completion[Any], delta: str | None = None) -> ChatResponse:
        return ChatResponse(
            message=_message(answer.text, answer.thoughts, answer.tool_calls),
            raw=answer,
            delta=delta,
            logprobs=self._logprobs(answer),
            additional_kwargs=_usage(answer),
        )

    def _completion(self, answer: moeflux.Completion[Any], delta: str | None = None) -> CompletionResponse:
        logprobs = self._logprobs(answer)
        return CompletionResponse(
            text=answer.text, raw=answer, delta=delta, logprobs=logprobs, additional_kwargs=_usage(answer)
        )

    def _logprobs(self, answer: moeflux.Completion[Any]) -> list[list[LogProb]] | None:
        if answer.logprobs is None:
            return None
        text_of = self.engine.tokenizer.decode
        return [
            [LogProb(token=text_of([token]), logprob=logprob) for token, logprob in found.top]
            for found in answer.logprobs
        ]

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        messages = list(chat_history or ())
        if user_msg is not None:
            is_text = isinstance(user_msg, str)
            messages.append(ChatMessage(role=MessageRole.USER, content=user_msg) if is_text else cast("Any", user_msg))
        asked: dict[str, Any] = {"messages": messages, **kwargs}
        if tools:
            asked["tools"] = [tool.metadata.to_openai_tool(skip_length_check=True) for tool in tools]
            if asked.get("tool_choice") is None:
                asked["tool_choice"] = "required" if tool_required else "auto"
            asked["parallel_tool_calls"] = allow_parallel_tool_calls
        return asked

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """The calls of an answer."""
        calls = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if not calls and error_on_no_tool_call:
            raise ValueError(f"tool calls: at least one is needed, and the answer has {len(calls)}")
        return [
            ToolSelection(
                tool_id=call.tool_call_id or "", tool_name=call.tool_name, tool_kwargs=_arguments(call.tool_kwargs)
            )
            for call in calls
        ]


class _Parts:
    """What has come of an answer so far."""

    def __init__(self) -> None:
        self._text = ""
        self._thoughts = ""
        self._calls: tuple[moeflux.ToolCall, ...] = ()

    def add(self, part: moeflux.Chunk) -> ChatResponse:
        self._text += part.text
        self._thoughts += part.thought
        if part.tool_call is not None:
            self._calls = (*self._calls, part.tool_call)
        thought = {"thinking_delta": part.thought} if part.thought else {}
        message = _message(self._text, self._thoughts, self._calls)
        return ChatResponse(message=message, delta=part.text, raw=part, additional_kwargs=thought)


async def _ended(stream: moeflux.Stream[Any]) -> moeflux.Completion[Any]:
    async with stream:
        async for _ in stream:
            pass
        return stream.completion


def _message(text: str, thoughts: str, calls: Sequence[moeflux.ToolCall]) -> ChatMessage:
    blocks: list[ContentBlock] = [ThinkingBlock(content=thoughts)] if thoughts else []
    blocks.append(TextBlock(text=text))
    blocks.extend(
        ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=call.arguments) for call in calls
    )
    return ChatMessage(role=MessageRole.ASSISTANT, blocks=blocks)


def _arguments(arguments: dict[str, Any] | str) -> dict[str, Any]:
    """Arguments of a call; none where the answer ended in the middle of them."""
    if not isinstance(arguments, str):
        return arguments
    try:
        found = json.loads(arguments or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _usage(answer: moeflux.Completion[Any]) -> dict[str, Any]:
    usage = answer.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "finish_reason": answer.finish_reason,
    }


def _messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    return [_written(message) for message in messages]


#: Roles that the model's templates do not know, and what they mean.
_ROLES = {MessageRole.DEVELOPER: "system", MessageRole.CHATBOT: "assistant", MessageRole.MODEL: "assistant"}


def _written(message: ChatMessage) -> dict[str, Any]:
    """A message as OpenAI's API has it."""
    written: dict[str, Any] = {
        "role": _ROLES.get(message.role, message.role.value),
        "content": _content(message.blocks),
    }
    calls: list[dict[str, Any]] = []
    for block in message.blocks:
        if isinstance(block, ToolCallBlock):
            arguments = block.tool_kwargs if isinstance(block.tool_kwargs, str) else json.dumps(block.tool_kwargs)
            function = {"name": block.tool_name, "arguments": arguments}
            calls.append({"id": block.tool_call_id or block.tool_name, "type": "function", "function": function})
        elif isinstance(block, ThinkingBlock):
            written["reasoning_content"] = block.content
        elif not isinstance(block, (TextBlock, ImageBlock)):
            kind = block.block_type
            raise moeflux.Error(
                f"messages: a part is {kind!r}, and models read text and pictures alone", "request", "messages"
            )
    calls = calls or message.additional_kwargs.get("tool_calls") or []
    if calls:
        written["tool_calls"] = calls
    if "tool_call_id" in message.additional_kwargs:
        written["tool_call_id"] = message.additional_kwargs["tool_call_id"]
    return written


def _content(blocks: Sequence[Any]) -> str | list[dict[str, Any]]:
    """The text of a message; parts where there are pictures."""
    if not any(isinstance(block, ImageBlock) for block in blocks):
        return "".join(block.text for block in blocks if isinstance(block, TextBlock))
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, TextBlock):
            parts.append({"type": "text", "text": block.text})
        elif isinstance(block, ImageBlock):
            parts.append({"type": "image", "image": _picture(block)})
    return parts


def _picture(block: ImageBlock) -> object:
    """A picture's address or path, or its bytes."""
    if block.image is None:
        return block.path if block.url is None else str(block.url)
    return block.resolve_image().read()
