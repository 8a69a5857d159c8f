"""From what users write to what the module takes, and back."""

from __future__ import annotations

import json
import numbers
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from moeflux._errors import Error
from moeflux._pictures import taken_out
from moeflux._types import Completion, FinishReason, Logprob, SamplingParams, Timing, ToolCall, Usage
from moeflux._values import flag_of, is_list, json_of, list_of, number_of, refused, short, text_of, whole_number_of

if TYPE_CHECKING:
    from moeflux import _moeflux

#: Bytes of randomness of a seed.
_SEED_BYTES = 8


#: A prompt as the module takes it: token ids, a raw text, or a conversation as JSON with its pictures.
PromptArg: TypeAlias = "list[int] | str | tuple[str, list[bytes]]"


def prompt_of(prompt: object) -> PromptArg:
    """A prompt as the module takes it."""
    if isinstance(prompt, str):
        return text_of(prompt, "prompt")
    values: Any = getattr(prompt, "tolist", lambda: prompt)()
    if not is_list(values):
        name = type(prompt).__name__
        raise Error(f"prompt: {name} is none; write a text, token ids, or a list of messages", "request", "messages")
    parts: list[Any] = [*cast("Sequence[object]", values)]
    if parts and not isinstance(parts[0], Mapping):
        return tokens_of(parts)
    return _conversation_of(parts)


def messages_of(messages: object) -> tuple[str, list[bytes]]:
    """A conversation as the module takes it: its JSON, and its pictures."""
    if not is_list(messages) or any(isinstance(message, int) for message in cast("Sequence[object]", messages)):
        raise Error(
            f"messages {short(messages)}: a list is needed, like "
            '[{"role": "user", "content": "Hi"}]; generate takes a raw prompt and token ids',
            "request",
            "messages",
        )
    return _conversation_of(cast("Sequence[object]", messages))


def _conversation_of(messages: Sequence[object]) -> tuple[str, list[bytes]]:
    texts, pictures = taken_out(messages)
    return (json_of(texts, "messages"), pictures)


def tokens_of(tokens: Sequence[int]) -> list[int]:
    """Token ids as the module takes them."""
    try:
        ids = [operator.index(token) for token in tokens]
    except TypeError as error:
        raise Error(f"tokens: whole numbers are needed ({error})", "request") from None
    wrong = next((token for token in ids if not 0 <= token < 1 << 32), None)
    if wrong is not None:
        raise Error(f"token {wrong}: it is outside of the vocabulary", "request")
    return ids


#: How each field of `SamplingParams` is read that is one value.
_READERS: Mapping[str, Callable[[object, str], object]] = {
    **dict.fromkeys(("max_tokens", "top_k", "seed", "logprobs", "thinking_budget"), whole_number_of),
    **dict.fromkeys(("temperature", "top_p", "min_p", "repeat_penalty"), number_of),
    "thinking": flag_of,
    "expected": text_of,
}
_FIELDS = tuple(field.name for field in fields(SamplingParams))


def params_of(params: object, sampling: Mapping[str, Any]) -> SamplingParams:
    """`SamplingParams` with keywords in place of some of its fields."""
    for name in sampling:
        if name not in _FIELDS:
            raise TypeError(f"there is no parameter {name!r}{_near(name)}")
    if params is not None and not isinstance(params, SamplingParams):
        raise refused("params", params, "moeflux.SamplingParams are needed; keywords take values")
    return replace(params or SamplingParams(), **sampling)


def _near(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, _FIELDS, n=1)
    return f": did you mean {near[0]}?" if near else f": there are {', '.join(_FIELDS)}"


def request_of(
    params: SamplingParams,
    *,
    schema: object = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: str | Mapping[str, Any] | None = None,
    parallel_tool_calls: bool | None = None,
    continues: bool = False,
) -> str:
    """A request as the module takes it."""
    request = {name: _read(read, getattr(params, name), name) for name, read in _READERS.items()}
    for name in ("frequency_penalty", "presence_penalty"):
        request[name] = number_of(getattr(params, name), name)
    if params.seed is None:
        request["seed"] = int.from_bytes(os.urandom(_SEED_BYTES), "little")
    request["stop"] = _stop_texts(params.stop)
    request["logit_bias"] = _bias(params.logit_bias)
    request["tool_choice"] = _tool_choice(tool_choice)
    request["parallel_tool_calls"] = _read(flag_of, parallel_tool_calls, "parallel_tool_calls")
    request["continues"] = flag_of(continues, "continue_final_message")
    parts = [json.dumps(request, ensure_ascii=False)[1:-1]]
    parts.append(f'"schema": {json_of(schema, "response_format")}')
    parts.append(f'"tools": {tools_of(tools)}')
    return "{" + ", ".join(parts) + "}"


