"""lm-evaluation-harness on the demo model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import moeflux
from conftest import DEMO

np = pytest.importorskip("numpy")


@pytest.fixture(scope="module")
def harness() -> Any:
    from moeflux.lm_eval import MoefluxLM

    return MoefluxLM.create_from_arg_string(f"pretrained={DEMO},device=cpu,ctx=256,sessions=4")


def instance(kind: Any, *arguments: Any) -> Any:
    from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]

    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def logprobs(model: moeflux.Model, tokens: list[int]) -> Any:
    """Log-probabilities of the tokens behind the first, from the logits, in double precision."""
    logits = model.logits(tokens)[:-1].astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))[np.arange(len(tokens) - 1), tokens[1:]]


def test_loglikelihoods_are_sums_of_those_of_tokens(harness: Any) -> None:
    pairs = [("What is 23 + 45?", " 68"), ("Vec::push", " appends an element"), ("", "The end"), ("a ", "b")]
    found = harness.loglikelihood([instance("loglikelihood", *pair) for pair in pairs], disable_tqdm=True)
    for (context, continuation), (total, is_greedy) in zip(pairs, found, strict=True):
        if context:
            front, behind = harness._encode_pair(context, continuation)
        else:
            front, behind = [harness.prefix_token_id], harness.tok_encode(continuation)
        expected = logprobs(harness.model, front + behind)[-len(behind) :].sum()
        assert total == pytest.approx(expected, abs=1e-3)
        assert isinstance(is_greedy, bool)


def test_rolling_scores_every_token_once(harness: Any) -> None:
    short, long = "An expert is a small network.", "word and number 7, " * 120
    [of_short, of_long] = harness.loglikelihood_rolling(
        [instance("loglikelihood_rolling", text) for text in (short, long)], disable_tqdm=True
    )
    tokens = [harness.prefix_token_id, *harness.tok_encode(short)]
    assert of_short == pytest.approx(logprobs(harness.model, tokens).sum(), abs=1e-3)
    windows = harness._windows(harness.tok_encode(long))
    assert len(windows) > 2
    assert [token for _, scored in windows for token in scored] == harness.tok_encode(long)
    assert of_long < of_short


def test_answers_end_where_the_task_says(harness: Any) -> None:
    requests = [instance("generate_until", "What is", {"until": ["\n"], "max_gen_toks": n}) for n in (2, 12)]
    few, more = harness.generate_until(requests, disable_tqdm=True)
    assert more.startswith(few)
    assert len(few) < len(more)
    assert "\n" not in more


def test_a_task_is_evaluated(harness: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lm_eval  # pyright: ignore[reportMissingImports]

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    lines: list[Any] = [
        {"question": f"What is {n} + 45?", "choices": [str(n + 45), "cheese"], "gold": 0} for n in range(20, 26)
    ]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, lines)))
    task = {
        "task": "sums",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "sums.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "gold",
        "metric_list": [{"metric": "acc"}],
    }
    evaluate: Any = lm_eval.simple_evaluate
    results = evaluate(model=harness, tasks=[task], bootstrap_iters=0)
    pairs = [(line["question"], f" {choice}") for line in lines for choice in line["choices"]]
    found = harness.loglikelihood([instance("loglikelihood", *pair) for pair in pairs], disable_tqdm=True)
    is_right = [right > wrong for (right, _), (wrong, _) in zip(found[::2], found[1::2], strict=True)]
    assert results["results"]["sums"]["acc,none"] == pytest.approx(sum(is_right) / len(lines))
