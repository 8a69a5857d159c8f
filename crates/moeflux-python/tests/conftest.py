"""The demo model, loaded once."""

from __future__ import annotations

import os
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
