"""How each client is pointed at a server: its files, variables and command. docs/guide/clients.md shows the same."""

import json
from dataclasses import dataclass, field
from pathlib import Path

MODEL = "moeflux-demo"
QUESTION = "Read notes.txt and say what it holds."


@dataclass
class Setup:
    """Files (below HOME), variables, and the commands, of which the last asks."""

    commands: list[list[str]]
    files: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)


def claude(url: str) -> Setup:
    return Setup(
        [["claude", "-p", "--model", MODEL, "--dangerously-skip-permissions", QUESTION]],
        variables={
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            # Claude Code lets root skip permissions only where this variable says that it runs in a sandbox.
            "IS_SANDBOX": "1",
        },
    )


def codex(url: str) -> Setup:
    config = f"""model = "{MODEL}"
model_provider = "moeflux"
[model_providers.moeflux]
name = "moeflux"
base_url = "{url}/v1"
wire_api = "responses"
"""
    command = ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", QUESTION]
    return Setup([command], {".codex/config.toml": config})


def opencode(url: str) -> Setup:
    model = {"limit": {"context": 65536, "output": 8192}}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": f"{url}/v1"}, "models": {MODEL: model}}
    config = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {"moeflux": provider},
        "model": f"moeflux/{MODEL}",
        "autoupdate": False,
        "share": "disabled",
    }
    return Setup(
        [["opencode", "run", "--auto", QUESTION]],
        {".config/opencode/opencode.json": json.dumps(config)},
        {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"},
    )


def cline(url: str, *thinking: str) -> Setup:
    auth = ["cline", "auth", "-p", "openai", "-k", "none", "-m", MODEL, "-b", f"{url}/v1"]
    return Setup([auth, ["cline", "--retries", "1", *thinking, QUESTION]])


def cline_thinking(url: str) -> Setup:
    return cline(url, "--thinking", "medium")


def qwen(url: str) -> Setup:
    return Setup(
        [["qwen", "-y", "--auth-type", "openai", "--max-session-turns", "3", "-p", QUESTION]],
        {".qwen/settings.json": json.dumps({"telemetry": {"enabled": False}, "privacy": {"usageStatisticsEnabled": False}})},
        {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": MODEL},
    )


def continue_(url: str) -> Setup:
    config = f"""name: local
version: 0.0.1
schema: v1
models:
  - name: moeflux
    provider: openai
    model: {MODEL}
    apiBase: {url}/v1
    apiKey: none
"""
    return Setup(
        [["cn", "-p", "--auto", "--config", "../config.yaml", QUESTION]],
        {"config.yaml": config},
        {"CONTINUE_TELEMETRY_ENABLED": "0", "CONTINUE_CLI_AUTO_UPDATED": "1"},
    )


def aider(url: str) -> Setup:
    flags = "--no-git --yes-always --no-check-update --no-show-release-notes --analytics-disable --no-show-model-warnings"
    return Setup(
        [["aider", "--model", f"openai/{MODEL}", *flags.split(), "--message", QUESTION, "notes.txt"]],
        variables={"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "none"},
    )


def llm(url: str) -> Setup:
    models = f"- model_id: moeflux\n  model_name: {MODEL}\n  api_base: {url}/v1\n  supports_tools: true\n"
    return Setup(
        [["llm", "-m", "moeflux", "--key", "none", QUESTION]],
        {"llm/extra-openai-models.yaml": models},
        {"LLM_USER_PATH": "../llm"},
    )


def litellm(url: str) -> Setup:
    """Its library, by both dialects: its proxy calls the same."""
    program = f"""
import litellm
for model, base in [("openai/{MODEL}", "{url}/v1"), ("anthropic/{MODEL}", "{url}")]:
    answer = litellm.completion(model=model, api_base=base, api_key="none", max_tokens=8,
        messages=[{{"role": "user", "content": {QUESTION!r}}}])
    print(model, answer.choices[0].message.content)
"""
    return Setup(
        [["litellm-python", "-c", program]],
        variables={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"},
    )


CLIENTS = {
    "claude": claude,
    "codex": codex,
    "opencode": opencode,
    "cline": cline,
    "cline-thinking": cline_thinking,
    "qwen": qwen,
    "continue": continue_,
    "aider": aider,
    "llm": llm,
    "litellm": litellm,
}


def programs(folder: Path, name: str) -> str:
    """The program of a client where install.sh put it."""
    if name == "litellm-python":
        return str(folder / "litellm/bin/python")
    if name in ("aider", "llm"):
        return str(folder / name / "bin" / name)
    return str(folder / "node_modules/.bin" / name)
