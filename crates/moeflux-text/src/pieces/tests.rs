//! Texts in parts against the same texts at once, for the tokenizers of several families.

use std::path::Path;

use moeflux_core::{Dialects, SplitMix64};
use serde_json::{Value, json};

use crate::{Markup, Rendered, TextError, Tokenizer};

const QWEN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT_OSS: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK: [&str; 3] = [
    r"\p{N}{1,3}",
    "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];

fn demo() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo/tokenizer.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn split(regex: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
}

fn byte_level(use_regex: bool, add_prefix_space: bool) -> Value {
    json!({"type": "ByteLevel", "use_regex": use_regex, "add_prefix_space": add_prefix_space,
           "trim_offsets": true})
}

/// The demo model's vocabulary after other steps.
fn of_bytes(normalizer: Value, steps: &[Value]) -> Value {
    let mut json = demo();
    json["normalizer"] = normalizer;
    json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": steps});
    json
}

/// As Llama 2 has it: no pre-tokenizer, spaces spelled, bytes for what is not known.
fn of_pieces(pre_tokenizer: Value, normalizer: Value) -> Value {
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let chars = (' '..='~').chain(['▁', 'é', '世', '界', '，']).filter(|c| *c != ' ');
    let merges = [
        ("▁", "t"),
        ("h", "e"),
        ("▁t", "he"),
        ("a", "a"),
        ("▁", "▁"),
        ("▁▁", "▁▁"),
        ("世", "界"),
        ("1", "2"),
        ("e", "r"),
        (".", "▁"),
    ];
    let merged = merges.iter().map(|(a, b)| format!("{a}{b}"));
    let names = ["<unk>", "<s>", "</s>"].map(String::from).into_iter();
    let all = names.chain(bytes).chain(chars.map(String::from)).chain(merged);
    let vocab: serde_json::Map<_, _> = all.enumerate().map(|(id, t)| (t, json!(id))).collect();
    let added = |id: usize, text: &str| {
        json!({"id": id, "content": text, "special": true, "normalized": false,
               "single_word": false, "lstrip": false, "rstrip": false})
    };
    json!({
        "version": "1.0", "added_tokens": [added(1, "<s>"), added(2, "</s>")],
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges.map(|(a, b)| json!([a, b])),
                  "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true},
    })
}

fn tokenizers() -> Vec<(&'static str, Value)> {
    let spelled = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let llama = json!({"type": "Sequence",
        "normalizers": [{"type": "Prepend", "prepend": "▁"}, spelled]});
    let metaspace = |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
    let digits = json!({"type": "Digits", "individual_digits": true});
    let double = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\t"});
    let nfkc = json!({"type": "Sequence", "normalizers": [{"type": "NFKC"}, double]});
    let bytes = byte_level(false, false);
    vec![
        ("qwen", of_bytes(json!({"type": "NFC"}), &[split(QWEN), bytes.clone()])),
        ("gpt-oss", of_bytes(Value::Null, &[split(GPT_OSS), bytes.clone()])),
        (
            "deepseek",
            of_bytes(
                json!({"type": "Sequence", "normalizers": []}),
                &[split(DEEPSEEK[0]), split(DEEPSEEK[1]), split(DEEPSEEK[2]), bytes.clone()],
            ),
        ),
        ("gpt-2", of_bytes(json!({"type": "Lowercase"}), &[byte_level(true, true)])),
        ("digits", of_bytes(nfkc, &[digits, byte_level(true, false)])),
        ("bytes", of_bytes(Value::Null, &[bytes])),
        ("llama", of_pieces(Value::Null, llama)),
        ("metaspace", of_pieces(metaspace("first"), Value::Null)),
        ("metaspace always", of_pieces(metaspace("always"), Value::Null)),
    ]
}

fn open(json: &Value) -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    Tokenizer::from_dir(dir.path(), &Dialects::default()).unwrap()
}

