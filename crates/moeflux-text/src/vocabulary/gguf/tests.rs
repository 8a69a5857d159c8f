//! Small vocabularies as GGUF files hold them, opened and used through [`Tokenizer`].

use std::collections::BTreeMap;

use moeflux_core::gguf::{Array, Metadata, Value};
use moeflux_core::{Dialects, Patterns, Splitter, Splitting, TokenId, TokenizerDialect};
use serde_json::json;

use super::splitters;
use crate::byte_level::char_of_byte;
use crate::{Markup, Tokenizer, text_files, tokenizer_bytes};

mod lenient;

/// The names of three families.
fn dialects() -> Dialects {
    static NAMES: TokenizerDialect = TokenizerDialect {
        splitters: &[
            ("marked", Splitter::new(Splitting::composed(Patterns::Qwen3_5))),
            ("whole", Splitter::ignoring_merges(Splitting::of(Patterns::Gpt4))),
            ("plain", Splitter::new(Splitting::of(Patterns::DeepSeek))),
        ],
        merged_pieces: &["pieces"],
        ..TokenizerDialect::NONE
    };
    Dialects { tokenizers: vec![&NAMES], ..Dialects::default() }
}

/// A file's keys, and the folder that it is in.
struct File {
    dir: tempfile::TempDir,
    values: BTreeMap<String, Value>,
}

fn texts(all: &[&str]) -> Value {
    Value::Array(Array::Texts(all.iter().map(|text| (*text).to_owned()).collect()))
}

fn integers(all: &[i64]) -> Value {
    Value::Array(Array::Integers(all.to_vec()))
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

impl File {
    fn new() -> File {
        File { dir: tempfile::tempdir().unwrap(), values: BTreeMap::new() }
    }

    fn with(mut self, key: &str, value: Value) -> File {
        self.values.insert(key.to_owned(), value);
        self
    }

    fn without(mut self, key: &str) -> File {
        self.values.remove(key);
        self
    }

    fn beside(self, name: &str, content: impl AsRef<[u8]>) -> File {
        std::fs::write(self.dir.path().join(name), content).unwrap();
        self
    }

    fn metadata(&self) -> Metadata {
        Metadata::new(&self.dir.path().join("model.gguf"), self.values.clone())
    }

    #[track_caller]
    fn open(&self) -> Tokenizer {
        Tokenizer::from_metadata(&self.metadata(), &dialects()).unwrap()
    }

    #[track_caller]
    fn refused(&self, want: &[&str]) {
        let error =
            Tokenizer::from_metadata(&self.metadata(), &dialects()).unwrap_err().to_string();
        assert!(!error.contains('\n') && error.contains("model.gguf"), "{error}");
        for part in want {
            assert!(error.contains(part), "{error:?} does not contain {part:?}");
        }
    }
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, Markup::Parse).unwrap().into_iter().map(|id| id.0).collect()
}

fn pieces(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
    let ids = tokenizer.encode(text, Markup::Parse).unwrap();
    ids.iter().map(|id| String::from_utf8_lossy(tokenizer.token_bytes(*id)).into_owned()).collect()
}

const MERGES: [&str; 8] = ["a b", "Ġ ab", "1 2", "12 3", "e Ì", "Ã ©", "Ġ Ġ", "ab c"];

/// All bytes, tokens that `MERGES` make, then markup with a hole before it.
fn byte_level(pre: &str) -> File {
    let bytes: Vec<String> = char_of_byte().map(String::from).to_vec();
    let made = MERGES.iter().map(|merge| merge.replacen(' ', "", 1));
    let mut all: Vec<String> = bytes.into_iter().chain(made).collect();
    let mut uses = vec![1; all.len()];
    for (name, kind) in
        [("<|endoftext|>", 3), ("<|im_end|>", 3), ("[PAD266]", 5), ("<think>", 4), ("<|user|>", 3)]
    {
        all.push(name.to_owned());
        uses.push(kind);
    }
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    File::new()
        .with("tokenizer.ggml.model", text("gpt2"))
        .with("tokenizer.ggml.pre", text(pre))
        .with("tokenizer.ggml.tokens", texts(&all))
        .with("tokenizer.ggml.token_type", integers(&uses))
        .with("tokenizer.ggml.merges", texts(&MERGES))
}

