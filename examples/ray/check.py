"""Runs the batch job against the Serve application on this machine while its replicas are killed.

    check.py MOEFLUX [--prompts 1000]    # MOEFLUX: the program; it answers with its demo model

One server answers all prompts first. Then two replicas answer them through Ray; in the middle the process of one is
killed, and later the Ray actor of the other. Every answer has to be there once and equal to the single server's. It
also checks what passes through the application (streams piece by piece, errors, clients that leave), and the batch job with
servers of their own that refuse much.
"""

import argparse
import http.client
import json
import logging
import os
import random
import re
import signal
import socket
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.pop("RAY_ADDRESS", None)

import local  # before Ray
import batch
import pyarrow.parquet as pq
import ray
import serve
from ray import serve as ray_serve

MAX_TOKENS = 24
# Answers of any length, because no short one fits.
ENDLESS = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": {
    "type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 1500}}}
WORDS = (
    "cache thread lock iterator parser slice trait channel vector string closure borrow lifetime macro module crate "
    "enum struct match option result panic async future pin box arc mutex"
).split()


def prompts_of(count: int) -> list[dict]:
    """Questions of which the demo model answers most in different words."""
    draw = random.Random(7)
    words = [draw.choices(WORDS, k=4) for _ in range(count)]
    return [
        {"id": id, "prompt": f"What does `{a}_{b}` return for {c} and {d}?", "messages": ""}
        for id, (a, b, c, d) in enumerate(words)
    ]


def ask(url: str, job: batch.Job, prompt: dict) -> dict:
    """One answer, without any part of the batch job but the request's fields."""
    body = json.dumps(job.request(prompt)["payload"]).encode()
    request = urllib.request.Request(url + "/v1/chat/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)["choices"][0]["message"]


def answers_of_one_server(binary: str, job: batch.Job, prompts: list[dict], folder: Path) -> tuple[dict, float]:
    """What a single server answers, and how long it takes."""
    log = folder / "single.log"
    process = serve.start_process(serve.Settings(binary=binary), log)
    try:
        url = serve.wait_for_address(process, log, 60)
        started = time.monotonic()
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda prompt: ask(url, job, prompt), prompts))
        return dict(zip((prompt["id"] for prompt in prompts), answers)), time.monotonic() - started
    finally:
        process.terminate()
        process.wait()


