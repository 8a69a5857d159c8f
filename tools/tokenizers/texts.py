"""Texts that tokenizers find hard, the same for the same seed."""

import random

WORDS = [
    "the", "Tokenizer", "it's", "IT'S", "don'T", "we'LL", "I'D", "naïve", "e\u0301te\u0301", "STRASSE", "straße",
    "ﬁne", "Ǆ", "ǅ", "ﬀ", "ſ", "it'ſ", "İstanbul", "ΣΊΣΥΦΟΣ", "hello_world", "camelCase", "HTTPServer", "__init__",
    "中文", "漢字かな交じり文", "カタカナ", "한국어", "ภาษาไทยยาก", "हिन्दी", "العربيّة", "עִבְרִית", "Ελληνικά", "русский", "ქართული",
    "ไทยก็ได้", "१२३", "٣٤٥", "Ⅷ", "½", "x²", "3.14159", "1234567890", "0x1F", "1e-9", "€5", "¥", "№", "™", "…", "—",
    "👍", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "👋🏽", "☃️", "𝕳𝖊𝖑𝖑𝖔", "𠮷野家", "𐍈", "🜚", "\U000e0041", "<b>", "</s>x", "[INST", "<|im_en",
    "<0x0A>", "▁", "▁▁x", "Ġ", "ĠĠ", "Ċ", "#version:", "\\n", "{\"a\": [1, 2]}", "https://a.b/c?d=e&f#g", "a@b.co",
    "fn main() {", "    return x;", "\tif x:", "//!", "/*", "<!--", "$x^2$", "()[]{}", "!!!", "???", "......", "-----", "\"'`",
]
SPACES = [
    " ", " ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r\n\r\n", "\r", "\t", "\t\t", " \n", "\n ", "\u00a0", "\u2003",
    "\u3000", "\u200b", "\ufeff", "\u0085", "\u2028", "\x0b", "\x0c", "        ", " " * 40, "",
]
# Scalar values that are assigned or not, of every plane, and the edges of encodings.
RANGES = [
    (0x00, 0x7F), (0x80, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0xDFF), (0xE00, 0xE7F),
    (0x1E00, 0x20CF), (0x2190, 0x27BF), (0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xE0FF),
    (0xFB00, 0xFFFD), (0x10000, 0x1044F), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0x30000, 0x3134F),
    (0xE0000, 0xE01EF), (0x10FF00, 0x10FFFF),
]


def texts(count, special, seed=1):
    """`count` texts; `special` are texts of added tokens, some of which are put in."""
    rng = random.Random(seed)
    made = ["", " ", "  ", "\n", "\r\n", "▁", "a", "\u0000", "\ufffd", "a" * 2000, "ab" * 900, " " * 300, "é" * 300, "中" * 500]
    makers = [_prose, _prose, _prose, _characters, _runs, _broken]
    while len(made) < count:
        text = rng.choice(makers)(rng)
        if special and rng.random() < 0.3:
            for _ in range(rng.randint(1, 3)):
                at = rng.randint(0, len(text))
                text = text[:at] + rng.choice(special) + text[at:]
        made.append(text)
    return made[:count]


def _prose(rng):
    return "".join(rng.choice(SPACES) + rng.choice(WORDS) for _ in range(rng.randint(1, 40))) + rng.choice(SPACES)


def _character(rng):
    while True:
        code = rng.randint(*rng.choice(RANGES))
        if not 0xD800 <= code <= 0xDFFF:
            return chr(code)


def _characters(rng):
    return "".join(_character(rng) for _ in range(rng.randint(1, 60)))


def _runs(rng):
    return "".join(rng.choice("aA1.! \n'’é中") * rng.randint(1, 9) for _ in range(rng.randint(1, 30)))


def _broken(rng):
    """Bytes that are not UTF-8, read as programs read them."""
    whole = bytearray(_prose(rng).encode())
    for _ in range(rng.randint(1, 6)):
        whole[rng.randrange(len(whole)) if whole else 0 : 0] = bytes([rng.randint(0x80, 0xFF)])
    return whole.decode("utf-8", "replace")
