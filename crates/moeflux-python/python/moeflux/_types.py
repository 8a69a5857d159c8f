"""What the functions of the package take and return."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar

from moeflux._values import number_of, refused

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

T = TypeVar("T")

#: A message of a conversation, such as ``{"role": "user", "content": "Hi"}``. Fields are those of OpenAI's API.
Message = Mapping[str, Any]

#: What a model goes on with: a raw prompt, its token ids, or the messages of a conversation. In a raw prompt
#: control tokens count, so it must not hold text of others; messages may.
Prompt = str | Sequence[int] | Sequence[Message]

#: The form of an answer's text: a JSON schema, a class of pydantic, ``{"type": "json_object"}``, or
#: ``{"type": "json_schema", "json_schema": {"schema": ...}}``.
ResponseFormat = Mapping[str, Any] | type

#: Called with what is done (``downloading``, ``reading headers``, ``loading``), how much of it, and of how much. Both
#: are bytes, but for headers, which are files.
Progress = Callable[[str, int, int], object]

#: Bytes, as a number or like ``"8GiB"``.
Size = int | str

StrPath = str | os.PathLike[str]

#: Why an answer ended. ``length``: it has ``max_tokens`` tokens, or the context is full.
FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]


class LoadOptions(TypedDict, total=False):
    """Options of a model. What is left out suits the machine."""

    device: str
    """``auto`` (the fastest), ``cpu``, ``gpu`` or ``gpu:N``."""
    threads: int
    """Threads that compute; all cores where absent."""
    isa: str
    """The instruction set of the kernels, such as ``avx2``; the fastest where absent."""
    activations: Literal["int16", "int8", "full"]
    """The precision of the inputs of large products."""
    gpu_tuning: StrPath
    """The folder for what is measured of a GPU; that of the command where absent."""
    ctx: int
    """Positions of a session, in tokens; as memory allows where absent."""
    sessions: int | Literal["auto"]
    """Answers at a time. ``auto``: as many as memory has room for, at most 8, each with the context that one alone
    would have."""
    chunk: int
    """Tokens of a prompt in a step."""
    checkpoint_bytes: Size
    """Bytes of the state checkpoints of a session, for models with recurrent layers."""
    row_cache: Size
    """Bytes of the cache of rows of tables, for models that have any."""
    prompt_memory: Size | Literal["auto", "off"]
    """Bytes of evaluated prompts without a session; ``off`` where absent."""
    prompt_cache: StrPath
    """The folder in which evaluated prompts are kept from one run to the next; none where absent."""
    prompt_cache_size: Size
    """The largest size of that folder; 4 GiB where absent."""
    kv_type: Literal["f32", "bf16", "q8"]
    """The element type of cached keys and values."""
    expert_io: Literal["auto", "mmap", "pread", "direct"]
    """How experts are read."""
    expert_cache: Size
    """Bytes of the expert cache; free memory where absent."""
    expert_cache_min: Size
    """Bytes down to which the expert cache may shrink while other processes need memory."""
    device_cache: Size
    """Bytes of experts that a GPU may hold."""
    cache_policy: Literal["frequency", "lru"]
    """Which expert is evicted."""
    prefetch: Literal["auto", "off", "last-token", "lookahead"]
    """Which experts are read ahead."""
    experts_per_token: int
    """Routed experts of a token, in place of the model's own number: changes the answers."""
    allow_missing_experts: bool
    """Whether experts of a missing file contribute zero."""
    expert_stats: StrPath
    """The folder for what the cache learns, from one run to the next; none where absent."""
    record_routing: StrPath
    """The file for the routing of every token; none where absent."""
    speculation: int | Literal["auto", "off"]
    """Tokens that are drafted in a step. Changes the speed and no token."""
    mmproj: StrPath | Literal[False]
    """The GGUF file of the vision tower; the one in the model's folder where absent. ``False``: the model sees no
    pictures."""
    image_tokens: int
    """Tokens of a picture at most, 1,024 where absent: larger pictures are made smaller. 0: the model's own limit."""
    tower_idle: float
    """Seconds without a picture after which the vision tower leaves memory; 300 where absent."""


