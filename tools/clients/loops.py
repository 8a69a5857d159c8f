"""Lets clients finish a whole loop of a tool: loops.py MOEFLUX FOLDER [--client NAME]...

The model is scripted, and its template refuses late system messages: it thinks, calls the client's tool that reads a
file, and says what the file holds once it has a result. FOLDER is that of install.sh.
"""

import argparse
import json
import sys
import tempfile
import threading
from pathlib import Path

# After this folder, because there is a run.py in both.
sys.path.append(str(Path(__file__).resolve().parents[1] / "ci/agents"))

import scripted_model
from clients import CLIENTS
from recorder import Recorder
from run import ask, isolate, start_server

POSITIONS = 65536
ANSWER = "The meeting is at four, says the file."


def call(tool: str, **parameters: str) -> str:
    lines = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in parameters.items())
    return f"<function={tool}>\n{lines}</function>"


def calls(client: str, file: Path) -> str:
    """How each client's tool for reading a file is called."""
    match client:
        case "opencode":
            return call("read", filePath=file)
        case "qwen":
            return call("read_file", file_path=file)
        case "continue":
            return call("Read", filepath=file)
        case "cline" | "cline-thinking":
            return call("read_files", files=json.dumps([{"path": str(file)}]))
        case "claude":
            return call("Read", file_path=file)
        case "codex":
            return call("exec_command", cmd=f"cat {file}")
    sys.exit(f"{client} has no tool that reads files")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--client", action="append")
    parser.add_argument("--seconds", type=int, default=180)
    options = parser.parse_args()
    isolate()
    with tempfile.TemporaryDirectory(prefix="moeflux-loops-") as scratch:
        for client in options.client or ["opencode", "cline", "cline-thinking", "qwen", "continue", "claude", "codex"]:
            folder = Path(scratch) / client
            folder.mkdir()
            home = folder / "home"
            written = calls(client, home / "work/notes.txt")
            question = ["The file says it.\n", "</think>", "<tool_call>", f"\n{written}\n", "</tool_call>"]
            model = folder / "model"
            scripted_model.write(model, scripted_model.strict_template(), question, [ANSWER], POSITIONS)
            process, port = start_server(options.binary.resolve(), model, folder / "log", 64)
            try:
                recorder = Recorder(port, folder / "exchanges")
                threading.Thread(target=recorder.serve_forever, daemon=True).start()
                setup = CLIENTS[client](f"http://127.0.0.1:{recorder.server_port}")
                result = ask(setup, home, options.folder.resolve(), options.seconds)
            finally:
                process.terminate()
                process.wait()
            said = (home / "output.txt").read_text()
            sent = json.dumps([exchange["body"] for exchange in recorder.exchanges])
            has_result = "The meeting is at four." in sent
            good = ANSWER in said and has_result
            print(f"{client}: {'read the file and said what it holds' if good else 'failed'}, ends with {result}, "
                  f"{len(recorder.exchanges)} requests", flush=True)
            if not good:
                print(f"  result sent: {has_result}; {said[-600:]!r}")


if __name__ == "__main__":
    main()