def _read(read: Callable[[object, str], object], value: object, name: str) -> object:
    return None if value is None else read(value, name)


def tools_of(tools: object) -> str:
    """Tools as the module takes them."""
    return json_of([] if tools is None else list_of(tools, "tools", "tools"), "tools")


def _stop_texts(stop: object) -> list[str]:
    texts: list[object] = [*cast("Sequence[object]", stop)] if is_list(stop) else [stop]
    texts = [] if texts in ([""], [None]) else texts
    return [text_of(text, "stop") for text in texts]


def _bias(bias: object) -> list[tuple[int, float]]:
    remedy = "token ids with numbers are needed, like {5: -100.0}; -100 rules a token out"
    if not isinstance(bias, Mapping):
        raise refused("logit_bias", bias, remedy)
    pairs: list[tuple[int, float]] = []
    for token, value in cast("Mapping[Any, object]", bias).items():
        if not isinstance(token, numbers.Integral) or not 0 <= int(token) < 1 << 32:
            raise refused("logit_bias", {cast("Any", token): value}, remedy)
        pairs.append((int(token), number_of(value, "logit_bias", remedy)))
    return pairs


def _tool_choice(choice: object) -> str | None:
    given = choice
    if choice is None:
        return None
    if isinstance(choice, str):
        return choice if choice in ("auto", "none", "required") else f":{text_of(choice, 'tool_choice')}"
    function = cast("Mapping[str, Any]", choice).get("function") if isinstance(choice, Mapping) else None
    name = cast("Mapping[str, Any]", function).get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise refused("tool_choice", given, "write auto, none, required or the name of a tool")
    return f":{text_of(name, 'tool_choice')}"


def schema_of(response_format: object) -> object:
    """The JSON schema of what users write for the form of an answer; ``None`` where that is any text."""
    if response_format is None:
        return None
    remedy = "a class of pydantic or a JSON schema is needed"
    if isinstance(response_format, type):
        make = getattr(response_format, "model_json_schema", None)
        if make is None:
            raise refused("response_format", response_format, remedy)
        try:
            return make()
        except Exception as error:
            problem = str(error).partition("\n")[0]
            raise refused("response_format", response_format, f"it has no JSON schema ({problem})") from error
    if not isinstance(response_format, Mapping):
        raise refused("response_format", response_format, remedy)
    form = cast("Mapping[str, Any]", response_format)
    if form.get("type") == "text":
        return None
    if form.get("type") == "json_object":
        return {"type": "object"}
    if form.get("type") == "json_schema" and isinstance(form.get("json_schema"), Mapping):
        return form["json_schema"].get("schema", {"type": "object"})
    return form


def _parsed(text: str, response_format: object, is_whole: bool) -> Any:
    if schema_of(response_format) is None or not is_whole:
        return None
    if not isinstance(response_format, type):
        return json.loads(text)
    try:
        return cast("Any", response_format).model_validate_json(text)
    except Exception as error:
        # What validators of the class want goes beyond a schema.
        problem = " ".join(str(error).split())
        raise refused("response_format", response_format, f"it refuses the answer {text!r} ({problem})") from error


def completion_of(answer: _moeflux.Answer, response_format: object, wants_logprobs: bool) -> Completion[Any]:
    """What came of an answer that has ended."""
    outcome = json.loads(answer.outcome())
    message, summary = outcome["message"], outcome["summary"]
    calls = tuple(_tool_call(call) for call in message.get("tool_calls") or ())
    text = message.get("content") or ""
    finish_reason: FinishReason = (
        "tool_calls" if calls and summary["finish_reason"] == "stop" else summary["finish_reason"]
    )
    logprobs = None
    if wants_logprobs:
        logprobs = tuple(Logprob(token, logprob, tuple(top)) for token, logprob, top in answer.logprobs())
    return Completion(
        text=text,
        thoughts=message.get("reasoning_content") or "",
        tool_calls=calls,
        finish_reason=finish_reason,
        stop=summary["stop"],
        usage=_taken(Usage, summary),
        timing=_taken(Timing, summary),
        logprobs=logprobs,
        parsed=_parsed(text, response_format, finish_reason == "stop" and summary["stop"] is None),
        message=message,
    )


def _taken(kind: Any, values: Mapping[str, Any]) -> Any:
    """An instance of a dataclass whose fields are among ``values``."""
    return kind(**{field.name: values[field.name] for field in fields(kind)})


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    function = call["function"]
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(call["id"], function["name"], text)
