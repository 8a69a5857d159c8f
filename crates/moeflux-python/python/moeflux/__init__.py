"""Runs Mixture-of-Experts language models larger than memory.

The routed experts of a model stay on the drive and stream into a bounded cache as tokens choose them; everything else
stays in memory. Checkpoints are opened as they were published.

    >>> import moeflux
    >>> with moeflux.load() as model:
    ...     answer = model.chat([{"role": "user", "content": "What does Vec::push do?"}], max_tokens=40)
    ...     print(answer)

Computing and waiting leave Python's lock to other threads. Answers that are asked for by several threads or tasks share
steps. A model belongs to the process that loaded it.
"""

from moeflux._api import Api, Reply
from moeflux._errors import Error, ErrorKind
from moeflux._load import load, models, plan
from moeflux._model import Model, Tokenizer
from moeflux._moeflux import __version__
from moeflux._session import Session
from moeflux._stream import Stream
from moeflux._types import (
    Alternative,
    Chunk,
    Completion,
    FinishReason,
    LoadOptions,
    Logprob,
    Memory,
    Message,
    Plan,
    Progress,
    Prompt,
    ResponseFormat,
    Sampling,
    SamplingParams,
    Score,
    Stats,
    StoredModel,
    Timing,
    ToolCall,
    Usage,
)

__all__ = [
    "Alternative",
    "Api",
    "Chunk",
    "Completion",
    "Error",
    "ErrorKind",
    "FinishReason",
    "LoadOptions",
    "Logprob",
    "Memory",
    "Message",
    "Model",
    "Plan",
    "Progress",
    "Prompt",
    "Reply",
    "ResponseFormat",
    "Sampling",
    "SamplingParams",
    "Score",
    "Session",
    "Stats",
    "StoredModel",
    "Stream",
    "Timing",
    "ToolCall",
    "Tokenizer",
    "Usage",
    "__version__",
    "load",
    "models",
    "plan",
]
