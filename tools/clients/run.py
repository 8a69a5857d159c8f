"""Lets clients send their first requests to `moeflux serve`, and says what came of each.

    tools/clients/install.sh FOLDER
    tools/clients/run.py MOEFLUX FOLDER [--client NAME]... [--model demo|thinks|strict]... [--keep FOLDER]

Each client runs with its default settings, a home of its own, and a question about a file, against three models:
the demo model, one that thinks, and one with a strict template. Where `unshare` can make a network of its own, clients
reach this machine alone. A line of the table is one client on one model; --keep keeps all exchanges as JSON.
Needs Node.js and Python 3.10, and Linux for the network of its own.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from clients import CLIENTS, Setup, programs
from make_models import TEMPLATES, write_model
from recorder import Recorder

ISOLATED = "MOEFLUX_CLIENTS_ISOLATED"


def isolate() -> None:
    """Starts this program again in a network that has nothing but 127.0.0.1, and with processes of its own, so that
    what a client leaves running (cline a daemon) ends with it."""
    apart = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    test = [*apart, "ip", "link", "set", "lo", "up"]
    if ISOLATED in os.environ or subprocess.run(test, capture_output=True, check=False).returncode != 0:
        return
    os.environ[ISOLATED] = "1"
    script = 'ip link set lo up && exec "$@"'
    os.execvp("unshare", [*apart, "sh", "-c", script, "sh", sys.executable, *sys.argv])


def start_server(binary: Path, model: Path, log: Path, tokens: int) -> tuple[subprocess.Popen, int]:
    """A server whose answers are short, because models here say nothing of use."""
    arguments = ["serve", "-m", model, "--any-model", "--addr", "127.0.0.1:0", "--ctx", "65536", "--sessions", "2",
                 "--no-prompt-cache"]
    with log.open("w") as file:
        process = subprocess.Popen([binary, *arguments, "--max-tokens", str(tokens)], stdout=file, stderr=file)
    for _ in range(600):
        if found := re.search(r"listening on http://127.0.0.1:(\d+)", log.read_text()):
            return process, int(found[1])
        if process.poll() is not None:
            break
        time.sleep(0.1)
    process.kill()
    sys.exit(f"{binary} does not start: {log.read_text()}")


def ask(setup: Setup, home: Path, folder: Path, seconds: int) -> str:
    """Runs a client's commands. Returns its exit code, or that its time was over."""
    work = home / "work"
    work.mkdir(parents=True)
    (work / "notes.txt").write_text("The meeting is at four.\n")
    for path, text in setup.files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    path = f"{folder}/node_modules/node/bin:{os.environ['PATH']}"
    environment = {"HOME": str(home), "PATH": path, "TERM": "dumb", "DO_NOT_TRACK": "1", **setup.variables}
    result = "-"
    for command in setup.commands:
        command = [programs(folder, command[0]), *command[1:]]
        with (home / "output.txt").open("a") as output:
            process = subprocess.Popen(
                command, cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )
            try:
                result = str(process.wait(seconds))
            except subprocess.TimeoutExpired:
                result = f"still running after {seconds} s"
                os.killpg(process.pid, 9)
                process.wait()
    return result


def report(name: str, model: str, exchanges: list[dict], result: str) -> str:
    """A line of the table, and below it one for each kind of refusal."""
    asked = [exchange for exchange in exchanges if exchange["method"] == "POST"]
    good = [exchange for exchange in asked if exchange.get("status") == 200]
    found = [re.findall(r'"(?:prompt_tokens|input_tokens)":\s*(\d+)', exchange["answer"]) for exchange in good]
    tokens = max((int(number) for numbers in found for number in numbers), default=0)
    first = asked[0].get("status") if asked else "no request"
    line = f"| {name} | {model} | {first} | {len(good)} of {len(asked)} | {tokens or ''} | {result} |"
    refusals = {f"  {e['path']} {e.get('status')}: {e['answer'][:300]}" for e in asked if e.get("status") != 200}
    return "\n".join([line, *sorted(refusals)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--client", action="append", choices=CLIENTS)
    parser.add_argument("--model", action="append", choices=TEMPLATES)
    parser.add_argument("--keep", type=Path, help="for the exchanges")
    parser.add_argument("--seconds", type=int, default=180, help="that a client has")
    parser.add_argument("--tokens", type=int, default=16, help="of the longest answer")
    options = parser.parse_args()
    isolate()
    folder = options.folder.resolve()
    with tempfile.TemporaryDirectory(prefix="moeflux-clients-") as scratch:
        scratch = Path(scratch)
        print("| client | model | first request | answered | prompt tokens | ends with |\n|---|---|---|---|---|---|")
        for model in options.model or TEMPLATES:
            write_model(scratch / model, TEMPLATES[model])
            process, port = start_server(
                options.binary.resolve(), scratch / model, scratch / f"{model}.log", options.tokens
            )
            try:
                for name in options.client or CLIENTS:
                    run = scratch / f"{name}-{model}"
                    recorder = Recorder(port, run / "exchanges")
                    threading.Thread(target=recorder.serve_forever, daemon=True).start()
                    setup = CLIENTS[name](f"http://127.0.0.1:{recorder.server_port}")
                    result = ask(setup, run / "home", folder, options.seconds)
                    recorder.shutdown()
                    print(report(name, model, recorder.exchanges, result), flush=True)
                    if options.keep:
                        kept = options.keep / run.name
                        shutil.copytree(run / "exchanges", kept, dirs_exist_ok=True)
                        shutil.copy(run / "home/output.txt", kept)
            finally:
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