class Sampling(TypedDict, total=False):
    """The fields of `SamplingParams`, as keywords."""

    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repeat_penalty: float | None
    seed: int | None
    stop: str | Sequence[str]
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float]
    logprobs: int | None
    thinking: bool | None
    thinking_budget: int | None
    expected: str | None


@dataclass(frozen=True)
class SamplingParams:
    """How an answer is made. What is ``None`` is as the model's makers recommend, else as llama.cpp has it."""

    max_tokens: int | None = None
    """Tokens at most; as many as the context has room for where absent."""
    temperature: float | None = None
    """Divides the logits; 0 always takes the likeliest token."""
    top_p: float | None = None
    """Keep the fewest tokens whose probabilities reach this sum; 1 keeps all."""
    top_k: int | None = None
    """Keep this many of the likeliest tokens; 0 keeps all."""
    min_p: float | None = None
    """Drop tokens below this share of the highest probability; 0 keeps all."""
    repeat_penalty: float | None = None
    """Divides positive and multiplies negative logits of tokens that occurred; 1 changes nothing."""
    seed: int | None = None
    """Determines all draws; from the system's randomness where absent."""
    stop: str | Sequence[str] = ()
    """Texts that end the answer; they are not part of it."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for every occurrence in the answer."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every token that occurs in the answer."""
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    """Values that are added to the logits of tokens, by id."""
    logprobs: int | None = None
    """How many of the likeliest tokens are reported with each token; none are where absent."""
    thinking: bool | None = None
    """Whether the model thinks before it answers, for models that can be asked to."""
    thinking_budget: int | None = None
    """Tokens that the model thinks at most; 0 asks for no thoughts."""
    expected: str | None = None
    """Text that the answer is expected to repeat in large parts: it makes the answer faster and changes no token."""


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool."""

    id: str
    """Tells the call from others of the conversation; its result is sent back with it."""
    name: str
    arguments: str
    """JSON text."""


@dataclass(frozen=True)
class Logprob:
    """A token with its probability by the model's own logits."""

    token: int
    logprob: float
    """The natural logarithm of its probability."""
    top: tuple[tuple[int, float], ...]
    """The likeliest tokens in its place, the likeliest first."""


@dataclass(frozen=True)
class Chunk:
    """A part of an answer. As text it is `text` alone: ``print(chunk, end="")``."""

    text: str = ""
    thought: str = ""
    """More of what the model thinks before it answers."""
    tool_call: ToolCall | None = None
    """A whole call."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Usage:
    """Tokens of an answer."""

    prompt_tokens: int
    """Reused ones included."""
    reused_tokens: int
    """Those of the prompt that needed no evaluation."""
    completion_tokens: int
    """Thoughts included."""
    thought_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    """Those of the drafted ones that are part of the answer."""


@dataclass(frozen=True)
class Timing:
    """What an answer took."""

    first_token_s: float | None
    """Seconds from the request to the first token."""
    decode_s: float
    """Seconds from the first token to the end."""
    prompt_tok_s: float
    """Tokens of the prompt a second, reused ones not counted."""
    decode_tok_s: float
    """Tokens of the answer a second, the first not counted."""


@dataclass(frozen=True)
class Completion(Generic[T]):
    """An answer that has ended. As text it is `text`."""

    text: str
    """Thoughts and calls left out."""
    thoughts: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason
    stop: str | None
    """The stop text that ended it."""
    usage: Usage
    timing: Timing
    logprobs: tuple[Logprob, ...] | None
    """Its tokens, where `SamplingParams.logprobs` asks for them."""
    parsed: T | None
    """What the text is as JSON, where a form was asked for and the answer is whole: an instance of the class of
    pydantic, or else lists, dictionaries and values."""
    message: dict[str, Any]
    """To be appended to a conversation."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Score:
    """Probabilities of the tokens of a prompt, behind its first."""

    logprobs: npt.NDArray[np.float32]
    """Natural logarithms, of shape ``(n_tokens - 1,)``."""
    is_likeliest: npt.NDArray[np.bool_]
    """Whether each is the token that greedy decoding would choose, of shape ``(n_tokens - 1,)``."""