#[test]
fn tokens_keep_their_numbers_around_holes() {
    let file = byte_level("qwen2")
        .with("tokenizer.ggml.eos_token_id", Value::Integer(265))
        .with("tokenizer.ggml.bos_token_id", Value::Integer(264));
    let tokenizer = file.open();
    assert_eq!(ids(&tokenizer, "<|im_end|>ab<think> ab"), [265, 256, 267, 257]);
    assert_eq!(ids(&tokenizer, "[PAD266]").len(), 8, "a hole is no token");
    assert_eq!(tokenizer.vocab_size(), 269);
    assert_eq!(tokenizer.token_bytes(TokenId(266)), b"");
    assert!(tokenizer.is_special(TokenId(265)) && !tokenizer.is_special(TokenId(267)));
    assert!(tokenizer.is_control(TokenId(267)));
    let literal = tokenizer.encode("<|im_end|>", Markup::Literal).unwrap();
    assert_eq!(literal.len(), 10);
    assert_eq!(tokenizer.eos_ids(), [TokenId(264), TokenId(265)]);
    assert_eq!(tokenizer.bos_id(), Some(TokenId(264)));
    assert_eq!(tokenizer.file(), file.metadata().path());
    for text in ["ab\r\n  \u{0}é😀", "<think> [PAD266]", ""] {
        assert_eq!(tokenizer.decode(&tokenizer.encode(text, Markup::Parse).unwrap()), text);
    }
}

#[test]
fn texts_are_split_as_the_name_says() {
    let split = |pre: &str, text: &str| pieces(&byte_level(pre).open(), text);
    assert_eq!(split("qwen2", "ab123"), ["ab", "1", "2", "3"]);
    assert_eq!(split("llama-bpe", "ab123"), ["ab", "123"]);
    // Composed only where the original composes.
    assert_eq!(ids(&byte_level("marked").open(), "e\u{301}"), [261]);
    assert_eq!(ids(&byte_level("plain").open(), "e\u{301}").len(), 2);
    // A piece that is a token, whatever its merges give.
    let unreachable = |pre: &str| {
        let file = byte_level(pre);
        let merges: Vec<&str> = MERGES.iter().copied().filter(|merge| *merge != "a b").collect();
        pieces(&file.with("tokenizer.ggml.merges", texts(&merges)).open(), "abc")
    };
    assert_eq!(unreachable("whole"), ["abc"]);
    assert_eq!(unreachable("qwen2"), ["a", "b", "c"]);
}

#[test]
fn every_name_makes_a_tokenizer_that_gives_texts_back() {
    let hard =
        "It's 12345 we'LL, naïve e\u{301} 你好かな한국 \u{e01}\u{e49} ABCabc a.b/c\r\n\n  x½😀";
    for name in splitters::names(&dialects()).split(", ") {
        let tokenizer = byte_level(name).open();
        let back = tokenizer.decode(&tokenizer.encode(hard, Markup::Parse).unwrap());
        let composed = hard.replace("e\u{301}", "é");
        let composes = ["qwen2", "marked"].contains(&name);
        assert!(back == hard || (composes && back == composed), "{name}: {back}");
    }
}

