"""Ray Data on models of this package: many prompts, answered by several engines.

    answered = moeflux.ray.processor("org/name", workers=4, ctx=4096)(prompts)      # a stage of a pipeline
    n_missing = moeflux.ray.answer("prompts.jsonl", "answers", model="org/name")    # a file of prompts to a folder

Each worker is an actor with an engine of its own. Ray sends a worker its next batch while it answers one, and reads no
further ahead than that. What a killed worker had begun, another does again.
"""

# Ray and Arrow say little of their types.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import ray.data

import moeflux

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from moeflux import LoadOptions

#: What is kept of an answer.
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("answer", pa.string()),
        ("finish_reason", pa.string()),
        ("tokens", pa.int64()),
        ("error", pa.string()),
    ]
)

#: Errors that are about a prompt. With any other the job ends.
_OF_A_PROMPT = ("request", "unsupported")


@dataclass(frozen=True)
class _Job:
    """What a worker is made of."""

    model: str | None
    params: moeflux.SamplingParams
    response_format: Any
    load_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    folder: str | None = None
    """Where answers are kept; none are where absent."""


class Worker:
    """An engine in an actor. Ray makes it, and calls it with batches."""

    def __init__(self, job: _Job) -> None:
        """Loads the model."""
        self._job = job
        self._model = moeflux.load(job.model, progress=False, **job.load_options)

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Answers a batch, all of its prompts at a time."""
        rows: list[dict[str, Any]] = batch.to_pylist()
        begun = [self._begin(row) for row in rows]
        answers = pa.Table.from_pylist(
            [{"id": row.get("id"), **_ended(answer)} for row, answer in zip(rows, begun, strict=True)], SCHEMA
        )
        if self._job.folder is None:
            for name in SCHEMA.names[1:]:
                batch = batch.append_column(name, answers[name])
            return batch
        _keep(Path(self._job.folder), answers)
        return answers.select(["id", "error"])

    def _begin(self, row: Mapping[str, Any]) -> moeflux.Stream[Any] | moeflux.Error:
        try:
            return self._model.stream(_messages(row), self._job.params, response_format=self._job.response_format)
        except moeflux.Error as error:
            return _of_prompt(error)


def _messages(row: Mapping[str, Any]) -> Any:
    """The conversation of a row: ``messages``, perhaps as JSON text, or a ``prompt`` alone."""
    messages = row.get("messages")
    if messages:
        return json.loads(messages) if isinstance(messages, str) else messages
    return [{"role": "user", "content": row["prompt"]}]


def _ended(begun: moeflux.Stream[Any] | moeflux.Error) -> dict[str, Any]:
    """Waits for an answer. An error about its prompt stands in its place."""
    try:
        if isinstance(begun, moeflux.Error):
            raise begun
        answer = begun.result()
    except moeflux.Error as error:
        return {"answer": None, "finish_reason": None, "tokens": 0, "error": str(_of_prompt(error))}
    return {
        "answer": json.dumps(answer.message, ensure_ascii=False),
        "finish_reason": answer.finish_reason,
        "tokens": answer.usage.completion_tokens,
        "error": None,
    }


def _of_prompt(error: moeflux.Error) -> moeflux.Error:
    if error.kind not in _OF_A_PROMPT:
        raise error
    return error


def _keep(folder: Path, answers: pa.Table) -> None:
    """Writes a batch, whole or not at all. Its name says which prompts it answers: the same batch, answered again
    after its worker was killed, takes its own place.
    """
    ids = json.dumps(answers["id"].to_pylist()).encode()
    name = f"{answers['id'][0].as_py()}-{hashlib.sha256(ids).hexdigest()[:16]}"
    part = folder / f"{name}.{uuid.uuid4().hex}.part"
    pq.write_table(answers, part)
    os.replace(part, folder / f"{name}.parquet")


def processor(
    model: str | os.PathLike[str] | None = None,
    *,
    params: moeflux.SamplingParams | None = None,
    response_format: moeflux.ResponseFormat | None = None,
    workers: int = 1,
    batch_size: int = 64,
    num_cpus: float = 1,
    **options: Unpack[LoadOptions],
) -> Callable[[ray.data.Dataset], ray.data.Dataset]:
    """A stage of Ray Data that answers rows.

    A row has a ``prompt``, or ``messages``: a list, or its JSON text. The stage adds ``answer`` (the message, as JSON
    text), ``finish_reason``, ``tokens`` and ``error``, which says why a prompt cannot be answered.

    Args:
        model: As `moeflux.load` takes it, on each machine.
        params: How answers are made. Without a seed it is 0: a prompt that is answered again gets the same answer.
        response_format: The form of the answers.
        workers: Actors. Those of one machine share its memory: give each its part with ``expert_cache``.
        batch_size: Rows that a worker answers together: several times its ``sessions``.
        num_cpus: Cores that Ray counts for a worker. With as many as a machine has, each has one worker.
        **options: Those of `moeflux.load`.
    """
    job = _job(model, params, response_format, options)
    return lambda rows: _answered(rows, job, workers, batch_size, num_cpus)


def _job(
    model: str | os.PathLike[str] | None,
    params: moeflux.SamplingParams | None,
    response_format: object,
    options: Mapping[str, Any],
) -> _Job:
    params = params or moeflux.SamplingParams()
    seeded = params if params.seed is not None else replace(params, seed=0)
    return _Job(None if model is None else os.fspath(model), seeded, response_format, options)


def _answered(rows: ray.data.Dataset, job: _Job, workers: int, batch_size: int, num_cpus: float) -> ray.data.Dataset:
    return rows.map_batches(
        Worker,
        fn_constructor_args=(job,),
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=2),
        num_cpus=num_cpus,
    )


def answer(
    prompts: str | os.PathLike[str] | ray.data.Dataset,
    folder: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None = None,
    params: moeflux.SamplingParams | None = None,
    response_format: moeflux.ResponseFormat | None = None,
    workers: int = 1,
    batch_size: int = 64,
    num_cpus: float = 1,
    **options: Unpack[LoadOptions],
) -> int:
    """Answers the prompts that a folder lacks. Each batch is kept as it is answered, and the same call goes on.

    Args:
        prompts: A file with lines like ``{"id": 1, "prompt": "..."}``, or with ``messages``; or rows with the same.
            Each ``id`` is a whole number of its own.
        folder: Where answers are kept, as Parquet files of `SCHEMA`. All machines reach it.
        model: As in `processor`, and so are the others.
        params: As there.
        response_format: As there.
        workers: As there.
        batch_size: As there.
        num_cpus: As there.
        **options: As there.

    Returns:
        How many prompts have no answer: those of which `errors` says why.

    Raises:
        ValueError: Where a line of the file is none, or an id occurs twice.
    """
    kept = Path(folder).resolve()
    kept.mkdir(parents=True, exist_ok=True)
    done = set(answers(kept)["id"].to_pylist())
    job = replace(_job(model, params, response_format, options), folder=str(kept))
    if isinstance(prompts, ray.data.Dataset):
        rows = prompts.map_batches(_without(done), batch_format="pyarrow") if done else prompts
    else:
        missing = [prompt for prompt in _read(Path(prompts)) if prompt["id"] not in done]
        if not missing:
            return 0
        # One block is one batch, so that workers share the work evenly.
        rows = ray.data.from_items(missing, override_num_blocks=-(-len(missing) // batch_size))
    n_missing = 0
    for batch in _answered(rows, job, workers, batch_size, num_cpus).iter_batches(
        batch_size=None, batch_format="pyarrow"
    ):
        error: Any = batch["error"]
        n_missing += len(batch) - error.null_count
    return n_missing


def _without(done: set[int]) -> Callable[[pa.Table], pa.Table]:
    """Leaves out rows whose id is among those."""
    ids = pa.array(sorted(done), pa.int64())
    return lambda batch: batch.filter(pc.invert(pc.is_in(batch["id"], value_set=ids)))


def _read(path: Path) -> list[dict[str, Any]]:
    prompts: list[dict[str, Any]] = []
    seen: set[int] = set()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            messages = json.dumps(row["messages"]) if "messages" in row else ""
            prompt: dict[str, Any] = {"id": int(row["id"]), "prompt": row.get("prompt", ""), "messages": messages}
            if not messages and not isinstance(row["prompt"], str):
                raise ValueError("prompt: it is no text")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f'{path}:{number}: {error!r}: a line is {{"id": NUMBER, "prompt": TEXT}}') from None
        if prompt["id"] in seen:
            raise ValueError(f"{path}:{number}: id {prompt['id']} occurs twice")
        seen.add(prompt["id"])
        prompts.append(prompt)
    return prompts


def answers(folder: str | os.PathLike[str]) -> pa.Table:
    """The answers in a folder, each once, by their ids."""
    return _table(row for row in _rows(Path(folder)) if row["error"] is None)


def errors(folder: str | os.PathLike[str]) -> pa.Table:
    """The prompts in a folder that have no answer, with the reasons."""
    answered = set(answers(folder)["id"].to_pylist())
    return _table(row for row in _rows(Path(folder)) if row["id"] not in answered)


def _rows(folder: Path) -> Iterable[dict[str, Any]]:
    for path in sorted(folder.glob("*.parquet")):
        yield from pq.read_table(path, schema=SCHEMA).to_pylist()


def _table(rows: Iterable[dict[str, Any]]) -> pa.Table:
    by_id = {row["id"]: row for row in rows}
    return pa.Table.from_pylist([by_id[number] for number in sorted(by_id)], SCHEMA)
