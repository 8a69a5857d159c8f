"""Writes the models that clients are tried on: the demo model with other chat templates.

    make_models.py FOLDER    # FOLDER/demo, FOLDER/thinks, FOLDER/strict

All take 131,072 tokens of context, because an agent's first prompt alone is longer than the 4,096 tokens that the
demo model was made for. `thinks` writes thoughts before its answers. `strict` thinks too, and its template raises an error for a
system message that is not the first message and for a conversation without a question, as Qwen3.5's does.
The templates come from the engine's golden tests.
"""

import json
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "crates/moeflux-cli/demo"
GOLDEN = ROOT / "crates/moeflux-text/tests/golden/templates"
CONTEXT = 131_072
TEMPLATES = {"demo": None, "thinks": "chatml-think.ask.json", "strict": "chatml-parts.error-late-system.json"}


def write_model(folder: Path, golden: str | None) -> None:
    """Copies the demo model with another template and a longer context."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DEMO, folder)
    template = folder / "chat_template.jinja"
    if golden:
        template.write_text(json.loads((GOLDEN / golden).read_text())["template"])
    header = folder / "moeflux.json"
    content = json.loads(header.read_text())
    content["config"]["max_position_embeddings"] = CONTEXT
    for file in content["files"]:
        if file["path"] == template.name:
            file["bytes"] = template.stat().st_size
    header.write_text(json.dumps(content))


if __name__ == "__main__":
    for name, golden in TEMPLATES.items():
        write_model(Path(sys.argv[1]) / name, golden)
