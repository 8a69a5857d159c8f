"""What agents and their sub-agents cost each other on one session: subagents.py MOEFLUX AGENTS [OPENCODE].

The model is scripted: it gives a question to a sub-agent by the client's own tool, which answers, and says what came
of it; then the user asks again. Each client does that on a server of one session with and without the cache of
prompts, and on one of eight sessions, where none takes another's. The server's metrics say how many tokens of prompts
were evaluated; what is more than with eight sessions was evaluated again. Clients that are not there are left out.
AGENTS is the folder of agents.sh, OPENCODE one with opencode-ai below node_modules.

Codex 0.169.0 is not among them: its tool for sub-agents (`spawn_agent`, with `--enable multi_agent_v2`) returns at once, and
`codex exec` ends with the answer of the first agent, before the other has asked, unless the model calls `wait_agent`. A model
whose every token decides the next cannot make two calls."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import run
import scripted_model

TASK = "Count the words of this sentence."
SAID = "The sub-agent has counted the words."
# The tokens of the demo model's vocabulary are short: prompts are longer than with others'.
CTX = 60000


def call(tool, **parameters):
    lines = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in parameters.items())
    return f"<function={tool}>\n{lines}</function>"


class Claude(run.Claude):
    """Claude Code."""

    def __init__(self, agents):
        super().__init__(agents)
        self.program = self.command[:2]

    def there(self):
        return self.program[1].exists() and shutil.which("node")

    def commands(self):
        ask = [*self.program, "-p", "--model", "moeflux", "--dangerously-skip-permissions"]
        return [[*ask, "Have the words counted."], [*ask, "--continue", "Have them counted again."]]

    def settings(self, home, url):
        # Claude Code lets root skip permissions only where this variable says that it runs in a sandbox.
        return super().settings(home, url) | {"IS_SANDBOX": "1", "CLAUDE_CODE_ATTRIBUTION_HEADER": "0"}

    def call(self, work):
        return call("Agent", description="Count words", prompt=TASK, subagent_type="general-purpose")


class Opencode:
    """opencode"""

    def __init__(self, folder):
        self.program = folder / "node_modules/.bin/opencode"

    def there(self):
        return self.program.exists()

    def commands(self):
        return [[self.program, "run", "--auto", "Have the words counted."],
                [self.program, "run", "--auto", "--continue", "Have them counted again."]]

    def settings(self, home, url):
        models = {"moeflux": {"limit": {"context": CTX, "output": 4096}}}
        provider = {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": f"{url}/v1"}, "models": models}
        config = {"provider": {"local": provider}, "model": "local/moeflux", "small_model": "local/moeflux",
                  "autoupdate": False, "share": "disabled"}
        file = home / ".config/opencode/opencode.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(scripted_model.json.dumps(config))
        return {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}

    def call(self, work):
        return call("task", description="Count words", prompt=TASK, subagent_type="general")


def template():
    """The strict template: a model that has its result, or that is the sub-agent, does not think."""
    text = scripted_model.strict_template()
    has_result = "messages | selectattr('role', 'equalto', 'tool') | list"
    assert text.count(has_result) == 1
    asked = "messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(' ')"
    ended = f"'tool' in (messages[-2:] | map(attribute='role') | list) or '{TASK}' in ({asked})"
    return text.replace(has_result, ended)


def metrics(url):
    """Tokens of prompts, and those of them that needed no evaluation."""
    with urllib.request.urlopen(f"{url}/metrics") as reply:
        text = reply.read().decode()

    def total(name):
        return sum(float(value) for value in re.findall(rf"^{name}_total\{{[^}}]*\}} (\S+)", text, re.M))

    return total("moeflux_key_prompt_tokens"), total("moeflux_key_cached_tokens")


def turns(client, binary, model, folder, flags):
    """Tokens of the prompts of both turns, those that were evaluated, and how many answers there were."""
    home, work = folder / "home", folder / "work"
    home.mkdir(parents=True)
    work.mkdir()
    (work / "README.md").write_text("Nothing is here.\n")
    with run.Server(binary, model, folder / "log", CTX, [*flags, "--max-tokens", "400"]) as server:
        env = {"PATH": os.environ["PATH"], "HOME": str(home), **client.settings(home, server.url)}
        for command in client.commands():
            done = subprocess.run(command, cwd=work, env=env, stdin=subprocess.DEVNULL, timeout=run.SECONDS,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert done.returncode == 0, f"{client.__doc__} {done.stdout[-2000:]}"
            assert SAID in done.stdout, f"{client.__doc__} {done.stdout[-2000:]}\n{server.log.read_text()[-3000:]}"
        n_prompt, n_cached = metrics(server.url)
        log = server.log.read_text()
    # The sub-agent has a conversation of its own.
    own = [prompt for prompt in log.split("prompt of ")[1:] if TASK in prompt and "Have the words" not in prompt]
    assert own, f"{client.__doc__} no sub-agent has asked\n{log[-4000:]}"
    return n_prompt, n_prompt - n_cached


def main(binary, agents, opencode=None):
    clients = [Claude(Path(agents)), Opencode(Path(opencode or agents))]
    print("| agent | tokens of prompts | evaluated again without the cache | with it |\n|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as scratch:
        for client in clients:
            name = type(client).__name__
            if not client.there():
                print(f"SKIP {client.__doc__} is not installed")
                continue
            folder = Path(scratch) / name
            folder.mkdir()
            question = ["A sub-agent counts.\n", "</think>", "<tool_call>", f"\n{client.call(folder)}\n", "</tool_call>"]
            model = folder / "model"
            scripted_model.write(model, template(), question, [SAID], run.POSITIONS)
            evaluated = {}
            for kind, flags in [("all", ["--sessions", "8"]), ("without", ["--sessions", "1", "--no-prompt-cache"]),
                                ("with", ["--sessions", "1"])]:
                n_prompt, evaluated[kind] = turns(client, binary, model, folder / kind, flags)
            again = [max(evaluated[kind] - evaluated["all"], 0) / n_prompt for kind in ("without", "with")]
            print(f"| {client.__doc__.rstrip('.')} | {n_prompt:.0f} | {again[0]:.1%} | {again[1]:.1%} |", flush=True)
            assert again[1] < 0.05 and again[1] < again[0], evaluated


if __name__ == "__main__":
    main(*sys.argv[1:])
