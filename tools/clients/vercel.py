"""Lets Vercel's SDK finish a loop and a second turn: vercel.py MOEFLUX FOLDER

FOLDER is that of install.sh. The model is scripted: it thinks, calls a tool, and says something of the result. `vercel.mjs` is
what runs, by the SDK's default, the responses API.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# After this folder, because there is a run.py in both.
sys.path.append(str(HERE.parent / "ci/agents"))

import scripted_model
from run import start_server

QUESTION = ["I look ", "it up.\n", "</think>", "<tool_call>",
            "\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n", "</tool_call>"]
RESULT = ["It is ", "21 degrees in Paris."]


def main() -> None:
    binary, folder = (Path(argument).resolve() for argument in sys.argv[1:3])
    if not (folder / "node_modules/ai").is_dir():
        print(f"SKIP: {folder} has no package ai")
        return
    with tempfile.TemporaryDirectory(prefix="moeflux-vercel-") as scratch:
        model = Path(scratch) / "model"
        scripted_model.write(model, scripted_model.strict_template(), QUESTION, RESULT, 65536)
        server, port = start_server(binary, model, Path(scratch) / "log", 64)
        try:
            script = shutil.copy(HERE / "vercel.mjs", folder)
            node = folder / "node_modules/.bin/node"
            command = [node if node.exists() else "node", script, f"http://127.0.0.1:{port}", "model"]
            done = subprocess.run(command, timeout=180)
        finally:
            server.terminate()
            server.wait()
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
