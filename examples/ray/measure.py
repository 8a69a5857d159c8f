"""Measures what Ray adds on this machine: to a request, to memory, and how many requests pass per second.

    measure.py MOEFLUX
"""

import argparse
import http.client
import json
import os
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import local  # before Ray
import check
import ray
import serve
from ray import serve as ray_serve


def milliseconds(port: int, model: str, count: int = 200) -> float:
    """The median of answers of one token, one after another."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})
    connection = http.client.HTTPConnection("127.0.0.1", port)
    times = []
    for _ in range(count):
        started = time.monotonic()
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        response = connection.getresponse()
        response.read()
        assert response.status == 200, response.status
        times.append(time.monotonic() - started)
    return statistics.median(times) * 1000


def requests_per_second(port: int, seconds: float = 10, clients: int = 16) -> float:
    """How many of the smallest requests pass."""
    counts = [0] * clients
    until = time.monotonic() + seconds

    def ask(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while time.monotonic() < until:
            connection.request("GET", "/health")
            connection.getresponse().read()
            counts[number] += 1

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def tokens_per_second(port: int, model: str, clients: int = 16, tokens: int = 200) -> float:
    """Tokens of streams that come at once, each in an event of its own."""
    body = {"model": model, "messages": [{"role": "user", "content": "Count."}], "stream": True, "max_tokens": tokens}
    body = json.dumps(body | {"response_format": check.ENDLESS})

    def ask(_number: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        return sum(line.startswith(b"data: {") for line in connection.getresponse())

    started = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        return sum(pool.map(ask, range(clients))) / (time.monotonic() - started)


def memory_of_ray() -> dict[str, int]:
    """MiB that belong to each process of Ray and to moeflux; pages that several share count in parts."""
    found: dict[str, int] = {}
    for entry in Path("/proc").iterdir():
        try:
            name = (entry / "cmdline").read_bytes().split(b"\0")[0].decode()
            share = (entry / "smaps_rollup").read_text().split("Pss:")[1].split()[0]
        except (OSError, IndexError):
            continue
        short = name if name.startswith("ray::") else Path(name).name
        if short.startswith("ray::") or short in ("gcs_server", "raylet", "moeflux"):
            found[short] = found.get(short, 0) + int(share) // 1024
    return found


def measures(port: int, model: str) -> str:
    wait, tokens, requests = milliseconds(port, model), tokens_per_second(port, model), requests_per_second(port)
    return f"{wait:.1f} ms, {tokens:.0f} tokens/s in 16 streams, {requests:.0f} requests/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", type=Path)
    binary = str(parser.parse_args().binary.resolve())
    with tempfile.TemporaryDirectory(prefix="moeflux-ray-") as folder:
        log = Path(folder) / "single.log"
        process = serve.start_process(serve.Settings(binary=binary), log)
        port = int(serve.wait_for_address(process, log, 60).rsplit(":", 1)[1])
        print("alone:", measures(port, "moeflux-demo"))
        process.terminate()
        process.wait()
        local.start(cpus=4)
        try:
            name, port = f"measure-{os.getpid()}", check.free_port()
            check.start_application(binary, name, port, Path(folder) / "logs")
            print("through Serve:", measures(port, name))
            print("MiB:", memory_of_ray())
        finally:
            ray_serve.shutdown()
            ray.shutdown()


if __name__ == "__main__":
    main()
