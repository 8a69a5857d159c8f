"""From what users write to what the module takes, and back."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, cast

from moeflux._errors import Error
from moeflux._types import Completion, FinishReason, Logprob, SamplingParams, Timing, ToolCall, Usage

if TYPE_CHECKING:
    from moeflux import _moeflux

#: Bytes of randomness of a seed.
_SEED_BYTES = 8


def prompt_of(prompt: object) -> list[int] | tuple[str, str]:
    """A prompt as the module takes it."""
    if isinstance(prompt, str):
        return ("text", _encodable(prompt))
    values: Any = getattr(prompt, "tolist", lambda: prompt)()
    if isinstance(values, (bytes, bytearray, Mapping)) or not isinstance(values, Sequence):
        name = type(prompt).__name__
        raise Error(f"prompt: {name} is none; write a text, token ids, or a list of messages", "request", "messages")
    parts: list[Any] = [*cast("Sequence[object]", values)]
    if parts and not isinstance(parts[0], Mapping):
        return tokens_of(parts)
    return ("messages", json_of(parts, "messages"))


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


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Error(
            f"prompt: character {error.start} is half of a surrogate pair, which is no text", "request", "messages"
        ) from None
    return text


def json_of(value: object, option: str) -> str:
    """JSON of something that users wrote for ``option``."""
    try:
        return json.dumps(value, default=_plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Error(f"{option}: no JSON can be made of it ({error})", "request", option) from None


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, object]", value))
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump()
    if isinstance(value, Sequence):
        return list(cast("Sequence[object]", value))
    raise TypeError(f"{type(value).__name__} has no form in JSON")


_NUMBERS = frozenset(
    {
        "temperature",
        "top_p",
        "min_p",
        "repeat_penalty",
        "frequency_penalty",
        "presence_penalty",
    }
)
_COUNTS = frozenset({"max_tokens", "top_k", "seed", "logprobs", "thinking_budget"})
_FIELDS = tuple(field.name for field in fields(SamplingParams))


def params_of(params: SamplingParams | None, sampling: Mapping[str, Any]) -> SamplingParams:
    """`SamplingParams` with keywords in place of some of its fields."""
    for name in sampling:
        if name not in _FIELDS:
            raise TypeError(f"there is no parameter {name!r}{_near(name)}")
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
    request: dict[str, Any] = {name: getattr(params, name) for name in _FIELDS}
    for name, value in request.items():
        _check(name, value)
    request["stop"] = _stop_texts(params.stop)
    request["logit_bias"] = _bias(params.logit_bias)
    if params.seed is None:
        request["seed"] = int.from_bytes(os.urandom(_SEED_BYTES), "little")
    request["schema"] = schema
    request["tools"] = list(tools or ())
    request["tool_choice"] = _tool_choice(tool_choice)
    request["parallel_tool_calls"] = parallel_tool_calls
    request["continues"] = continues
    return json_of(request, "tools" if tools else "response_format")


def _stop_texts(stop: object) -> list[str]:
    texts: list[object] = [*cast("Sequence[object]", stop)] if isinstance(stop, (list, tuple)) else [stop or ""]
    texts = [] if texts == [""] else texts
    wrong = next((text for text in texts if not isinstance(text, str)), None)
    if wrong is not None:
        raise Error(f"stop {wrong!r}: texts are needed", "request", "stop")
    return cast("list[str]", texts)


def _bias(bias: Mapping[int, float]) -> list[tuple[int, float]]:
    try:
        return [(operator.index(token), float(value)) for token, value in bias.items()]
    except (AttributeError, TypeError, ValueError) as error:
        raise Error(f"logit_bias: token ids with numbers are needed ({error})", "request", "logit_bias") from None


def _check(name: str, value: object) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if name in _COUNTS and value is not None:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 64:
            raise Error(f"{name} {value!r}: a whole number is needed, at least 0", "request", name)
    elif name in _NUMBERS and value is not None and not (is_number and abs(cast("float", value)) < 1e30):
        raise Error(f"{name} {value!r}: a number is needed", "request", name)
    elif name == "thinking" and value not in (None, True, False):
        raise Error(f"thinking {value!r}: True or False is needed", "request", name)
    elif name == "expected" and not isinstance(value, (str, type(None))):
        raise Error(f"expected {value!r}: a text is needed", "request", name)


def _tool_choice(choice: str | Mapping[str, Any] | None) -> str | None:
    if choice is None:
        return None
    if isinstance(choice, str):
        return choice if choice in ("auto", "none", "required") else f":{choice}"
    name = choice.get("function", {}).get("name")
    if not isinstance(name, str):
        raise Error(
            f"tool_choice {choice!r}: write auto, none, required or the name of a tool", "request", "tool_choice"
        )
    return f":{name}"


def schema_of(response_format: object) -> object:
    """The JSON schema of what users write for the form of an answer; ``None`` where that is any text."""
    if response_format is None:
        return None
    if isinstance(response_format, type):
        make = getattr(response_format, "model_json_schema", None)
        if make is None:
            raise Error(
                f"response_format {response_format.__name__}: a class of pydantic or a JSON schema is needed",
                "request",
                "response_format",
            )
        return make()
    if not isinstance(response_format, Mapping):
        raise Error(
            f"response_format {response_format!r}: a class of pydantic or a JSON schema is needed",
            "request",
            "response_format",
        )
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
    if isinstance(response_format, type):
        return cast("Any", response_format).model_validate_json(text)
    return json.loads(text)


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
        parsed=_parsed(text, response_format, finish_reason == "stop"),
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