#[test]
fn whether_a_text_has_a_beginning_follows_key_and_name() {
    let begin = |pre: &str, key: Option<bool>| {
        let mut file = byte_level(pre).with("tokenizer.ggml.bos_token_id", Value::Integer(264));
        if let Some(value) = key {
            file = file.with("tokenizer.ggml.add_bos_token", Value::Bool(value));
        }
        let prompt = file.open().encode_prompt("ab", usize::MAX).unwrap();
        prompt.len() == 2 && prompt[0] == TokenId(264)
    };
    assert!(!begin("qwen2", None) && begin("qwen2", Some(true)));
    assert!(begin("llama-bpe", None) && !begin("llama-bpe", Some(false)));
}

#[test]
fn answers_end_with_all_tokens_that_are_called_so() {
    let ends = |file: File| -> Vec<u32> { file.open().eos_ids().iter().map(|id| id.0).collect() };
    assert_eq!(ends(byte_level("whole")), [264, 265]);
    let file = byte_level("whole").with("tokenizer.ggml.eot_token_id", Value::Integer(268));
    assert_eq!(ends(file), [264, 265, 268]);
    // In messages of several parts one end is not the end.
    let harmony = |last: &str| {
        let all = ["a", "<|return|>", "<|end|>", last, "<|start|>", "</s>"];
        let file = byte_level("gpt-4o")
            .with("tokenizer.ggml.tokens", texts(&all))
            .with("tokenizer.ggml.token_type", integers(&[1, 3, 3, 3, 3, 1]))
            .with("tokenizer.ggml.merges", texts(&[]));
        ends(file)
    };
    assert_eq!(harmony("<|call|>"), [1, 3]);
    assert_eq!(harmony("<|eot_id|>"), [1, 2, 3]);
}

#[test]
fn templates_and_sampling_are_the_files() {
    let file = byte_level("qwen2")
        .with("tokenizer.chat_template", text("{{ bos_token }}D"))
        .with("tokenizer.chat_templates", texts(&["tool_use"]))
        .with("tokenizer.chat_template.tool_use", text("T"))
        .with("tokenizer.ggml.bos_token_id", Value::Integer(264))
        .with("general.sampling.temp", Value::Float(0.5))
        .with("general.sampling.top_k", Value::Integer(-1))
        .with("general.sampling.penalty_repeat", Value::Float(1.25));
    let tokenizer = file.open();
    assert_eq!(tokenizer.chat_template_source(true), Some("T"));
    assert_eq!(tokenizer.chat_template_source(false), Some("{{ bos_token }}D"));
    assert_eq!(tokenizer.template_file(), Some(file.metadata().path()));
    assert_eq!(tokenizer.markup_text().named["bos_token"], "<|endoftext|>");
    let defaults = tokenizer.generation_defaults();
    assert_eq!(defaults.do_sample, Some(true));
    assert_eq!((defaults.temperature, defaults.top_k), (Some(0.5), Some(0)));
    assert_eq!((defaults.repetition_penalty, defaults.top_p), (Some(1.25), None));
    assert_eq!(byte_level("qwen2").open().generation_defaults().do_sample, None);
    // A template next to the file is the user's.
    let file = file.beside("chat_template.jinja", "own");
    assert_eq!(file.open().chat_template_source(true), Some("own"));
    assert!(file.open().template_file().unwrap().ends_with("chat_template.jinja"));
}

