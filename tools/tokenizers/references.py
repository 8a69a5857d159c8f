"""What published libraries make of a folder: transformers, tokenizers, tiktoken, sentencepiece."""

import base64
import json
import re
from pathlib import Path

# Of the classes that models publish with their weights: Moonshot's tokenization_kimi.py, Qwen's tokenization_qwen.py.
KIMI = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {"TikTokenTokenizer": KIMI, "QWenTokenizer": QWEN}


class Reference:
    """`encode` gives ids with control tokens counted, and `decode` the text of ids; `special` are the texts of
    control tokens. `is_as_good(ids, other)` says whether two ways to write a text cannot be told apart but by how
    sums are rounded."""

    def __init__(self, name, encode, decode, special, is_as_good=lambda ids, other: False):
        self.name, self.encode, self.decode, self.special = name, encode, decode, special
        self.is_as_good = is_as_good


def of(folder):
    """The reference for a folder, by what is in it."""
    folder = Path(folder)
    config = _json(folder / "tokenizer_config.json")
    if (folder / "tokenizer.json").exists():
        return _tokenizers(folder)
    if (folder / "tiktoken.model").exists():
        return _tiktoken(folder, config)
    if (folder / "vocab.json").exists():
        return _transformers(folder)
    return _sentencepiece(folder, config)


def _json(path):
    return json.loads(path.read_text(encoding="utf-8-sig")) if path.exists() else {}


def _tokenizers(folder):
    import tokenizers

    inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    inner.no_truncation()
    inner.no_padding()
    special = [token.content for token in inner.get_added_tokens_decoder().values()]
    return Reference(
        f"tokenizers {tokenizers.__version__}",
        lambda text: inner.encode(text, add_special_tokens=False).ids,
        lambda ids: inner.decode(ids, skip_special_tokens=False),
        special,
    )


def _tiktoken(folder, config):
    """As tokenization_kimi.py has it: 256 reserved tokens behind the ranks."""
    import tiktoken

    ranks = {}
    for line in (folder / "tiktoken.model").read_text().split("\n"):
        if line.strip():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    class_name = config.get("tokenizer_class", "TikTokenTokenizer")
    named = {int(id): token["content"] for id, token in config.get("added_tokens_decoder", {}).items()}
    special = {text: id for id, text in named.items()}
    if class_name == "TikTokenTokenizer":
        behind = range(len(ranks), len(ranks) + 256)
        special |= {named.get(id, f"<|reserved_token_{id}|>"): id for id in behind}
    inner = tiktoken.Encoding("reference", pat_str=PATTERNS[class_name], mergeable_ranks=ranks, special_tokens=special)
    # Qwen's class normalises; Moonshot's does not.
    normal = (lambda text: __import__("unicodedata").normalize("NFC", text)) if class_name == "QWenTokenizer" else str
    return Reference(
        f"tiktoken {tiktoken.__version__}",
        lambda text: inner.encode(normal(text), allowed_special="all"),
        lambda ids: inner.decode(ids),
        sorted(special),
    )


def _transformers(folder):
    import transformers

    inner = _qwen3_5(folder) or transformers.AutoTokenizer.from_pretrained(folder)
    return Reference(
        f"transformers {transformers.__version__}, {type(inner).__name__}",
        lambda text: inner.encode(text, add_special_tokens=False),
        lambda ids: inner.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False),
        [token.content for token in inner.added_tokens_decoder.values()],
    )


def _qwen3_5(folder):
    """That class does not find the two files by itself."""
    import transformers

    config = _json(folder / "tokenizer_config.json")
    if config.get("tokenizer_class") != "Qwen3_5Tokenizer":
        return None
    merges = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")[1:]
    pairs = [tuple(line.split(" ")) for line in merges if line]
    inner = transformers.Qwen3_5Tokenizer(vocab=_json(folder / "vocab.json"), merges=pairs)
    added = sorted((int(id), token) for id, token in config["added_tokens_decoder"].items())
    inner.add_tokens([transformers.AddedToken(**{"normalized": not token["special"], **token}) for _, token in added])
    return inner


def _sentencepiece(folder, config):
    """Parts between added tokens are texts of their own, as transformers has it."""
    import sentencepiece

    inner = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    added = {token["content"]: int(id) for id, token in config.get("added_tokens_decoder", {}).items()}
    # "<unk>" is special where the config names it.
    added |= {inner.id_to_piece(id): id for id in range(inner.get_piece_size()) if inner.is_control(id)}
    pattern = "(" + "|".join(map(re.escape, sorted(added, key=len, reverse=True))) + ")"

    def encode(text):
        ids = []
        for part in re.split(pattern, text) if added else [text]:
            ids += [added[part]] if part in added else inner.encode(part) if part else []
        return ids

    def is_as_good(ids, other):
        """The library adds 32-bit scores, the engine 64-bit ones. Scores of merges are whole numbers."""
        is_unigram = any(inner.get_score(id) % 1 for id in range(inner.get_piece_size()))
        scores = [sum(map(inner.get_score, one)) for one in (ids, other)]
        is_same_text = inner.decode(ids) == inner.decode(other)
        return is_unigram and is_same_text and abs(scores[0] - scores[1]) < 1e-5 * max(1, abs(scores[0]))

    return Reference(f"sentencepiece {sentencepiece.__version__}", encode, None, sorted(added), is_as_good)
