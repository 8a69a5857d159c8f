"""Answers a file of prompts with Ray Data, over HTTP, from one or several moeflux servers.

    batch.py --server http://127.0.0.1:8080 prompts.jsonl answers    # --server may be repeated

Each line of prompts.jsonl is {"id": 1, "prompt": "..."}, with "messages" in place of "prompt" for whole conversations.
Answers are kept in the folder as they come, as Parquet files. A second run asks only for those that are missing. When
none is missing, answers/answers.jsonl has one line per prompt in the order of their ids. docs/guide/several-machines.md describes the
settings. Ray starts on this machine, or RAY_ADDRESS names a cluster.
"""

import argparse
import json
import logging
import sys
import urllib.request
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import local  # before Ray
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ray.data.llm import HttpRequestProcessorConfig, build_processor
from session import Session

logger = logging.getLogger("batch")


@dataclass
class Job:
    """What is asked of which servers."""

    servers: list[str]
    model: str
    max_tokens: int = 256
    fields: dict = field(default_factory=dict)
    """Further fields of each request, such as response_format."""
    batch_size: int = 64
    """Rows that a worker asks for together."""
    workers: int = 1
    at_once: int = 16
    """Requests that one worker has at one server: --sessions and a few that wait."""
    patience: float = 600
    """Seconds for which a request is sent again."""

    def request(self, row: dict) -> dict:
        """What is sent for a prompt. Temperature 0 and a seed make the answer the same whenever it is asked for."""
        messages = row.get("messages") or json.dumps([{"role": "user", "content": row["prompt"]}])
        request = {"model": self.model, "messages": json.loads(messages), "max_tokens": self.max_tokens}
        return {"payload": request | {"temperature": 0, "seed": 0} | self.fields}

    def processor(self):
        """Ray Data's processor for requests over HTTP, with the settings that docs/guide/several-machines.md explains."""
        urls = [server.rstrip("/") + "/v1/chat/completions" for server in self.servers]
        config = HttpRequestProcessorConfig(
            url=urls[0],
            batch_size=self.batch_size,
            concurrency=(self.workers, self.workers),
            # A worker only waits. With the default of a whole core each, workers can leave none to what reads prompts.
            http_request_stage={"num_cpus": 0.01},
            session_factory=partial(Session, urls, self.at_once, self.patience),
        )
        return build_processor(config, preprocess=self.request, postprocess=answer_of)


def answer_of(row: dict) -> dict:
    """A row of the Parquet files: the answer, or the error in its place."""
    response = row["http_response"]
    if "error" in response:
        return {"id": row["id"], "answer": None, "finish_reason": None, "tokens": 0, "error": json.dumps(response["error"])}
    choice = response["choices"][0]
    return {
        "id": row["id"],
        "answer": json.dumps(choice["message"], ensure_ascii=False),
        "finish_reason": choice["finish_reason"],
        "tokens": response["usage"]["completion_tokens"],
        "error": None,
    }


SCHEMA = pa.schema(
    [("id", pa.int64()), ("answer", pa.string()), ("finish_reason", pa.string()), ("tokens", pa.int64()), ("error", pa.string())]
)


def read_prompts(path: Path) -> list[dict]:
    """The prompts of a file. An error names its line."""
    prompts, seen = [], set()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            row = json.loads(line)
            prompt = {"id": int(row["id"]), "prompt": row.get("prompt") or "", "messages": ""}
            if "messages" in row:
                # As text: an Arrow column holds objects of one shape only.
                prompt["messages"] = json.dumps(row["messages"])
            elif not isinstance(row["prompt"], str):
                raise ValueError("prompt: it is no text")
        except (ValueError, KeyError, TypeError) as error:
            raise SystemExit(f"{path}:{number}: {error!r}: a line is {{\"id\": NUMBER, \"prompt\": TEXT}}") from None
        if prompt["id"] in seen:
            raise SystemExit(f"{path}:{number}: id {prompt['id']} occurs twice")
        seen.add(prompt["id"])
        prompts.append(prompt)
    return prompts


def rows_in(parts: Path) -> list[dict]:
    """All rows that are kept. A file that a job was writing as it ended is no whole one, and counts for nothing."""
    rows = []
    for path in sorted(parts.glob("*.parquet")):
        try:
            rows += pq.read_table(path, schema=SCHEMA).to_pylist()
        except pa.ArrowInvalid as error:
            logger.warning("%s: left out: %s", path, error)
    return rows


def answers_in(parts: Path) -> dict[int, dict]:
    """The answers that are there, by id. Errors are none: they are asked for again."""
    return {row["id"]: row for row in rows_in(parts) if row["error"] is None}


def errors_in(parts: Path) -> dict[int, str]:
    """The last error of each prompt that has no answer."""
    answers = answers_in(parts)
    return {row["id"]: row["error"] for row in rows_in(parts) if row["id"] not in answers}


def run(job: Job, prompts: list[dict], folder: Path) -> int:
    """Asks for the answers that a folder lacks. Returns how many it still lacks."""
    parts = folder / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    answers = answers_in(parts)
    missing = [prompt for prompt in prompts if prompt["id"] not in answers]
    logger.info("%d prompts, %d of them answered before", len(prompts), len(prompts) - len(missing))
    if missing:
        # One block is one batch, written as soon as it is answered: what a crash loses is in flight.
        blocks = -(-len(missing) // job.batch_size)
        rows = ray.data.from_items(missing, override_num_blocks=blocks)
        job.processor()(rows).write_parquet(str(parts), mode="append")
        answers = answers_in(parts)
    lacking = [prompt["id"] for prompt in prompts if prompt["id"] not in answers]
    if not lacking:
        write_answers(folder / "answers.jsonl", sorted(prompt["id"] for prompt in prompts), answers)
    return len(lacking)


def write_answers(path: Path, ids: list[int], answers: dict[int, dict]) -> None:
    """Writes all answers in the order of ids; the file is there whole or not at all."""
    part = path.with_suffix(".part")
    with part.open("w") as file:
        for id in ids:
            row = answers[id]
            line = {"id": id, "message": json.loads(row["answer"]), "finish_reason": row["finish_reason"], "tokens": row["tokens"]}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    part.replace(path)


def model_of(server: str) -> str:
    """The first model that a server lists."""
    try:
        with urllib.request.urlopen(server.rstrip("/") + "/v1/models", timeout=30) as response:
            return json.load(response)["data"][0]["id"]
    except (OSError, ValueError, LookupError) as error:
        raise SystemExit(f"--server {server}: {error!r}: is a server there?") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--server", action="append", required=True, help="of moeflux or of serve.py; may be repeated")
    parser.add_argument("--model", help="as the servers call it; default: the first that the first server lists")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--fields", type=json.loads, default={}, help="further fields of each request, as JSON")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=16, help="requests of one worker at one server")
    parser.add_argument("--patience", type=float, default=600, help="seconds for which a request is sent again")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("folder", type=Path, help="for the answers; on a cluster, one that all machines share")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    prompts = read_prompts(options.prompts)
    job = Job(options.server, options.model or model_of(options.server[0]), options.max_tokens, options.fields, options.batch_size, options.workers,
              options.at_once, options.patience)
    local.start(cpus=2)
    lacking = run(job, prompts, options.folder.resolve())
    for id, error in list(errors_in(options.folder / "parts").items())[:5]:
        print(f"prompt {id}: {error}", file=sys.stderr)
    if lacking:
        sys.exit(f"{lacking} of {len(prompts)} prompts have no answer: run this again to ask for them")
    print(f"{len(prompts)} answers in {options.folder / 'answers.jsonl'}")


if __name__ == "__main__":
    main()
