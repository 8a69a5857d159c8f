"""Makes small vocabularies of every kind below a folder, for compare.py.

    make_small.py OUT
"""

import base64
import json
import sys
from pathlib import Path

import texts


def corpus():
    """Text to learn pieces from: words that come often, and some of everything."""
    lines = [line for text in texts.texts(400, [], seed=7) for line in text.split("\n")] + texts.WORDS * 5
    # Pieces with a part of the name of a byte are the one thing that unigram vocabularies do not take.
    return [line.replace("<0x", "") for line in lines]


def byte_level(size):
    """A byte-level BPE that the tokenizers library learns: ids by token, and merges."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    learner.train_from_iterator(corpus(), trainer)
    model = json.loads(learner.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def spelled_bytes():
    """The bytes of GPT-2's characters."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


def added(first, names):
    return {str(first + at): {"content": name, "special": name[0] != "["} for at, name in names.items()}


def write(folder, name, content):
    folder.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    (folder / name).write_text(text, encoding="utf-8")


def tiktoken_with_gaps(out):
    vocab, _ = byte_level(900)
    to_byte = spelled_bytes()
    ranks = sorted(vocab, key=vocab.get)
    lines = [f"{base64.b64encode(bytes(to_byte[c] for c in token)).decode()} {rank}\n" for rank, token in enumerate(ranks)]
    write(out / "kimi", "tiktoken.model", "".join(lines))
    names = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 7: "<|im_user|>", 100: "<think>", 255: "[PAD]"}
    config = {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": added(len(ranks), names)}
    write(out / "kimi", "tokenizer_config.json", config)


def vocab_and_merges(out, class_name, model_type):
    vocab, merges = byte_level(1200)
    folder = out / class_name
    write(folder, "vocab.json", vocab)
    write(folder, "merges.txt", "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in merges))
    names = {0: "<|endoftext|>", 1: "<|im_start|>", 2: "<|im_end|>", 5: "[tool]"}
    config = {"tokenizer_class": class_name, "added_tokens_decoder": added(len(vocab), {k: v for k, v in names.items() if k < 3})}
    config["eos_token"] = "<|im_end|>"
    write(folder, "tokenizer_config.json", config)
    write(folder, "config.json", {"model_type": model_type})


def pieces(out, name, **options):
    import sentencepiece

    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=1800,
        byte_fallback=True,
        character_coverage=0.98,
        minloglevel=2,
        hard_vocab_limit=False,
        **options,
    )
    (folder / "tokenizer.vocab").unlink()
    write(folder, "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer", "legacy": True})


def main():
    out = Path(sys.argv[1])
    tiktoken_with_gaps(out)
    for class_name, model_type in [("Qwen2Tokenizer", "qwen3_moe"), ("GPT2Tokenizer", "gpt2"), ("Qwen3_5Tokenizer", "qwen3_5_moe")]:
        vocab_and_merges(out, class_name, model_type)
    plain = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    pieces(out, "spm-bpe", model_type="bpe", **plain)
    pieces(out, "spm-bpe-user-defined", model_type="bpe", user_defined_symbols=["<sep>", "[x]", "中文"], **plain)
    pieces(out, "spm-bpe-bare", model_type="bpe", normalization_rule_name="identity", add_dummy_prefix=False)
    pieces(out, "spm-unigram", model_type="unigram", **plain)


if __name__ == "__main__":
    main()
