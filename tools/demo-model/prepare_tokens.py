#!/usr/bin/env python3
"""Makes the demo model's tokenizer and training tokens from what `extract_corpus.py` wrote.

Reads docs.json and qa.json, writes into the same folder:
  tokenizer.json           byte-level BPE of 8192 tokens, the layout of Qwen's
  docs.bin, val.bin        documentation as little-endian u16 tokens; the last fiftieth is held out for validation
  chat.bin                 conversations: questions about the documentation, sums, tool calls
"""
import argparse
import json
import random
import re
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SEED = 0
VOCAB_SIZE = 8192
END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = [END_OF_TEXT, "<|im_start|>", "<|im_end|>"]
MARKUP_TOKENS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT_SHARE_OF_TOKENIZER = 4  # the tokenizer learns from every fourth conversation
HELD_OUT_SHARE = 50

N_SUMS = 12_000
N_TOOL_CALLS = 8_000

METHOD_QUESTIONS = ["What does `{path}` do?", "Explain `{path}`.", "In Rust, what is `{path}` for?"]
ITEM_QUESTIONS = ["What is `{path}`?", "Explain the Rust {kind} `{path}`.", "What is `{path}` used for in Rust?"]
SUM_QUESTIONS = ["What is {a} {op} {b}?", "{a} {op} {b} =", "Compute {a} {op} {b}."]

# Name of a tool: its argument, the argument's values, the requests that want it.
TOOLS = {
    "get_weather": (
        "city",
        ["Paris", "Tokyo", "Lima", "Oslo", "Cairo", "Delhi", "Rome", "Quito", "Seoul", "Berlin", "Madrid", "Nairobi"],
        ["What is the weather in {}?", "How is the weather in {} today?", "Weather in {} please."],
    ),
    "read_file": (
        "path",
        ["src/main.rs", "Cargo.toml", "README.md", "src/lib.rs", "build.rs", "tests/api.rs", "/etc/hosts", "notes.txt"],
        ["Open {}.", "Show me the file {}.", "Read {} for me."],
    ),
    "search_docs": (
        "query",
        ["HashMap", "iterator adapters", "lifetimes", "trait objects", "async", "pinning", "slices", "closures"],
        ["Search the docs for {}.", "Find documentation about {}.", "Look up {} in the docs."],
    ),
}
TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
)


def conversation(*turns):
    return "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)


def without_indent(text):
    """Takes away the blank that a page's layout leaves at the beginning of a line."""
    return text.replace("\n ", "\n")


def questions(answers):
    """Three conversations for every documented path."""
    for path, answer, kind in answers:
        for question in METHOD_QUESTIONS if kind == "method" else ITEM_QUESTIONS:
            yield conversation(("user", question.format(path=path, kind=kind)), ("assistant", without_indent(answer).strip()))


def is_held_out(a, b):
    """A tenth of all sums is never seen, so that adding can be told from remembering."""
    return (a * 100 + b) % 10 == 7


def sums():
    for _ in range(N_SUMS):
        a, b = random.randint(0, 99), random.randint(0, 99)
        if is_held_out(a, b):
            continue
        op = random.choice("+-")
        question = random.choice(SUM_QUESTIONS).format(a=a, op=op, b=b)
        yield conversation(("user", question), ("assistant", str(a + b if op == "+" else a - b)))


def tool_definition(name):
    argument = TOOLS[name][0]
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return json.dumps({"type": "function", "function": {"name": name, "parameters": parameters}})


def tool_calls():
    """Requests with one to three tools at hand, of which one is right."""
    for _ in range(N_TOOL_CALLS):
        name = random.choice(list(TOOLS))
        argument, values, requests = TOOLS[name]
        value = random.choice(values)
        offered = random.sample(list(TOOLS), random.randint(1, len(TOOLS)))
        if name not in offered:
            offered[0] = name
        system = TOOLS_HEAD + "\n".join(map(tool_definition, offered)) + "\n</tools>"
        request = random.choice(requests).format(value)
        call = json.dumps({"name": name, "arguments": {argument: value}})
        yield conversation(("system", system), ("user", request), ("assistant", f"<tool_call>\n{call}\n</tool_call>"))


def train_tokenizer(docs, chats):
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(WORDS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS) - len(MARKUP_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    plain_chats = [re.sub(r"<\|im_(start|end)\|>|</?tool_call>", "", it) for it in chats[::CHAT_SHARE_OF_TOKENIZER]]
    tokenizer.train_from_iterator(docs + plain_chats, trainer)
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    tokenizer.add_tokens([AddedToken(it, special=False, normalized=False) for it in MARKUP_TOKENS])
    return tokenizer


def encode(tokenizer, texts):
    """All texts in a row, each with the end of text behind it."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids = [id for encoding in tokenizer.encode_batch(texts) for id in [*encoding.ids, end]]
    return np.array(ids, dtype="<u2")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with docs.json and qa.json, to which the tokens are added")
    args = parser.parse_args()
    random.seed(SEED)

    docs = [without_indent(it) for it in json.loads((args.data / "docs.json").read_text())]
    chats = [*questions(json.loads((args.data / "qa.json").read_text())), *sums(), *tool_calls()]
    random.shuffle(chats)
    tokenizer = train_tokenizer(docs, chats)
    tokenizer.save(str(args.data / "tokenizer.json"))

    random.shuffle(docs)
    tokens = encode(tokenizer, docs)
    n_held_out = len(tokens) // HELD_OUT_SHARE
    tokens[:-n_held_out].tofile(args.data / "docs.bin")
    tokens[-n_held_out:].tofile(args.data / "val.bin")
    chat_tokens = encode(tokenizer, chats)
    chat_tokens.tofile(args.data / "chat.bin")
    print(f"vocabulary {tokenizer.get_vocab_size()}, {len(tokens)} tokens of docs, {len(chat_tokens)} of chat")


if __name__ == "__main__":
    main()