#[test]
fn a_whole_tokenizer_in_the_file_is_preferred() {
    let vocab: BTreeMap<String, u32> =
        char_of_byte().iter().zip(0..).map(|(c, id)| (c.to_string(), id)).collect();
    let whole = json!({
        "added_tokens": [{
            "id": 300, "content": "<x>", "special": true, "normalized": false,
            "lstrip": false, "rstrip": false, "single_word": false,
        }],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    let file = byte_level("no such name")
        .with("tokenizer.huggingface.json", text(&whole.to_string()))
        .with("tokenizer.ggml.eos_token_id", Value::Integer(265));
    let tokenizer = file.open();
    assert_eq!(ids(&tokenizer, "<x>").len(), 1);
    assert_eq!(ids(&tokenizer, "ab").len(), 2);
    assert!(tokenizer.eos_ids().contains(&TokenId(265)));
    file.with("tokenizer.huggingface.json", text("{"))
        .refused(&["tokenizer.huggingface.json is not valid JSON"]);
}

#[test]
fn a_tokenizer_next_to_the_file_serves_where_its_own_cannot_be_read() {
    let file = byte_level("no such name");
    file.refused(&["tokenizer.ggml.pre is \"no such name\"", "marked", "tokenizer.json"]);
    let known = byte_level("qwen2");
    let json = super::vocabulary(&known.metadata(), &dialects()).unwrap().json;
    let file = file.beside("tokenizer.json", json.to_string());
    let tokenizer = file.open();
    assert_eq!(ids(&tokenizer, "ab123<|im_end|>"), ids(&known.open(), "ab123<|im_end|>"));
    assert!(tokenizer.file().ends_with("tokenizer.json"));
    assert_eq!(tokenizer.eos_ids(), known.open().eos_ids());
    // Its own is preferred, and that of another model is none.
    let file = file.with("tokenizer.ggml.pre", text("llama-bpe"));
    assert_eq!(pieces(&file.open(), "123"), ["123"]);
    let other = json.to_string().replace("\"Ã©\":261", "\"Ã©\":290");
    let file = byte_level("no such name");
    let shifted = json!({"model": {"vocab": {"a": 0, "b": 1}}});
    let file = file.beside("tokenizer.json", shifted.to_string());
    file.refused(&["tokenizer.json: this is not the tokenizer of", "token 0 is \"a\""]);
    let file = file.beside("tokenizer.json", other);
    assert_eq!(file.open().vocab_size(), 291, "one rewritten token does not matter");
}

#[test]
fn files_made_of_the_metadata_say_the_same() {
    let file = byte_level("llama-bpe")
        .with("tokenizer.ggml.bos_token_id", Value::Integer(264))
        .with("tokenizer.ggml.eos_token_id", Value::Integer(268))
        .with("tokenizer.chat_template", text("D"))
        .with("tokenizer.chat_template.tool/use", text("T"))
        .with("general.sampling.temp", Value::Float(0.5))
        .with("general.sampling.top_k", Value::Integer(40));
    for file in [file, sentencepiece(&WORDS), byte_level("qwen2")] {
        let own = file.open();
        let dir = tempfile::tempdir().unwrap();
        for file in text_files(&file.metadata(), &dialects()).unwrap() {
            std::fs::write(dir.path().join(file.name), file.content).unwrap();
        }
        let made = Tokenizer::from_dir(dir.path(), &dialects()).unwrap();
        for hard in ["ab123 abc<think>é e\u{301}<|im_end|>", "", "<unk>  lo [PAD266]"] {
            let prompt = |tokenizer: &Tokenizer| tokenizer.encode_prompt(hard, 99).unwrap();
            assert_eq!(prompt(&own), prompt(&made), "{hard}");
            assert_eq!(own.decode(&prompt(&own)), made.decode(&prompt(&made)));
        }
        assert_eq!((own.eos_ids(), own.bos_id()), (made.eos_ids(), made.bos_id()));
        assert_eq!(own.generation_defaults(), made.generation_defaults());
        assert_eq!(own.chat_template_source(true), made.chat_template_source(true));
        assert!(own.chat_template_names().eq(made.chat_template_names()));
        assert_eq!(own.markup_text().named, made.markup_text().named);
        assert!(tokenizer_bytes(&file.metadata()) > 30_000);
    }
}

#[test]
fn a_file_without_a_tokenizer_says_so() {
    let file = File::new().with("tokenizer.ggml.model", text("none"));
    file.refused(&[
        "has no tokenizer (tokenizer.ggml.model is \"none\")",
        "put the tokenizer.json",
    ]);
    File::new().refused(&["has no tokenizer (tokenizer.ggml.model is missing)"]);
    byte_level("x")
        .with("tokenizer.ggml.model", text("bert"))
        .refused(&["is \"bert\", which is not read (known are gpt2, llama, pieces)"]);
    byte_level("x").without("tokenizer.ggml.pre").refused(&["tokenizer.ggml.pre is missing"]);
    let json = super::vocabulary(&byte_level("qwen2").metadata(), &dialects()).unwrap().json;
    let file = file
        .beside("tokenizer.json", json.to_string())
        .beside("generation_config.json", "{\"eos_token_id\": 265}");
    assert_eq!(file.open().eos_ids(), [TokenId(264), TokenId(265)]);
    assert_eq!(file.open().eos_id(), Some(TokenId(265)));
}

#[test]
fn damage_names_file_and_key() {
    let file = || byte_level("qwen2");
    let tokens = "tokenizer.ggml.tokens";
    file().without(tokens).refused(&[tokens, "is missing"]);
    file().with(tokens, texts(&[])).refused(&[tokens, "0 tokens"]);
    file().with(tokens, integers(&[1])).refused(&[tokens, "be a list of texts"]);
    file()
        .with(tokens, texts(&["a", "b", "a"]))
        .with("tokenizer.ggml.token_type", integers(&[1, 1, 1]))
        .refused(&[tokens, "\"a\" is both 0 and 2"]);
    let uses = "tokenizer.ggml.token_type";
    file().with(uses, integers(&[1])).refused(&[uses, "has 1 entries", "has 269"]);
    file().with(uses, integers(&[9; 269])).refused(&[uses, "of token 0 is 9"]);
    let merges = "tokenizer.ggml.merges";
    file().with(merges, texts(&["a b", "ab"])).refused(&[merges, "entry 1 is \"ab\""]);
    file().with(merges, texts(&["a "])).refused(&[merges, "entry 0 is \"a \""]);
    file().without(merges).refused(&[merges, "is missing"]);
    for key in ["bos", "eos", "eot", "eom", "padding", "unknown", "seperator", "fim_pad"] {
        let key = format!("tokenizer.ggml.{key}_token_id");
        file().with(&key, text("x")).refused(&[&key, "be a whole number"]);
        // -1, as some converters have it.
        file().with(&key, Value::Integer(-1)).open();
        file().with(&key, Value::Integer(0xffff_ffff)).open();
    }
    file().with("tokenizer.chat_template", integers(&[1])).refused(&["be a text"]);
    let long = text(&"x".repeat(2 << 20));
    file().with("tokenizer.chat_template.x", long).refused(&["chat_template.x has 2097152 bytes"]);
    file().with("general.sampling.top_p", text("x")).refused(&["top_p", "finite number"]);
}

#[test]
fn merges_that_make_no_token_never_happen() {
    let file = byte_level("qwen2");
    let merges = texts(&["a q", "x y", "a b", "  x"]);
    assert_eq!(pieces(&file.with("tokenizer.ggml.merges", merges).open(), "abq"), ["ab", "q"]);
}

#[test]
fn merges_of_kimi_are_found_by_rank() {
    let tokenizer = byte_level("kimi-k2").without("tokenizer.ggml.merges").open();
    assert_eq!(pieces(&tokenizer, "abc 123"), ["abc", " ", "123"]);
}

/// As sentencepiece numbers them: `<unk>`, `<s>`, `</s>`, bytes, words from the best on,
/// characters.
fn sentencepiece(words: &[&str]) -> File {
    let mut all: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    let mut uses = vec![2, 3, 3];
    all.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    uses.extend([6; 256]);
    let n_words = words.len();
    all.extend(words.iter().map(|word| (*word).to_owned()));
    all.extend("\u{2581}abcdelo".chars().map(String::from));
    uses.resize(all.len(), 1);
    for (name, kind) in [("<|im_end|>", 3), ("[INST]", 4)] {
        all.push(name.to_owned());
        uses.push(kind);
    }
    let score = |id: usize| match id.checked_sub(259) {
        Some(word) if word < n_words => -(word as f64) - 1.0,
        Some(_) => -50.0,
        None => 0.0,
    };
    let scores = (0..all.len()).map(score).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    File::new()
        .with("tokenizer.ggml.model", text("llama"))
        .with("tokenizer.ggml.pre", text("default"))
        .with("tokenizer.ggml.tokens", texts(&all))
        .with("tokenizer.ggml.token_type", integers(&uses))
        .with("tokenizer.ggml.scores", Value::Array(Array::Floats(scores)))
        .with("tokenizer.ggml.bos_token_id", Value::Integer(1))
        .with("tokenizer.ggml.eos_token_id", Value::Integer(2))
        .with("tokenizer.ggml.unknown_token_id", Value::Integer(0))
}

const WORDS: [&str; 5] = ["ab", "\u{2581}ab", "abc", "\u{2581}abc", "lo"];

#[test]
fn pieces_of_sentencepiece_merge_by_score() {
    let file = sentencepiece(&WORDS);
    let tokenizer = file.open();
    assert_eq!(pieces(&tokenizer, "abc  abc"), [" abc", " ", " abc"]);
    assert_eq!(ids(&tokenizer, "é"), [264, 3 + 0xc3, 3 + 0xa9]);
    assert_eq!(ids(&tokenizer, "ab<|im_end|>ab[INST]"), [260, 272, 260, 273]);
    assert_eq!(ids(&tokenizer, "<unk></s>"), [0, 2]);
    let prompt = tokenizer.encode_prompt("ab", usize::MAX).unwrap();
    assert_eq!(prompt, [TokenId(1), TokenId(260)]);
    assert_eq!(tokenizer.eos_ids(), [TokenId(2), TokenId(272)]);
    assert_eq!(tokenizer.bos_id(), Some(TokenId(1)));
    for text in ["ab\r\n\té😀", "  ab  lo "] {
        assert_eq!(tokenizer.decode(&tokenizer.encode(text, Markup::Parse).unwrap()), text);
    }
    let bare = file.with("tokenizer.ggml.add_space_prefix", Value::Bool(false)).open();
    assert_eq!(pieces(&bare, "abc abc"), ["abc", " abc"]);
}

#[test]
fn damaged_scores_are_refused() {
    let scores = "tokenizer.ggml.scores";
    let floats = |all: Vec<f64>| Value::Array(Array::Floats(all));
    let with = |value: Value| sentencepiece(&WORDS).with(scores, value);
    with(floats(vec![0.0; 3])).refused(&[scores, "has 3 entries", "274"]);
    with(floats(vec![f64::NAN; 274])).refused(&[scores, "of token 0 is NaN"]);
    with(text("x")).refused(&[scores, "be a list of numbers"]);
    with(integers(&[0; 274])).open();
}

#[test]
fn pieces_are_merged_over_spaces_and_bytes_stand_for_what_has_none() {
    let tokens =
        ["<unk>", "<bos>", "<|turn>", "<0xC3>", "<0xA9>", "\u{2581}", "a", "b", "ab", "\u{2581}ab"];
    let file = File::new()
        .with("tokenizer.ggml.model", text("pieces"))
        .with("tokenizer.ggml.tokens", texts(&tokens))
        .with("tokenizer.ggml.token_type", integers(&[2, 3, 4, 6, 6, 1, 1, 1, 1, 1]))
        .with("tokenizer.ggml.merges", texts(&["a b", "\u{2581} ab"]));
    let tokenizer = file.open();
    assert_eq!(ids(&tokenizer, "ab ab<|turn>b a\u{e9}"), [8, 9, 2, 7, 5, 6, 3, 4]);
    file.without("tokenizer.ggml.merges").refused(&["tokenizer.ggml.merges", "list the merges"]);
}
