"""Sessions, logits, scores, plans, counts."""

from __future__ import annotations

from pathlib import Path

import pytest

import moeflux
from conftest import DEMO, QUESTION

np = pytest.importorskip("numpy")

TOKENS = [11, 12, 13, 14, 15, 16, 17, 18]


def test_logits_are_arrays_of_their_own_memory(model: moeflux.Model) -> None:
    logits = model.logits(TOKENS)
    assert logits.shape == (len(TOKENS), model.vocab) and logits.dtype == np.float32
    assert logits.flags.writeable and logits.flags.c_contiguous
    # A view of the bytes that the engine wrote, not a copy of them.
    base = logits
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    memory = base.obj if isinstance(base, memoryview) else base
    assert isinstance(memory, bytearray) and len(memory) == logits.nbytes
    assert np.isfinite(logits).all()


def test_rows_are_those_of_single_steps(model: moeflux.Model) -> None:
    rows = model.logits(TOKENS)
    with model.session() as session:
        for token, row in zip(TOKENS, rows, strict=True):
            assert (session.eval([token]) == row).all()
        assert session.tokens == TOKENS and session.position == len(TOKENS)


def test_logits_of_greedy_answers_are_highest_at_their_tokens(model: moeflux.Model) -> None:
    prompt = model.tokenizer.apply_chat_template(QUESTION)
    answer = model.generate(prompt, temperature=0, max_tokens=8, logprobs=1)
    assert answer.logprobs is not None
    tokens = [token.token for token in answer.logprobs]
    logits = model.logits(prompt + tokens)
    assert logits[len(prompt) - 1 : -1].argmax(axis=1).tolist() == tokens


def test_scores_are_softmax_of_logits(model: moeflux.Model) -> None:
    prompts = [TOKENS, TOKENS[:3], [5, 6]]
    for prompt, score in zip(prompts, model.score(prompts), strict=True):
        logits = model.logits(prompt)[:-1].astype(np.float64)
        log_sums = np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)) + logits.max(axis=1)
        expected = logits[np.arange(len(prompt) - 1), prompt[1:]] - log_sums
        assert np.abs(score.logprobs - expected).max() < 1e-4
        assert score.is_likeliest.tolist() == (logits.argmax(axis=1) == prompt[1:]).tolist()
    assert model.score([]) == []
    with pytest.raises(moeflux.Error):
        model.score([[1 << 20, 2]])


def test_a_session_goes_back(model: moeflux.Model) -> None:
    with model.session() as session:
        session.eval(TOKENS[:4])
        place = session.checkpoint()
        first = session.eval(TOKENS[4:])
        session.restore(place)
        assert session.position == 4
        assert (session.eval(TOKENS[4:]) == first).all()
        n_again = session.truncate(5)
        assert session.position + n_again == 5
        session.clear()
        assert session.position == 0
        with pytest.raises(moeflux.Error):
            session.truncate(9)
        with pytest.raises(moeflux.Error):
            session.restore(-1)


def test_a_session_is_saved_and_loaded(model: moeflux.Model, tmp_path: Path) -> None:
    path = tmp_path / "session"
    with model.session() as session:
        session.eval(TOKENS[:-1])
        session.save(path)
        expected = session.eval(TOKENS[-1:])
    with model.session() as session:
        session.load(path)
        assert session.tokens == TOKENS[:-1]
        assert (session.eval(TOKENS[-1:]) == expected).all()
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(moeflux.Error):
            session.load(path)
        assert session.position == len(TOKENS)


@pytest.mark.parametrize("tokens", [[], [-1], [1 << 31], [1 << 40], ["a"], [3] * 5000])
def test_tokens_that_cannot_be_evaluated_change_nothing(model: moeflux.Model, tokens: list[int]) -> None:
    with model.session() as session:
        session.eval(TOKENS)
        with pytest.raises(moeflux.Error):
            session.eval(tokens)
        with pytest.raises(moeflux.Error):
            session.logits(tokens)
        assert session.tokens == TOKENS


def test_a_session_that_was_closed_says_so(model: moeflux.Model) -> None:
    session = model.session()
    session.close()
    session.close()
    with pytest.raises(moeflux.Error, match="the session was closed"):
        session.eval(TOKENS)


def test_a_plan_adds_up() -> None:
    small = moeflux.plan(DEMO, device="cpu", ctx=512, sessions=1)
    large = moeflux.plan(DEMO, device="cpu", ctx=4096, sessions=8)
    assert small.fits and small.memory.ctx == 512 and large.memory.sessions == 8
    assert sum(small.memory.rows.values()) == small.memory.total_bytes
    assert small.memory.rows["sessions"] < large.memory.rows["sessions"]
    huge = moeflux.plan(DEMO, device="cpu", prompt_memory="900TB")
    assert not huge.fits and huge.alternatives


def test_stats_count(model: moeflux.Model) -> None:
    before = model.stats()
    answer = model.chat(QUESTION, temperature=0, max_tokens=10)
    after = model.stats()
    assert after.completion_tokens - before.completion_tokens == answer.usage.completion_tokens
    assert after.answers == before.answers + 1
    assert after.expert_hits + after.expert_misses > before.expert_hits + before.expert_misses
    assert 0 <= after.expert_hit_rate <= 1 and after.tok_s > 0
    assert 0 <= after.useful_bytes_read <= after.bytes_read
    share = after.rh(1.0)
    assert share is None if after.useful_bytes_read == 0 else share is not None and share > 0
    for wrong in (0, -1, float("nan"), "fast"):
        with pytest.raises(moeflux.Error, match="drive_gb_s"):
            after.rh(wrong)  # type: ignore[arg-type]
    model.reset_stats()
    again = model.stats()
    assert again.expert_hits == again.completion_tokens == again.steps == 0
    assert again.busy_s == again.tok_s == 0 and again.rh(1.0) is None
    model.chat(QUESTION, temperature=0, max_tokens=10)
    assert model.stats().completion_tokens == answer.usage.completion_tokens


def test_models_are_those_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert moeflux.models() == []
    snapshot = tmp_path / "models--org--name/snapshots" / ("a" * 40)
    (tmp_path / "models--org--name/refs").mkdir(parents=True)
    (tmp_path / "models--org--name/refs/main").write_text("a" * 40)
    (tmp_path / "models--org--name/blobs").mkdir()
    snapshot.mkdir(parents=True)
    for file in DEMO.rglob("*"):
        if file.is_file() and "packed_experts" not in file.parts:
            (snapshot / file.name).write_bytes(file.read_bytes())
    found = moeflux.models()
    assert [entry.name for entry in found] == ["org/name"] and found[0].bytes > 0


def test_progress_is_called_and_may_fail() -> None:
    calls: list[tuple[str, int, int]] = []
    moeflux.load(DEMO, device="cpu", ctx=512, progress=lambda *call: calls.append(call)).close()
    assert calls and calls[-1][0] == "loading" and 0 < calls[-1][1] <= calls[-1][2]

    def fail(*_: object) -> None:
        raise LookupError("of the callback")

    with pytest.raises(LookupError, match="of the callback"):
        moeflux.load(DEMO, device="cpu", ctx=512, progress=fail)