@dataclass(frozen=True)
class Memory:
    """Where memory goes. All sizes are bytes."""

    fits: bool
    ctx: int
    """Positions of a session, in tokens."""
    sessions: int
    """Answers at a time."""
    chunk: int
    """Tokens of a prompt in a step."""
    needed_bytes: int
    """What has to be there for the model to run."""
    total_bytes: int
    """The expert cache included."""
    usable_bytes: int
    """What there is for it."""
    expert_bytes: int
    """All routed experts."""
    bytes_per_token: int
    """Weights that a token reads, routed experts included."""
    rows: dict[str, int]
    """What adds up to the total."""


@dataclass(frozen=True)
class Alternative:
    """An option with which a model takes less."""

    option: str
    value: str | None
    """The option is left out where absent."""
    saves_bytes: int
    fits: bool


@dataclass(frozen=True)
class Plan:
    """What a model would take in memory."""

    path: str
    family: str
    device: str
    memory: Memory
    alternatives: tuple[Alternative, ...]

    @property
    def fits(self) -> bool:
        """Whether the model can run like this."""
        return self.memory.fits


@dataclass(frozen=True)
class StoredModel:
    """A model in the Hub's cache."""

    name: str
    """What `load` takes."""
    path: str
    bytes: int
    last_used: float | None
    """Seconds since 1970."""
    is_complete: bool
    problem: str | None
    """Why it cannot be run."""


@dataclass(frozen=True)
class Stats:
    """Counts of a model since it was loaded, or since `Model.reset_stats`."""

    prompt_tokens: int
    """Tokens of prompts that were evaluated."""
    reused_tokens: int
    """Tokens of prompts that needed no evaluation."""
    completion_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    steps: int
    answers: int
    """Answers that have ended."""
    running: int
    """Answers that have a session now."""
    waiting: int
    """Answers that wait for one now."""
    busy_s: float
    """Seconds in which steps of answers ran."""
    expert_hits: int
    """Experts that were in memory when a token needed them."""
    expert_misses: int
    expert_evictions: int
    expert_cache_bytes: int
    """What the cache of experts takes now."""
    bytes_read: int
    """Bytes of experts that were read."""
    useful_bytes_read: int
    """Those of experts that were used: what was read ahead in vain is left out."""
    read_s: float
    """Seconds in which something was read."""
    stall_s: float
    """Seconds in which steps waited for experts."""

    @property
    def tok_s(self) -> float:
        """Tokens of answers by a second in which steps ran, those of prompts included."""
        return self.completion_tokens / self.busy_s if self.busy_s > 0 else 0.0

    @property
    def expert_hit_rate(self) -> float:
        """The share of experts that were in memory when a token needed them, 0 to 1."""
        return self.expert_hits / max(1, self.expert_hits + self.expert_misses)

    @property
    def drive_gb_s(self) -> float | None:
        """The rate of reading, in thousand millions of bytes a second; ``None`` where nothing was read."""
        return self.bytes_read / self.read_s / 1e9 if self.read_s > 0 else None

    def rh(self, drive_gb_s: float) -> float | None:
        """The share of the drive's limit that streaming reached while steps ran, as ``moeflux bench`` has it; ``None``
        where nothing was read.

        Args:
            drive_gb_s: What the drive reads, in thousand millions of bytes a second, as ``moeflux bench`` measures it.
        """
        drive = number_of(drive_gb_s, "drive_gb_s")
        if drive <= 0:
            raise refused("drive_gb_s", drive_gb_s, "a number above 0 is needed")
        if self.useful_bytes_read == 0 or self.busy_s <= 0:
            return None
        return self.useful_bytes_read / self.busy_s / (drive * 1e9)
