"""Chat models of LangChain on a model of this process.

    model = ChatMoeflux(model="org/name", temperature=0, load_options={"ctx": 8192})
    model.invoke("What does Vec::push do?")

Needs ``langchain-core`` alone.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import LangSmithParams, LanguageModelInput
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.messages.utils import convert_to_openai_messages
from langchain_core.output_parsers import JsonOutputKeyToolsParser, JsonOutputParser, PydanticToolsParser
from langchain_core.output_parsers.base import OutputParserLike
from langchain_core.output_parsers.openai_tools import parse_tool_call
from langchain_core.output_parsers.pydantic import PydanticOutputParser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

import moeflux

#: Fields of `ChatMoeflux` that are parameters of an answer.
_SAMPLING = ("temperature", "max_tokens", "top_p", "top_k", "min_p", "seed", "stop", "thinking")

#: Keywords of requests that are for traces.
_OF_TRACES = ("ls_structured_output_format", "model")


class ChatMoeflux(BaseChatModel):
    """A chat model of LangChain.

    It is loaded when it is first asked, or is one that is loaded already: answers of several then share steps.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, populate_by_name=True)

    model: Any = None
    """What `moeflux.load` takes, or what it has returned. The demo model where absent."""
    load_options: dict[str, Any] = Field(default_factory=dict)
    """Options of `moeflux.load`."""
    temperature: float | None = None
    """This and what follows is as the model's makers recommend where absent."""
    max_tokens: int | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: list[str] | None = Field(default=None, alias="stop_sequences")
    thinking: bool | None = None
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Other fields of `moeflux.SamplingParams`."""

    _loaded: moeflux.Model | None = PrivateAttr(default=None)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

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
    def _llm_type(self) -> str:
        return "moeflux"

    @property
    def model_name(self) -> str:
        """What the model is called."""
        if isinstance(self.model, moeflux.Model):
            return self.model.path
        return "demo" if self.model is None else str(self.model)

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        return {"model_name": self.model_name, **self._params(None)}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        found = super()._get_ls_params(stop=stop, **kwargs)
        found["ls_model_name"] = kwargs.get("model", self.model_name)
        return found

    def _params(self, stop: list[str] | None) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in _SAMPLING if getattr(self, name) is not None}
        return {**own, **self.model_kwargs, **({} if stop is None else {"stop": stop})}

    def _begin(self, messages: list[BaseMessage], stop: list[str] | None, asked: dict[str, Any]) -> moeflux.Stream[Any]:
        conversation = convert_to_openai_messages(messages)
        asked = {name: value for name, value in asked.items() if name not in _OF_TRACES}
        return self.engine.stream(conversation, **{**self._params(stop), **asked})

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._result(self._begin(messages, stop, kwargs).result())

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        async with self._begin(messages, stop, kwargs) as stream:
            async for _ in stream:
                pass
            return self._result(stream.completion)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        n_calls = 0
        with self._begin(messages, stop, kwargs) as stream:
            for part in stream:
                chunk = _chunk(part, n_calls)
                n_calls += part.tool_call is not None
                if run_manager is not None:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk
            yield self._last(stream.completion)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        n_calls = 0
        async with self._begin(messages, stop, kwargs) as stream:
            async for part in stream:
                chunk = _chunk(part, n_calls)
                n_calls += part.tool_call is not None
                if run_manager is not None:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk
            yield self._last(stream.completion)

    def _result(self, answer: moeflux.Completion[Any]) -> ChatResult:
        calls: list[Any] = []
        bad_calls: list[Any] = []
        for call in answer.tool_calls:
            function = {"function": {"name": call.name, "arguments": call.arguments or "{}"}, "id": call.id}
            try:
                calls.append(tool_call(**_named(parse_tool_call(function, return_id=True))))
            except OutputParserException as error:
                # The answer ended in the middle of the arguments.
                bad_calls.append(invalid_tool_call(name=call.name, args=call.arguments, id=call.id, error=str(error)))
        message = AIMessage(
            content=answer.text,
            tool_calls=calls,
            invalid_tool_calls=bad_calls,
            additional_kwargs=_thoughts(answer.thoughts),
            response_metadata=self._metadata(answer),
            usage_metadata=_usage(answer.usage),
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _last(self, answer: moeflux.Completion[Any]) -> ChatGenerationChunk:
        """What is known of an answer when it has ended."""
        message = AIMessageChunk(
            content="",
            response_metadata=self._metadata(answer),
            usage_metadata=_usage(answer.usage),
            chunk_position="last",
        )
        return ChatGenerationChunk(message=message)

    def _metadata(self, answer: moeflux.Completion[Any]) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            "model_name": self.model_name,
            "model_provider": "moeflux",
            "finish_reason": answer.finish_reason,
            "tokens_per_second": answer.timing.decode_tok_s,
        }
        if answer.logprobs is not None:
            text_of = self.engine.tokenizer.decode
            metadata["logprobs"] = [
                {"token": text_of([token.token]), "logprob": token.logprob, "top": list(token.top)}
                for token in answer.logprobs
            ]
        return metadata

    def get_token_ids(self, text: str) -> list[int]:
        """Token ids of a text by the model's own tokenizer."""
        return self.engine.tokenizer.encode(text)

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        strict: bool | None = None,
        parallel_tool_calls: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Has the model know tools.

        Args:
            tools: What LangChain takes for tools.
            tool_choice: ``auto``, ``none``, ``any`` or ``required`` (or ``True``), or the name of a tool.
            strict: Whether arguments follow the schema in every respect.
            parallel_tool_calls: Whether an answer may have several calls.
            **kwargs: As in `bind`.
        """
        asked: dict[str, Any] = {"tools": [convert_to_openai_tool(tool, strict=strict) for tool in tools]}
        if tool_choice:
            asked["tool_choice"] = "required" if tool_choice in (True, "any") else tool_choice
        if parallel_tool_calls is not None:
            asked["parallel_tool_calls"] = parallel_tool_calls
        return self.bind(**asked, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        method: Literal["json_schema", "function_calling", "json_mode"] = "json_schema",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """Has the model answer in a form.

        Args:
            schema: A class of pydantic, a `TypedDict`, or a JSON schema.
            include_raw: Whether the message comes with what was read of it, and with why it could not be.
            method: ``json_schema`` holds the text to the form; ``function_calling`` has the model call a tool of the
                form; ``json_mode`` holds the text to JSON alone.
            strict: Whether arguments of a tool follow the schema in every respect.
            **kwargs: As in `bind`.
        """
        is_class = isinstance(schema, type) and is_basemodel_subclass(schema)
        # What traces of LangChain say of the request.
        kwargs["ls_structured_output_format"] = {
            "kwargs": {"method": method, "strict": strict},
            "schema": convert_to_json_schema(schema),
        }
        parser: OutputParserLike[Any]
        if method == "function_calling":
            tool = convert_to_openai_tool(schema, strict=strict)
            name = tool["function"]["name"]
            asking = self.bind_tools([schema], tool_choice=name, strict=strict, parallel_tool_calls=False, **kwargs)
            parser = (
                PydanticToolsParser(tools=[cast("Any", schema)], first_tool_only=True)
                if is_class
                else JsonOutputKeyToolsParser(key_name=name, first_tool_only=True)
            )
        elif method in ("json_schema", "json_mode"):
            form = {"type": "json_object"} if method == "json_mode" else convert_to_json_schema(schema)
            asking = self.bind(response_format=form, **kwargs)
            parser = PydanticOutputParser[Any](pydantic_object=cast("Any", schema)) if is_class else JsonOutputParser()
        else:
            raise ValueError(f"method {method!r}: write json_schema, function_calling or json_mode")
        if not include_raw:
            return asking | parser
        read = RunnablePassthrough.assign(
            parsed=lambda found: parser.invoke(found["raw"]), parsing_error=lambda _: None
        )
        unread = RunnablePassthrough.assign(parsed=lambda _: None)
        return RunnableMap[Any](raw=asking) | read.with_fallbacks([unread], exception_key="parsing_error")


def _named(call: dict[str, Any] | None) -> dict[str, Any]:
    found = call or {}
    return {"name": found.get("name", ""), "args": found.get("args", {}), "id": found.get("id")}


def _thoughts(text: str) -> dict[str, Any]:
    return {"reasoning_content": text} if text else {}


def _chunk(part: moeflux.Chunk, n_calls: int) -> ChatGenerationChunk:
    call = part.tool_call
    calls = [tool_call_chunk(name=call.name, args=call.arguments or "{}", id=call.id, index=n_calls)] if call else []
    message = AIMessageChunk(content=part.text, tool_call_chunks=calls, additional_kwargs=_thoughts(part.thought))
    return ChatGenerationChunk(message=message)


def _usage(usage: moeflux.Usage) -> UsageMetadata:
    return UsageMetadata(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        input_token_details=InputTokenDetails(cache_read=usage.reused_tokens),
        output_token_details=OutputTokenDetails(reasoning=usage.thought_tokens),
    )
