"""The demo model, loaded once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import moeflux

DEMO = Path(os.environ.get("MOEFLUX_DEMO") or Path(__file__).parents[2] / "moeflux-cli/demo")

#: A question that the demo model answers well.
QUESTION = [{"role": "user", "content": "What does Vec::push do?"}]


@pytest.fixture(scope="session")
def model() -> Iterator[moeflux.Model]:
    with moeflux.load(DEMO, device="cpu", ctx=2048, sessions=4) as loaded:
        yield loaded


def assert_idle(model: moeflux.Model) -> None:
    """Nothing is made for anyone a moment later."""
    deadline = time.monotonic() + 5
    while model.stats().running or model.stats().waiting:
        assert time.monotonic() < deadline, model.stats()
        time.sleep(0.01)


def endless(model: moeflux.Model) -> dict[int, float]:
    """A bias with which no answer ends before its limit."""
    return dict.fromkeys(model.tokenizer.eos_token_ids, -100.0)