def processes_named(name: str) -> list[int]:
    """The processes of moeflux that were started with a name of ours."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if entry.name.isdigit() and name.encode() in arguments and b"--pdeathsig" not in arguments:
            found.append(int(entry.name))
    return found


def parent_of(process: int) -> int:
    return int(re.search(r"PPid:\s+(\d+)", Path(f"/proc/{process}/status").read_text())[1])


def wait_for(what: str, condition, seconds: float = 60):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.2)
    raise TimeoutError(f"{what}: not within {seconds} s")


class Killer(threading.Thread):
    """Kills the process of a replica after a third of the answers, and the actor of another after two thirds."""

    def __init__(self, name: str, parts: Path, count: int):
        super().__init__(daemon=True)
        self.name_of_model = name
        self.parts = parts
        self.count = count
        self.done: list[str] = []

    def answers(self) -> int:
        return len(batch.answers_in(self.parts))

    def run(self) -> None:
        wait_for("a third of the answers", lambda: self.answers() >= self.count // 3, 600)
        victim = processes_named(self.name_of_model)[0]
        os.kill(victim, signal.SIGKILL)
        self.done.append(f"moeflux process killed after {self.answers()} answers")
        wait_for("another process", lambda: len(set(processes_named(self.name_of_model)) - {victim}) == 2, 120)
        self.done.append(f"two processes again after {self.answers()} answers")
        wait_for("two thirds of the answers", lambda: self.answers() >= self.count * 2 // 3, 600)
        child = processes_named(self.name_of_model)[0]
        os.kill(parent_of(child), signal.SIGKILL)
        answered = self.answers()
        assert answered < self.count, "the job ended before the actor was killed"
        self.done.append(f"actor killed after {answered} answers")
        wait_for("the end of its process", lambda: child not in processes_named(self.name_of_model), 30)
        wait_for("two processes", lambda: len(processes_named(self.name_of_model)) == 2, 120)
        self.done.append("its moeflux ended with it, and two processes run again")


def check_batch(job: batch.Job, prompts: list[dict], expected: dict, folder: Path, name: str) -> None:
    killer = Killer(name, folder / "parts", len(prompts))
    killer.start()
    started = time.monotonic()
    lacking = batch.run(job, prompts, folder)
    seconds = time.monotonic() - started
    killer.join(180)
    print(*killer.done, sep="\n")
    assert len(killer.done) == 4, f"not everything was killed: {killer.done}"
    assert lacking == 0, f"{lacking} answers are missing: {batch.errors_in(folder / 'parts')}"
    ids = [row["id"] for row in batch.rows_in(folder / "parts")]
    assert sorted(ids) == [prompt["id"] for prompt in prompts], f"{len(ids)} rows, {len(set(ids))} ids"
    lines = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == sorted(expected), "answers.jsonl is not in order"
    other = [line["id"] for line in lines if line["message"] != expected[line["id"]]]
    assert not other, f"answers that differ from the single server's: {other[:10]}"
    distinct = len({json.dumps(message) for message in expected.values()})
    print(f"{len(lines)} answers, each there once and equal to the single server's ({distinct} distinct), {seconds:.1f} s")


def check_resume(job: batch.Job, prompts: list[dict], expected: dict, folder: Path) -> None:
    """Cuts a file short, as if the job had ended while it was written: a second run asks for no more than that."""
    (folder / "answers.jsonl").unlink()
    part = sorted((folder / "parts").glob("*.parquet"))[0]
    lost = pq.read_metadata(part).num_rows
    part.write_bytes(part.read_bytes()[:100])
    before = set((folder / "parts").glob("*.parquet"))
    assert batch.run(job, prompts, folder) == 0
    again = sum(pq.read_metadata(path).num_rows for path in set((folder / "parts").glob("*.parquet")) - before)
    assert again == lost, f"{again} asked again in place of {lost}"
    lines = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    assert {line["id"]: line["message"] for line in lines} == expected
    print(f"a run without {lost} of the answers asked for these alone")


def check_stream(port: int, model: str) -> None:
    """The pieces of a stream come one by one, not together at its end."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = {"model": model, "messages": [{"role": "user", "content": "Count."}], "stream": True, "max_tokens": 200,
            "response_format": ENDLESS}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    assert response.getheader("content-type").startswith("text/event-stream"), response.headers
    times = []
    while response.readline():
        times.append(time.monotonic())
    assert len(times) > 40 and times[-1] - times[0] > 5 * (times[5] - times[0]), f"{len(times)} lines, {times[-1] - times[0]:.2f} s"
    print(f"a stream of {len(times) // 2} events came in pieces over {times[-1] - times[0]:.2f} s")