/// A text of all kinds, at least this long, with the marks, runs and joins that tokenizers treat specially.
fn mixed(numbers: &mut SplitMix64, n_bytes: usize) -> String {
    const PARTS: [&str; 22] = [
        "the ",
        "The",
        "there",
        " ",
        "   ",
        "\n",
        "\n\n  ",
        "\t",
        "123",
        "4567890",
        "'s",
        "'RE",
        "e\u{301}",
        "世界",
        "，",
        "😀",
        "</s>",
        "<|im_start|>user\n",
        "<|im_end|>",
        "x = {a[1]};",
        "ﬁ",
        "aaaa",
    ];
    let mut text = String::new();
    while text.len() < n_bytes {
        let part = PARTS[numbers.below(PARTS.len())];
        // Some runs are longer than a part of the text.
        let is_run = numbers.below(90) == 0 && !part.contains("im_");
        text.push_str(&part.repeat(if is_run { numbers.below(5_000) } else { 1 }));
    }
    text
}

#[test]
fn the_tokens_of_the_parts_are_those_of_the_text() {
    for (name, json) in tokenizers() {
        let tokenizer = open(&json);
        let text = mixed(&mut SplitMix64::new(1), 70_000);
        assert!(tokenizer.encoder.pieces.ends(&text).count() > 1, "{name}: not taken apart");
        for markup in [Markup::Parse, Markup::Literal] {
            let whole = tokenizer.encoder.encode_at_once(&text, markup, &[]);
            assert!(tokenizer.encode(&text, markup).unwrap() == whole, "{name}");
            assert_eq!(tokenizer.encode_first(&text, markup, 9000).unwrap(), whole[..9000]);
            let fewest = tokenizer.encoder.pieces.fewest_tokens(&text);
            assert!(fewest <= whole.len(), "{name}: {fewest} > {}", whole.len());
        }
        let places = text.char_indices().map(|(at, _)| at);
        let fences: Vec<_> = places.filter(|at| (at + 1) % 991 == 0).collect();
        let whole = tokenizer.encoder.encode_at_once(&text, Markup::Parse, &fences);
        let rendered = Rendered::new(text, fences);
        assert!(tokenizer.encode_chat(&rendered, usize::MAX).unwrap() == whole, "{name}");
    }
}

#[test]
fn texts_that_are_too_long_are_refused_with_a_number() {
    let tokenizer = open(&tokenizers()[0].1);
    let refused = |text: &str, max_tokens| match tokenizer
        .encode_within(text, Markup::Literal, max_tokens)
        .unwrap_err()
    {
        TextError::TooLong { n_tokens, is_exact, max_tokens: said } => {
            assert_eq!(said, max_tokens);
            assert!(n_tokens > max_tokens);
            (n_tokens, is_exact)
        }
        other => panic!("{other}"),
    };
    let words = "one two three ".repeat(3000);
    let n_words = tokenizer.encode(&words, Markup::Literal).unwrap().len();
    assert_eq!(refused(&words, n_words - 1), (n_words, true));
    assert!(tokenizer.encode_within(&words, Markup::Literal, n_words).is_ok());
    for long in ["a ", "a", "世界", "😀", "Zm9v", "    ", "1", "\n", "{\"a\":", "世，"] {
        let text = long.repeat((4 << 20) / long.len());
        let (n_tokens, is_exact) = refused(&text, 4095);
        assert!(!is_exact && n_tokens > 100_000, "{long}: {n_tokens}");
    }
    let (n_tokens, _) = refused(&"e\u{301}! ".repeat(1 << 20), 4095);
    assert!(n_tokens > 65_536, "{n_tokens}");
}

#[test]
fn a_long_run_that_cannot_be_taken_apart_is_refused_where_a_limit_is_given() {
    // Unknown words are one token, so that no number of tokens is certain.
    let mut json = tokenizers()[0].1.clone();
    json["added_tokens"][0]["rstrip"] = json!(true);
    let tokenizer = open(&json);
    let text = "世".repeat(700_000);
    let refused = tokenizer.encode_within(&text, Markup::Parse, 4095).unwrap_err();
    assert!(matches!(refused, TextError::Unbroken { .. }), "{refused}");
    assert!(tokenizer.encode_within(&text[..300_000], Markup::Parse, 1 << 20).is_ok());
}
