"""Ray Data: every answer once, equal to one process's answers, also where a worker is killed.

    MOEFLUX_RAY_PROMPTS=2000 pytest tests/test_ray.py -s

says what more prompts take.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import moeflux
from conftest import DEMO

if not Path("/proc/self/environ").exists():
    pytest.skip("workers are found by /proc", allow_module_level=True)

# Ray reads it as it is imported: it then listens on 127.0.0.1 alone.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Else workers wait for all else that the machine does.
os.environ.setdefault("RAY_worker_niceness", "0")

import ray.data  # pyright: ignore[reportMissingImports]

N_PROMPTS = int(os.environ.get("MOEFLUX_RAY_PROMPTS") or 96)
OPTIONS: Any = {"device": "cpu", "ctx": 512, "sessions": 8, "threads": 1, "expert_cache": "32MiB"}
PARAMS = moeflux.SamplingParams(temperature=0, max_tokens=16)

#: Marks the processes of this test.
MARK = f"MOEFLUX_TEST_{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    os.environ[MARK] = "1"
    ray.init(num_cpus=4, object_store_memory=1 << 30, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()
    del os.environ[MARK]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    lines = [{"id": n, "prompt": f"What is {n} + 45? é🌧"} for n in range(N_PROMPTS - 1)]
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    last = {"id": N_PROMPTS - 1, "messages": messages}
    path.write_text("\n".join(json.dumps(line) for line in [*lines, last]))
    return path


def asked(path: Path) -> dict[int, Any]:
    rows = map(json.loads, path.read_text().splitlines())
    return {row["id"]: row.get("messages") or [{"role": "user", "content": row["prompt"]}] for row in rows}


@pytest.fixture(scope="module")
def expected(prompts: Path) -> dict[int, dict[str, Any]]:
    """The answers of one process."""
    start = time.monotonic()
    with moeflux.load(DEMO, **OPTIONS) as model:
        found = model.generate_batch(list(asked(prompts).values()), PARAMS, seed=0)
    print(f"\none process: {len(found)} answers in {time.monotonic() - start:.1f} s")
    return {number: answer.message for number, answer in zip(asked(prompts), found, strict=True)}


def workers() -> list[int]:
    """The processes of workers of this test."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        try:
            is_worker = b"ray::" in (folder / "cmdline").read_bytes() and b"Worker" in (folder / "cmdline").read_bytes()
            if is_worker and MARK.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except (OSError, ValueError):
            continue
    return found


def kill_one(folder: Path, n_files: int, killed: list[int]) -> None:
    """Kills a worker as soon as `n_files` batches are in the folder."""
    deadline = time.monotonic() + 300
    while len(list(folder.glob("*.parquet"))) < n_files and time.monotonic() < deadline:
        time.sleep(0.01)
    victims = workers()
    if victims:
        os.kill(victims[0], signal.SIGKILL)
        killed.append(victims[0])


@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_costs_no_answer(prompts: Path, expected: dict[int, dict[str, Any]], tmp_path: Path) -> None:
    import moeflux.ray

    killed: list[int] = []
    batch_size = max(4, N_PROMPTS // 32)
    killer = threading.Thread(target=kill_one, args=(tmp_path, N_PROMPTS // batch_size // 2, killed))
    killer.start()
    start = time.monotonic()
    n_missing = moeflux.ray.answer(
        prompts, tmp_path, model=DEMO, params=PARAMS, workers=2, batch_size=batch_size, **OPTIONS
    )
    killer.join()
    print(f"\ntwo workers, one killed: {time.monotonic() - start:.1f} s")
    assert killed and n_missing == 0
    kept = moeflux.ray._rows(tmp_path)
    rows = sorted((row["id"], json.loads(row["answer"])) for row in kept if row["error"] is None)
    # Every answer is there once, also in the files.
    assert [number for number, _ in rows] == list(range(N_PROMPTS))
    assert dict(rows) == expected
    assert len(moeflux.ray.errors(tmp_path)) == 0


@pytest.mark.usefixtures("cluster")
def test_a_job_goes_on_where_it_ended(prompts: Path, expected: dict[int, dict[str, Any]], tmp_path: Path) -> None:
    import moeflux.ray

    some = tmp_path / "some.jsonl"
    some.write_text("\n".join(prompts.read_text().splitlines()[:10]))
    folder = tmp_path / "answers"
    asking: Any = {"model": DEMO, "params": PARAMS, "batch_size": 8, **OPTIONS}
    assert moeflux.ray.answer(some, folder, **asking) == 0
    before = {path.name for path in folder.iterdir()}
    # What a killed process was writing counts for nothing.
    (folder / "0-x.parquet.part").write_bytes(b"PAR1")
    lines = [*prompts.read_text().splitlines()[:20], json.dumps({"id": 9999, "prompt": "word " * 5000})]
    some.write_text("\n".join(lines))
    assert moeflux.ray.answer(some, folder, **asking) == 1
    assert before < {path.name for path in folder.iterdir()}
    found = moeflux.ray.answers(folder).to_pylist()
    assert {row["id"]: json.loads(row["answer"]) for row in found} == {n: expected[n] for n in range(20)}
    [too_long] = moeflux.ray.errors(folder).to_pylist()
    assert too_long["id"] == 9999 and "too long" in too_long["error"]
    rows = ray.data.from_items([{"id": n, "prompt": f"What is {n} + 45? é🌧"} for n in range(24)])
    assert moeflux.ray.answer(rows, folder, **asking) == 0
    assert moeflux.ray.answers(folder)["id"].to_pylist() == list(range(24))


@pytest.mark.usefixtures("cluster")
def test_a_stage_adds_answers_to_rows(expected: dict[int, dict[str, Any]]) -> None:
    import moeflux.ray

    stage = moeflux.ray.processor(DEMO, params=PARAMS, batch_size=4, **OPTIONS)
    rows = ray.data.from_items([{"key": n, "prompt": f"What is {n} + 45? é🌧"} for n in range(6)])
    found = {row["key"]: row for row in stage(rows).take_all()}
    assert {key: json.loads(row["answer"]) for key, row in found.items()} == {n: expected[n] for n in range(6)}
    assert all(row["error"] is None and row["prompt"] for row in found.values())


@pytest.mark.parametrize("line", ["[", '{"id": 1}', '{"id": "x", "prompt": "Hi"}', '{"id": 1, "prompt": 3}', "[1]"])
def test_lines_that_are_no_prompts_are_named(line: str, tmp_path: Path) -> None:
    import moeflux.ray

    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": 0, "prompt": "Hi"}\n' + line)
    with pytest.raises(ValueError, match=r"prompts.jsonl:2: "):
        moeflux.ray.answer(path, tmp_path / "answers")