def check_errors(port: int, model: str) -> None:
    """Statuses and bodies of errors, methods and paths are moeflux's own."""
    def answer(method: str, path: str, body: str | None = None):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request(method, path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode(), response.headers
    status, body, _ = answer("POST", "/v1/chat/completions", json.dumps({"model": model, "messages": 3}))
    assert status == 400 and "messages" in json.loads(body)["error"]["message"], (status, body)
    status, body, _ = answer("GET", "/v1/models")
    assert status == 200 and json.loads(body)["data"], (status, body)
    status, _, headers = answer("GET", "/v1/chat/completions")
    assert status == 405 and headers["allow"], (status, headers)
    status, _, _ = answer("GET", "/no/such/path")
    assert status == 404, status
    status, _, _ = answer("HEAD", "/health")
    assert status in (200, 405), status
    print("errors, methods and paths pass through")


def running(addresses: list[str]) -> int:
    """Answers that the replicas' servers make at the moment."""
    total = 0
    for address in addresses:
        with urllib.request.urlopen(address + "/status", timeout=10) as response:
            total += json.load(response)["now"]["running"]
    return total


def addresses_of_replicas(logs: Path) -> list[str]:
    """The servers that still answer, from the logs of all replicas."""
    found = []
    for log in logs.glob("*.log"):
        address = serve.address_in(log.read_text())
        try:
            urllib.request.urlopen(address + "/health", timeout=5).close()
            found.append(address)
        except OSError:
            pass
    return found


def check_leaving(port: int, model: str, logs: Path) -> None:
    """moeflux stops an answer whose client leaves, whether it streams or not."""
    addresses = addresses_of_replicas(logs)
    assert len(addresses) == 2, addresses
    for stream in (True, False):
        body = {"model": model, "messages": [{"role": "user", "content": "Count."}], "stream": stream,
                "max_tokens": 3500, "response_format": ENDLESS}
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        wait_for("the answer begins", lambda: running(addresses) == 1, 20)
        response = connection.getresponse() if stream else None
        if response:
            response.close()
        connection.close()
        started = time.monotonic()
        wait_for("the answer ends", lambda: running(addresses) == 0, 10)
        print(f"{'a stream' if stream else 'an answer'} ended {time.monotonic() - started:.1f} s after its client left")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", type=Path)
    parser.add_argument("--prompts", type=int, default=1000)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    binary, name, port = str(options.binary.resolve()), f"check-{os.getpid()}", free_port()
    with tempfile.TemporaryDirectory(prefix="moeflux-ray-") as folder:
        folder = Path(folder)
        prompts = prompts_of(options.prompts)
        alone = batch.Job([], model="moeflux-demo", max_tokens=MAX_TOKENS)
        expected, seconds = answers_of_one_server(binary, alone, prompts, folder)
        print(f"one server answers {len(expected)} prompts in {seconds:.1f} s")
        local.start(cpus=4)
        try:
            start_application(binary, name, port, folder / "logs")
            job = batch.Job([f"http://127.0.0.1:{port}"], model=name, max_tokens=MAX_TOKENS, batch_size=32, at_once=24)
            check_batch(job, prompts, expected, folder / "answers", name)
            check_resume(job, prompts, expected, folder / "answers")
            check_stream(port, name)
            check_errors(port, name)
            check_leaving(port, name, folder / "logs")
            check_bare_servers(binary, prompts[:192], expected, folder)
        finally:
            ray_serve.shutdown()
            ray.shutdown()
        wait_for("the end of all processes", lambda: not processes_named(name), 30)
        print("no process is left")


def check_bare_servers(binary: str, prompts: list[dict], expected: dict, folder: Path) -> None:
    """Two servers without Ray Serve, with room for few requests: they refuse many with 429, and one is killed."""
    settings = serve.Settings(binary=binary, arguments=["--sessions", "2", "--queue", "2", "--model-name", "bare"])
    processes = [serve.start_process(settings, folder / f"bare-{number}.log") for number in range(2)]
    try:
        addresses = [
            serve.wait_for_address(process, folder / f"bare-{number}.log", 60) for number, process in enumerate(processes)
        ]
        killer = threading.Timer(4, processes[0].kill)
        killer.start()
        job = batch.Job(addresses, model="bare", max_tokens=MAX_TOKENS, batch_size=64, at_once=32)
        assert batch.run(job, prompts, folder / "bare") == 0
        assert processes[0].poll() is not None, "the job ended before a server was killed"
        with urllib.request.urlopen(addresses[1] + "/metrics", timeout=10) as response:
            refused = int(re.search(r"^moeflux_refused_total (\d+)", response.read().decode(), re.M)[1])
        assert refused > 0, "no request was refused"
    finally:
        for process in processes:
            process.kill()
            process.wait()
    answers = {id: json.loads(row["answer"]) for id, row in batch.answers_in(folder / "bare/parts").items()}
    assert answers == {prompt["id"]: expected[prompt["id"]] for prompt in prompts}
    print(f"{len(answers)} answers of two servers, one of them killed, the other refusing {refused} requests with 429")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_application(binary: str, name: str, port: int, logs: Path) -> None:
    """Two replicas on this machine, with 8 answers at once each."""
    settings = serve.Settings(binary=binary, arguments=["--model-name", name, "--ctx", "4096"], log_folder=str(logs))
    ray_serve.start(http_options={"host": "127.0.0.1", "port": port})
    deployment = serve.Moeflux.options(
        num_replicas=2, max_ongoing_requests=72, ray_actor_options={"num_cpus": 1}, health_check_period_s=2
    )
    ray_serve.run(deployment.bind(settings), name="moeflux", route_prefix="/")


if __name__ == "__main__":
    main()
