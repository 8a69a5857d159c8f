"""Lets Claude Code and Codex finish a loop of a tool, and show pictures: run.py MOEFLUX AGENTS.

The model is scripted: it thinks, calls the client's tool that reads a file, and says what the file holds when
it has a result. One that sees calls it for a picture, or has one in its question. Its template refuses system messages behind the first. The clients run by default settings in
a home of their own and talk to this machine only."""

import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import scripted_model

PICTURE = scripted_model.ROOT / "crates/moeflux-image/tests/data/odd.png"
POSITIONS = 65536
# Claude Code's first prompt has 25,000 tokens of the demo model's vocabulary.
CTX = 40000
QUESTION = "Read secret.txt and say what the password is."
SECONDS = 240


class Server:
    def __init__(self, binary, model, log, ctx=CTX, flags=()):
        command = [binary, "serve", "--addr", "127.0.0.1:0", "--any-model", "--log-prompts", "--ctx", str(ctx),
                   "--model", model, *flags]
        own = {k: v for k, v in os.environ.items() if not k.startswith("MOEFLUX_")}
        self.log = log
        with open(log, "w") as file:
            env = {**own, "MOEFLUX_CACHE": str(log.parent / "cache")}
            self.process = subprocess.Popen(command, stderr=file, env=env)
        deadline = time.monotonic() + SECONDS
        while not (found := re.search(r"listening on (http://\S+)", log.read_text())):
            assert self.process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        self.url = found[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(SECONDS) == 0, self.log.read_text()[-2000:]


class Claude:
    """Claude Code."""

    def __init__(self, agents):
        program = agents / "node_modules/@anthropic-ai/claude-code/cli-wrapper.cjs"
        self.command = ["node", program, "-p", QUESTION, "--model", "moeflux"]

    def call(self, file):
        return f"<function=Read>\n<parameter=file_path>\n{file}\n</parameter>\n</function>"

    def show(self, file):
        """What has to be said, and flags, for the client to show a picture."""
        return self.call(file), []

    def settings(self, home, url):
        return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none", "DISABLE_TELEMETRY": "1",
                "DISABLE_ERROR_REPORTING": "1", "DISABLE_AUTOUPDATER": "1",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}


class Codex:
    """Codex."""

    def __init__(self, agents):
        self.command = [agents / "node_modules/.bin/codex", "exec", "--skip-git-repo-check", QUESTION]

    def call(self, file):
        return f"<function=exec_command>\n<parameter=cmd>\ncat {file.name}\n</parameter>\n</function>"

    def show(self, file):
        return None, ["-i", file]

    def settings(self, home, url):
        config = home / ".codex/config.toml"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(f"""model = "moeflux"
model_provider = "local"
[model_providers.local]
name = "local"
base_url = "{url}/v1"
wire_api = "responses"
[analytics]
enabled = false
""")
        return {}


def run(client, server, work, home, flags=()):
    """What a client says, and what the server wrote to its log meanwhile."""
    home.mkdir(exist_ok=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(home), **client.settings(home, server.url)}
    done = subprocess.run([*client.command, *flags], cwd=work, env=env, stdin=subprocess.DEVNULL, timeout=SECONDS,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    log = server.log.read_text()
    assert done.returncode == 0, f"{client.__doc__} {done.stdout[-3000:]}\n{log[-3000:]}"
    return done.stdout, log


def read_a_file(client, binary, folder):
    """The loop: a question, a call, its result, an answer."""
    work, password = folder / "work", "turnip-" + secrets.token_hex(4)
    work.mkdir(parents=True)
    (work / "secret.txt").write_text(f"The password is {password}.\n")
    question = ["The file says it.\n", "</think>", "<tool_call>", "\n" + client.call(work / "secret.txt") + "\n", "</tool_call>"]
    answer = [f"It is {password}, says the file."]
    model = folder / "scripted"
    scripted_model.write(model, scripted_model.strict_template(), question, answer, POSITIONS)
    with Server(binary, model, folder / "log") as server:
        said, log = run(client, server, work, folder / "home")
    assert answer[0] in said, f"{client.__doc__} {said}\n{log[-3000:]}"
    # The prompt of the last request has the call and what the tool gave.
    last = log.rsplit("prompt of ", 1)[1]
    assert "⟦<tool_call>⟧" in last and f"The password is {password}." in last, last[-3000:]


def show_a_picture(client, binary, folder):
    """A picture that the client has read, or was given, reaches the model."""
    work, model = folder / "work", folder / "sees"
    work.mkdir(parents=True)
    file = work / "shot.png"
    file.write_bytes(PICTURE.read_bytes())
    call, flags = client.show(file)
    answer = ["A picture, that is what it is."]
    question, result = (answer, [])
    if call:
        question, result = ["</think>", "<tool_call>", f"\n{call}\n", "</tool_call>"], answer
    scripted_model.write(model, scripted_model.strict_template(), question, result, POSITIONS, scripted_model.SEES)
    with Server(binary, model, folder / "log") as server:
        said, log = run(client, server, work, folder / "home", flags)
    assert answer[0] in said, f"{client.__doc__} {said}\n{log[-3000:]}"
    last = log.rsplit("prompt of ", 1)[1]
    assert last.count("⟦<|vision_start|>⟧[image]⟦<|vision_end|>⟧") == 1, last[-3000:]


def first_request(clients, binary, folder):
    """A model that does not think, under a lenient template, answers at once."""
    work, model = folder / "work", folder / "lenient"
    work.mkdir(parents=True)
    scripted_model.write(model, scripted_model.lenient_template(), ["Hello from here."], [], POSITIONS)
    with Server(binary, model, folder / "log") as server:
        for client in clients:
            said, _ = run(client, server, work, folder / ("home-" + type(client).__name__))
            assert "Hello from here." in said, said


def main(binary, agents):
    clients = [Claude(Path(agents)), Codex(Path(agents))]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for client in clients:
            read_a_file(client, binary, Path(folder) / type(client).__name__)
            print(f"{client.__doc__} read a file and said what it holds ({time.monotonic() - began:.0f} s)")
        for client in clients:
            show_a_picture(client, binary, Path(folder) / f"{type(client).__name__}-sees")
            print(f"{client.__doc__} showed a picture ({time.monotonic() - began:.0f} s)")
        first_request(clients, binary, Path(folder) / "first")
        print(f"A model that does not think answered both ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main(*sys.argv[1:])
