"""A model that says what it is told to: attention and experts give nothing, so that each token decides the
next one. It is a checkpoint as the Hub has them, made of a small one of the tests."""

import json
import re
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "crates/moeflux-cli/demo"
TESTS = ROOT / "crates/moeflux-engine/tests"
# A template that refuses system messages behind the first, as Qwen3.5's does.
STRICT = ROOT / "crates/moeflux-text/tests/golden/templates/chatml-parts.error-late-system.json"
END = "<|im_end|>"
ONE = struct.pack("<H", 0x3F80)  # in bfloat16
# What a model that sees has in its vocabulary, by the keys of its config.
VISION = {"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>",
          "image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
# The last tokens of prompts: thinking is open after a question, and closed after a result.
AFTER_QUESTION, AFTER_RESULT = "Ċ", "ĊĊ"


@dataclass(frozen=True)
class Golden:
    """The small model that lends its weights, the names of its text's tensors, and layers that are used."""
    folder: Path
    prefix: str
    n_layers: int


READS = Golden(TESTS / "golden/qwen3_moe-hf", "model.", 1)
# Rows of pictures are added after the first two layers.
SEES = Golden(TESTS / "towers/qwen3_vl_moe", "model.language_model.", 2)


def strict_template():
    """The strict template. A model that has its result does not think any more."""
    text = json.loads(STRICT.read_text())["template"]
    plain = "{%- if enable_thinking is defined and not enable_thinking %}"
    assert text.count(plain) == 1
    has_result = "messages | selectattr('role', 'equalto', 'tool') | list"
    return text.replace(plain, "{%- if (enable_thinking is defined and not enable_thinking)"
                               " or (" + has_result + ") %}")


def lenient_template():
    """The demo model's: it takes system messages anywhere and does not think."""
    return (DEMO / "chat_template.jinja").read_text()


def write(folder, template, question, result, positions, golden=READS):
    """Writes a model that says the pieces of `question` after a question, and those of `result` after a
    result. Each piece is a token, and occurs once."""
    assert len(set(question + result)) == len(question + result)
    folder.mkdir()
    vocabulary, n_tokens = write_tokenizer(folder, template, question + result)
    config = json.loads((golden.folder / "config.json").read_text())
    text = config.get("text_config", config)
    text |= {"vocab_size": n_tokens, "num_hidden_layers": golden.n_layers, "max_position_embeddings": positions,
             "num_attention_heads": 1, "num_key_value_heads": 1}
    if golden is SEES:
        config |= {key: vocabulary[token] for key, token in VISION.items()}
        shutil.copy(golden.folder / "preprocessor_config.json", folder)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text('{"do_sample": false}')
    tensors = golden_tensors(golden, text["head_dim"])
    embeddings, head = scripted(vocabulary, n_tokens, text["hidden_size"], question, result)
    tensors |= {golden.prefix + "embed_tokens.weight": embeddings, "lm_head.weight": head}
    write_tensors(folder / "model.safetensors", tensors)


def letters(text):
    """A text as byte-level vocabularies write it."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in shown]
    return "".join(chr(b) if b in shown else chr(256 + others.index(b)) for b in text.encode())


def write_tokenizer(folder, template, pieces):
    """The demo model's tokenizer with a token for each piece. Gives ids by text, and how many there are."""
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    vocabulary, added = tokenizer["model"]["vocab"], tokenizer["added_tokens"]
    added += [{**added[0], "content": token} for token in VISION.values()]
    known = {token["content"] for token in added}
    for piece in pieces:
        if piece not in known:
            vocabulary.setdefault(letters(piece), len(vocabulary))
    for i, token in enumerate(added):
        token["id"] = len(vocabulary) + i
    ids = dict(vocabulary) | {token["content"]: token["id"] for token in added}
    ids |= {piece: ids[letters(piece)] for piece in pieces if piece not in known}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((DEMO / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    return ids, -(-(len(vocabulary) + len(added)) // 8) * 8


def scripted(ids, n_tokens, hidden, question, result):
    """Embeddings and head, with their shapes: a token puts the model into a state, and a state says a token."""
    assert len(question) + len(result) + 2 <= hidden
    state = [0] * n_tokens
    says = [(0, question[0])]
    for begin, script in ((AFTER_QUESTION, question), (AFTER_RESULT, result)):
        for before, after in zip([begin, *script], [*script, END]):
            if before == AFTER_QUESTION:
                continue
            state[ids[before]] = len(says)
            says.append((len(says), after))
    embeddings, head = bytearray(2 * n_tokens * hidden), bytearray(2 * n_tokens * hidden)
    for token, at in enumerate(state):
        put_one(embeddings, token * hidden + at)
    for at, text in says:
        put_one(head, ids[text] * hidden + at)
    shape = [n_tokens, hidden]
    return (shape, embeddings), (shape, head)


def put_one(data, at):
    data[2 * at:2 * at + 2] = ONE


def golden_tensors(golden, head_dim):
    """The first layers' weights, of one head: long prompts take their time. And the tower's."""
    data = (golden.folder / "model.safetensors").read_bytes()
    length, = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, facts in json.loads(data[8:8 + length]).items():
        layer = re.search(r"\.layers\.(\d+)\.", name)
        if name == "__metadata__" or layer and int(layer[1]) >= golden.n_layers:
            continue
        begin, end = facts["data_offsets"]
        values = bytes(data[8 + length + begin:8 + length + end])
        if re.search(r"\.[qkv]_proj", name):
            width = facts["shape"][1]
            facts["shape"], values = [head_dim, width], values[:2 * head_dim * width]
        if "o_proj" in name:
            height = facts["shape"][0]
            facts["shape"], values = [height, head_dim], values[:2 * height * head_dim]
        if "down_proj" in name or "o_proj" in name:
            values = bytes(len(values))
        if name == golden.prefix + "norm.weight":
            values = ONE * (len(values) // 2)
        assert facts["dtype"] == "BF16", facts
        tensors[name] = (facts["shape"], values)
    return tensors


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(values)]}
        at += len(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(bytes(values) for _, values in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
