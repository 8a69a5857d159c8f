"""lm-evaluation-harness on a model of this package.

    python -m moeflux.lm_eval --model moeflux --model_args pretrained=org/name,ctx=4096 --tasks hellaswag

runs the harness with ``moeflux`` among its models; `lm_eval.simple_evaluate` knows it once this module is imported.
``pretrained`` and ``download`` are those of `moeflux.load`, other arguments are its options. Prompts share steps, as
many at a time as there are sessions: there is no size of batches to choose.
"""

# The harness is installed where it is used, and says little of its types.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

import moeflux

#: Arguments of the harness that say how many prompts it hands over at a time, or where they run: the model decides.
_OF_THE_HARNESS = ("batch_size", "max_batch_size", "max_length", "trust_remote_code")

#: Tokens of an answer where a task does not say how many.
_MAX_TOKENS = 256


@register_model("moeflux")
class MoefluxLM(TemplateLM):  # type: ignore[misc, unused-ignore]
    """A model of this package, as the harness asks models."""

    def __init__(self, pretrained: str | None = None, download: bool = False, **options: Any) -> None:
        """Loads the model."""
        super().__init__()
        options = {name: value for name, value in options.items() if name not in _OF_THE_HARNESS}
        if str(options.get("device")).startswith("cuda"):
            options["device"] = "gpu"
        self.model = moeflux.load(pretrained, download=download, progress=False, **options)
        self.tokenizer: Any = self.model.tokenizer

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self.model.tokenizer.eos_token_id or 0

    @property
    def prefix_token_id(self) -> int:
        """The token in front of a text that has no context."""
        begin = self.model.tokenizer.bos_token_id
        return self.eot_token_id if begin is None else begin

    @property
    def tokenizer_name(self) -> str:
        """Names what requests were made with, for the harness's cache."""
        return self.model.path.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **others: object) -> list[int]:
        """Token ids of a text, in which control tokens count: chat templates are text to the harness."""
        tokenizer = self.model.tokenizer
        tokens = tokenizer.encode(string, special=True)
        begin = tokenizer.bos_token_id
        if add_special_tokens and begin is not None and tokens[:1] != [begin]:
            return [begin, *tokens]
        return tokens

    def apply_chat_template(self, chat_history: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """The text of a conversation, up to where the answer begins, or goes on."""
        return self.model.tokenizer.apply_chat_template(
            chat_history, tokenize=False, continue_final_message=not add_generation_prompt
        )

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **others: object
    ) -> list[tuple[float, bool]]:
        asked = [self._fitting(context, continuation) for _, context, continuation in requests]
        scores = self.model.score([tokens for tokens, _ in asked])
        found: list[tuple[float, bool]] = []
        for (key, _, _), (_, n_scored), score in zip(requests, asked, scores, strict=True):
            of_continuation = slice(len(score.logprobs) - n_scored, None)
            result = (
                float(score.logprobs[of_continuation].sum(dtype="float64")),
                bool(score.is_likeliest[of_continuation].all()),
            )
            self.cache_hook.add_partial("loglikelihood", key, result)
            found.append(result)
        return found

    def _fitting(self, context: list[int], continuation: list[int]) -> tuple[list[int], int]:
        """The end of both that fits the context, and how many of its tokens are the continuation's."""
        most = self.model.context_length - 1
        tokens = (context + continuation)[-most:]
        return tokens, min(len(continuation), len(tokens) - 1)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihoods of whole texts. Each token is scored once, with as much context as there is room for."""
        windows: list[tuple[int, list[int], list[int]]] = []
        for at, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            windows.extend((at, context, scored) for context, scored in self._windows(tokens))
        sums = [0.0] * len(requests)
        scored = self._loglikelihood_tokens([(("", ""), context, tokens) for _, context, tokens in windows])
        for (at, _, _), (logprob, _) in zip(windows, scored, strict=True):
            sums[at] += logprob
        for request, total in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return sums

    def _windows(self, tokens: list[int]) -> list[tuple[list[int], list[int]]]:
        """Tokens in windows of the context: what is in front, and what is scored."""
        most = self.model.context_length - 2
        text = [self.prefix_token_id, *tokens]
        windows: list[tuple[list[int], list[int]]] = []
        for start in range(1, len(text), most):
            end = min(start + most, len(text))
            windows.append((text[max(0, end - most - 1) : start], text[start:end]))
        return windows

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers to prompts, until a text of the task."""
        prompts: list[moeflux.Prompt] = []
        params: list[moeflux.SamplingParams] = []
        for request in requests:
            prompt, wanted = request.args
            made = _params(wanted)
            prompts.append(self.tok_encode(prompt)[-(self.model.context_length - (made.max_tokens or 1) - 1) :])
            params.append(made)
        answers = [answer.text for answer in self.model.generate_batch(prompts, params)]
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, answer)
        return answers


def _params(wanted: Mapping[str, Any]) -> moeflux.SamplingParams:
    """What a task says of its answers; greedy where it does not say that tokens are drawn."""
    until = wanted.get("until") or ()
    samples = wanted.get("do_sample", float(wanted.get("temperature") or 0) > 0)
    return moeflux.SamplingParams(
        max_tokens=int(wanted.get("max_gen_toks") or wanted.get("max_tokens") or _MAX_TOKENS),
        stop=[until] if isinstance(until, str) else [text for text in until if text],
        temperature=float(wanted.get("temperature") or 1.0) if samples else 0.0,
        top_p=wanted.get("top_p"),
        seed=0,
    )


def main() -> None:
    """Runs the harness with the arguments of this process."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    # The harness asks for the class of the module's own name.
    sys.modules.setdefault("moeflux.lm_eval", sys.modules["__main__"])
    main()
