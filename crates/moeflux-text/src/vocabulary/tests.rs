//! Every kind of vocabulary, made here, opened and used through [`Tokenizer`].

use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use moeflux_core::{Dialects, Patterns, Splitting, TokenId, TokenizerDialect};
use prost::Message;
use serde_json::{Value, json};

use super::sentencepiece::{Model, ModelKind, NormalizerSettings, Piece, PieceKind, Trainer};
use crate::byte_level::char_of_byte;
use crate::{Markup, TextError, TextSource, Tokenizer};

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Dir {
        Dir(tempfile::tempdir().unwrap())
    }

    fn with(self, name: &str, content: impl AsRef<[u8]>) -> Dir {
        let path = self.0.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        self
    }

    fn with_json(self, name: &str, content: &Value) -> Dir {
        self.with(name, content.to_string())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn open(&self) -> Tokenizer {
        Tokenizer::from_dir(self.path(), &dialects()).unwrap()
    }

    #[track_caller]
    fn refused(&self, want: &[&str]) {
        let error = Tokenizer::from_dir(self.path(), &dialects()).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
        for part in want {
            assert!(error.contains(part), "{error:?} does not contain {part:?}");
        }
    }
}

/// Two types of models: one whose marks belong to words, one of which nothing is known.
fn dialects() -> Dialects {
    static OF_TYPES: TokenizerDialect = TokenizerDialect {
        merges: &[("marked", Some(Splitting::composed(Patterns::Qwen3_5))), ("unpublished", None)],
        ..TokenizerDialect::NONE
    };
    Dialects { tokenizers: vec![&OF_TYPES], ..Dialects::default() }
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, Markup::Parse).unwrap().into_iter().map(|id| id.0).collect()
}

fn texts(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
    let ids = tokenizer.encode(text, Markup::Parse).unwrap();
    ids.iter().map(|id| String::from_utf8_lossy(tokenizer.token_bytes(*id)).into_owned()).collect()
}

/// All bytes in an order of their own, then `words`, with a rank missing at `gap`.
fn ranks(words: &[&str], gap: usize) -> String {
    let bytes = (0..=255u8).rev().map(|b| vec![b]);
    let tokens = bytes.chain(words.iter().map(|word| word.as_bytes().to_vec()));
    let line = |(rank, token): (usize, Vec<u8>)| {
        format!("{} {}\n", BASE64_STANDARD.encode(token), rank + usize::from(rank >= gap))
    };
    tokens.enumerate().map(line).collect()
}

const WORDS: [&str; 9] = ["ab", "abc", " abc", "bc", "中", "中文", "12", "123", "it's"];

fn kimi(added: &Value) -> Value {
    json!({"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": added})
}

#[test]
fn ranks_of_tiktoken_with_gaps_and_reserved_tokens() {
    let added = json!({
        "265": {"content": "[BOS]", "special": true},
        "266": {"content": "[EOS]", "special": true},
        "270": {"content": "<|im_user|>", "special": true},
        "275": {"content": "<think>", "special": false},
    });
    let dir = Dir::new()
        .with("tiktoken.model", ranks(&WORDS, 1000))
        .with_json("tokenizer_config.json", &kimi(&added));
    let tokenizer = dir.open();
    assert_eq!(ids(&tokenizer, "abc abc"), [257, 258]);
    assert_eq!(ids(&tokenizer, "a"), [255 - 97]);
    assert_eq!(ids(&tokenizer, "<|im_user|>[EOS]<think>"), [270, 266, 275]);
    assert_eq!(ids(&tokenizer, "<|reserved_token_267|>x"), [267, 255 - 120]);
    assert_eq!(tokenizer.vocab_size(), 265 + 256);
    assert_eq!(tokenizer.eos_ids(), [TokenId(266)]);
    assert_eq!(tokenizer.bos_id(), Some(TokenId(265)));
    assert!(tokenizer.is_special(TokenId(266)) && !tokenizer.is_special(TokenId(275)));
    // Han characters are apart from other letters.
    assert_eq!(texts(&tokenizer, "abc中文abc"), ["abc", "中文", "abc"]);
    assert_eq!(texts(&tokenizer, "1234"), ["123", "4"]);
    let literal = tokenizer.encode("[EOS]", Markup::Literal).unwrap();
    assert_eq!(literal.len(), 5);
    for text in ["abc\r\n  中文 \u{0}é😀", "<think> [BOS]", ""] {
        assert_eq!(tokenizer.decode(&tokenizer.encode(text, Markup::Parse).unwrap()), text);
    }
}

#[test]
fn ids_of_tiktoken_may_have_a_hole_and_end_with_the_logits() {
    let dir = Dir::new()
        .with("tiktoken.model", format!("\u{feff}{}", ranks(&WORDS, 200).replace('\n', "\r\n")))
        .with_json("tokenizer_config.json", &kimi(&json!({"300": {"content": "<|x|>"}})))
        .with_json("config.json", &json!({"model_type": "kimi_k2", "vocab_size": 301}));
    let tokenizer = dir.open();
    assert_eq!(ids(&tokenizer, "abc"), [258]);
    assert_eq!(tokenizer.token_bytes(TokenId(200)), b"");
    assert_eq!(ids(&tokenizer, "<|x|>"), [300]);
    assert_eq!(tokenizer.vocab_size(), 301);
}

#[test]
fn a_tokenizer_model_of_ranks_is_told_by_its_content() {
    let dir = Dir::new()
        .with("tokenizer.model", ranks(&WORDS, 1000))
        .with_json("tokenizer_config.json", &json!({"tokenizer_class": "PreTrainedTokenizerFast"}));
    let tokenizer = dir.open();
    assert_eq!(texts(&tokenizer, "abc\u{1}abc 1234"), ["abc", "\u{1}", "abc", " ", "123", "4"]);
    assert_eq!(tokenizer.vocab_size(), 265, "nothing is reserved");
}

#[test]
fn damaged_ranks_are_refused_by_line() {
    let whole = ranks(&WORDS, 1000);
    let with = |content: String| {
        Dir::new()
            .with("tiktoken.model", content)
            .with_json("tokenizer_config.json", &kimi(&json!({})))
    };
    with(String::new()).refused(&["tiktoken.model: it is empty"]);
    with(format!("{whole}YWI= x\n")).refused(&["tiktoken.model: line 266 is \"YWI= x\""]);
    with(format!("{whole}!! 7\n")).refused(&["line 266"]);
    with(format!("{whole}eHh4 4294967295\n")).refused(&["the id 4294967295"]);
    with(format!("{whole}eHh4 258\n")).refused(&["the same id 258"]);
    with(format!("{whole}YWI= 900\n")).refused(&["the token \"ab\" comes twice"]);
    let lines: Vec<&str> = whole.lines().skip(1).collect();
    with(lines.join("\n")).refused(&["no token for the byte 0xff"]);
    let long = BASE64_STANDARD.encode([b'a'; 2000]);
    with(format!("{whole}{long} 900\n")).refused(&["2000 bytes, the limit is 1024"]);
    let clash = kimi(&json!({"257": {"content": "[BOS]"}}));
    with(whole.clone()).with_json("tokenizer_config.json", &clash).refused(&["same id 257"]);
    let class = json!({"tokenizer_class": "NovelTokenizer"});
    with(whole)
        .with_json("tokenizer_config.json", &class)
        .refused(&["NovelTokenizer", "tokenizer.json"]);
}

/// Bytes in GPT-2's spelling, then tokens made by `merges`.
fn vocab(merges: &[(&str, &str)]) -> Value {
    let bytes = char_of_byte().map(String::from);
    let made = merges.iter().map(|(left, right)| format!("{left}{right}"));
    let all = bytes.into_iter().chain(made).enumerate();
    Value::Object(all.map(|(id, text)| (text, json!(id))).collect())
}

const PAIRS: [(&str, &str); 6] =
    [("a", "b"), ("Ġ", "ab"), ("1", "2"), ("12", "3"), ("e", "Ì"), ("Ã", "©")];

fn merges_text() -> String {
    let lines = PAIRS.iter().map(|(left, right)| format!("{left} {right}\n"));
    format!("#version: 0.2\n{}\n", lines.collect::<String>())
}

fn pair(config: &Value) -> Dir {
    Dir::new()
        .with_json("vocab.json", &vocab(&PAIRS))
        .with("merges.txt", merges_text())
        .with_json("tokenizer_config.json", config)
}

#[test]
fn a_pair_of_vocabulary_and_merges_is_split_as_its_class_does() {
    let gpt2 = pair(&json!({"tokenizer_class": "GPT2Tokenizer"})).open();
    assert_eq!(texts(&gpt2, "ab ab123"), ["ab", " ab", "123"]);
    let qwen = json!({
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": "<|im_end|>",
        "added_tokens_decoder": {
            "300": {"content": "<|endoftext|>", "special": true},
            "302": {"content": "<|im_end|>", "special": true},
            "305": {"content": "<tool_call>", "special": false},
        },
    });
    let qwen2 = pair(&qwen).open();
    // Digits one by one, and composed characters.
    assert_eq!(texts(&qwen2, "ab ab123"), ["ab", " ab", "1", "2", "3"]);
    assert_eq!(texts(&qwen2, "e\u{301}"), ["é"]);
    assert_eq!(ids(&qwen2, "<|im_end|><tool_call>ab"), [302, 305, 256]);
    assert_eq!(qwen2.eos_ids(), [TokenId(300), TokenId(302)]);
    assert_eq!(qwen2.eos_id(), Some(TokenId(302)));
    // The type of the model goes before the class that its repository names.
    let of_type = |name: &str| pair(&qwen).with_json("config.json", &json!({"model_type": name}));
    let thai = "ก\u{e34}ab";
    for tokenizer in [&qwen2, &of_type("marked").open()] {
        assert_eq!(tokenizer.decode(&tokenizer.encode(thai, Markup::Parse).unwrap()), thai);
    }
    of_type("unpublished").refused(&["the tokenizer class of unpublished", "tokenizer.json"]);
    let by_type = json!({"model_type": "qwen"});
    let none = pair(&json!({})).with_json("config.json", &by_type).open();
    assert_eq!(texts(&none, "123"), ["1", "2", "3"]);
}

#[test]
fn damage_of_the_pair_names_file_and_line() {
    let class = json!({"tokenizer_class": "GPT2Tokenizer"});
    let dir = || pair(&class);
    dir().with("merges.txt", "a b\nĠ ab c\n").refused(&["merges.txt: line 2 is \"Ġ ab c\""]);
    dir().with("merges.txt", "a q\n").refused(&["merges.txt: line 1", "no token \"aq\""]);
    dir().with("merges.txt", b"\xff\xfe").refused(&["merges.txt", "not text"]);
    dir().with("vocab.json", "[1]").refused(&["vocab.json", "an object"]);
    dir().with("vocab.json", "{\"a\": -1}").refused(&["vocab.json: the id of \"a\" is -1"]);
    dir().with("vocab.json", "{\"a\": 1, \"b\": 1}").refused(&["vocab.json", "the same id 1"]);
    dir().with("vocab.json", "{").refused(&["vocab.json is not valid JSON"]);
    let unknown = json!({"tokenizer_class": "MyTokenizer"});
    pair(&unknown).refused(&["vocab.json", "MyTokenizer", "put the model's tokenizer.json"]);
    let half = Dir::new().with_json("vocab.json", &vocab(&PAIRS));
    half.refused(&["no tokenizer (vocab.json is there without merges.txt)", "tokenizer.json"]);
}

fn piece(text: &str, score: f32, kind: PieceKind) -> Piece {
    Piece { text: Some(text.into()), score: Some(score), kind: Some(kind.into()) }
}

/// Control pieces, all bytes, the characters of `words`, and `words`, the first being the best.
fn sentencepiece(kind: ModelKind, words: &[&str]) -> Model {
    let mut pieces = vec![
        piece("<unk>", 0.0, PieceKind::Unknown),
        piece("<s>", 0.0, PieceKind::Control),
        piece("</s>", 0.0, PieceKind::Control),
    ];
    pieces.extend((0..=255u8).map(|b| piece(&format!("<0x{b:02X}>"), 0.0, PieceKind::Byte)));
    let words = words.iter().zip(1u8..);
    pieces.extend(words.map(|(word, n)| piece(word, -f32::from(n), PieceKind::Normal)));
    let chars = "\u{2581}abcdelo".chars();
    pieces.extend(chars.map(|c| piece(&c.to_string(), -50.0, PieceKind::Normal)));
    Model {
        pieces,
        trainer: Some(Trainer {
            kind: Some(kind.into()),
            byte_fallback: Some(true),
            ..Trainer::default()
        }),
        normalizer: Some(NormalizerSettings {
            remove_extra_whitespaces: Some(false),
            ..NormalizerSettings::default()
        }),
    }
}

const SPM_WORDS: [&str; 5] = ["ab", "\u{2581}ab", "abc", "\u{2581}abc", "lo"];

fn spm(model: &Model, config: &Value) -> Dir {
    Dir::new()
        .with("tokenizer.model", model.encode_to_vec())
        .with_json("tokenizer_config.json", config)
}

#[test]
fn pieces_of_sentencepiece_merge_by_score() {
    let model = sentencepiece(ModelKind::Bpe, &SPM_WORDS);
    let tokenizer = spm(&model, &json!({"tokenizer_class": "LlamaTokenizer"})).open();
    // "ab" is better than "▁ab" and "abc", so that "▁abc" is reached by either.
    assert_eq!(texts(&tokenizer, "abc  abc"), [" abc", " ", " abc"]);
    assert_eq!(ids(&tokenizer, "\n"), [259 + 5, 3 + 10]);
    assert_eq!(ids(&tokenizer, "é"), [259 + 5, 3 + 0xc3, 3 + 0xa9]);
    assert_eq!(ids(&tokenizer, ""), [0; 0]);
    let ids = tokenizer.encode_prompt("ab", usize::MAX).unwrap();
    assert_eq!(ids, [TokenId(1), TokenId(260)]);
    assert_eq!(tokenizer.eos_ids(), [TokenId(2)]);
    for text in ["ab\r\n\té😀", "  ab  lo ", "\u{2581}"] {
        let back = tokenizer.decode(&tokenizer.encode(text, Markup::Parse).unwrap());
        assert_eq!(back, text.replace('\u{2581}', " "));
    }
    let unnamed = spm(&model, &json!({})).open();
    assert_eq!(unnamed.encode_prompt("ab", usize::MAX).unwrap(), [TokenId(260)]);
}

#[test]
fn pieces_of_sentencepiece_add_up_in_unigram_vocabularies() {
    let mut model = sentencepiece(ModelKind::Unigram, &SPM_WORDS);
    let tokenizer = spm(&model, &json!({})).open();
    assert_eq!(texts(&tokenizer, "abc lo"), [" abc", " ", "lo"]);
    assert_eq!(ids(&tokenizer, "\n"), [259 + 5, 3 + 10]);
    let spelled = "<0x0A><unk>";
    assert_eq!(tokenizer.decode(&tokenizer.encode(spelled, Markup::Parse).unwrap()), spelled);
    // Extra spaces go where the vocabulary says so, and no space begins the text.
    model.normalizer =
        Some(NormalizerSettings { add_dummy_prefix: Some(false), ..NormalizerSettings::default() });
    let tokenizer = spm(&model, &json!({})).open();
    assert_eq!(texts(&tokenizer, "  ab   abc "), ["ab", " abc"]);
}

#[test]
fn added_and_user_defined_pieces_are_taken_whole() {
    let mut model = sentencepiece(ModelKind::Bpe, &SPM_WORDS);
    model.pieces.push(piece("<sep>", 0.0, PieceKind::UserDefined));
    model.pieces.push(piece("<sep>ab", 0.0, PieceKind::UserDefined));
    let n = model.pieces.len() as u32;
    let added = json!({
        n.to_string(): {"content": "<|im_end|>", "special": true},
        (n + 3).to_string(): {"content": "[INST]", "special": false},
    });
    let config = json!({"added_tokens_decoder": added, "eos_token": "<|im_end|>"});
    let tokenizer = spm(&model, &config).open();
    assert_eq!(ids(&tokenizer, "ab<sep>ab<sep>lo"), [260, n - 1, n - 2, 263]);
    assert_eq!(ids(&tokenizer, "ab<|im_end|>ab[INST]"), [260, n, 260, n + 3]);
    assert!(tokenizer.eos_ids().contains(&TokenId(n)));
    // Without the dummy prefix of every part.
    let config = json!({"legacy": false, "tokenizer_class": "LlamaTokenizer"});
    let tokenizer = spm(&model, &config).open();
    assert_eq!(ids(&tokenizer, "ab</s>ab"), [260, 2, 259]);
    let mut unigram = model.clone();
    unigram.trainer.as_mut().unwrap().kind = Some(ModelKind::Unigram.into());
    let config = json!({"added_tokens_decoder": added});
    assert_eq!(ids(&spm(&unigram, &config).open(), "[INST]<sep>lo"), [n + 3, 259 + 5, n - 2, 263]);
}

#[test]
fn damaged_pieces_are_refused() {
    let whole = sentencepiece(ModelKind::Bpe, &SPM_WORDS);
    let none = json!({});
    let refused = |model: &Model, want: &[&str]| spm(model, &none).refused(want);
    let cut = Dir::new().with("tokenizer.model", &whole.encode_to_vec()[..200]);
    cut.refused(&["tokenizer.model", "neither a model of sentencepiece nor"]);
    Dir::new().with("tokenizer.model", "").refused(&["0 pieces"]);
    Dir::new().with("tokenizer.model", "<html>\n").refused(&["tokenizer.model"]);
    let mut twice = whole.clone();
    twice.pieces.push(piece("lo", 0.0, PieceKind::Normal));
    refused(&twice, &["the token \"lo\" comes twice"]);
    let mut nan = whole.clone();
    nan.pieces.push(piece("new", f32::NAN, PieceKind::Normal));
    refused(&nan, &["the piece \"new\" has the score NaN"]);
    let mut word = whole.clone();
    word.trainer.as_mut().unwrap().kind = Some(ModelKind::Word.into());
    refused(&word, &["WORD", "BPE"]);
    let mut suffix = whole;
    suffix.trainer.as_mut().unwrap().treat_whitespace_as_suffix = Some(true);
    refused(&suffix, &["treat_whitespace_as_suffix"]);
}

#[test]
fn vocabularies_are_taken_in_order_and_named() {
    let files = |dir: &Dir| TextSource::Directory(dir.path().to_owned()).names();
    let dir = Dir::new().with("tokenizer.model", "");
    assert_eq!(files(&dir).unwrap(), "tokenizer.model");
    let dir = dir.with("vocab.json", "{}").with("merges.txt", "");
    assert_eq!(files(&dir).unwrap(), "vocab.json and merges.txt");
    let dir = dir.with("tiktoken.model", "");
    assert_eq!(files(&dir).unwrap(), "tiktoken.model");
    assert_eq!(files(&dir.with("tokenizer.json", "")).unwrap(), "tokenizer.json");
    let other = Dir::new().with("tekken.json", "{}");
    assert!(matches!(files(&other), Err(TextError::NoTokenizer { .. })));
    other.refused(&["no tokenizer (tekken.json is there, which is not read)", "tiktoken.model"]);
    Dir::new().refused(&["has no tokenizer: put the model's tokenizer.json there"]);
    Dir::new().with("qwen.tiktoken", "").refused(&["qwen.tiktoken"]);
}

#[test]
fn a_byte_order_mark_changes_nothing() {
    let bom = |text: &str| format!("\u{feff}{text}");
    let config = json!({"tokenizer_class": "Qwen2Tokenizer", "chat_template": "{{ 1 }}"});
    let plain = pair(&config).open();
    let dir = Dir::new()
        .with("vocab.json", bom(&vocab(&PAIRS).to_string()))
        .with("merges.txt", bom(&merges_text()))
        .with("tokenizer_config.json", bom(&config.to_string()))
        .with("generation_config.json", bom("{}"))
        .with("chat_template.jinja", bom("{{ 2 }}"))
        .with("additional_chat_templates/tool_use.jinja", bom("{{ 3 }}"));
    let marked = dir.open();
    assert_eq!(ids(&plain, "ab ab12"), ids(&marked, "ab ab12"));
    assert_eq!(marked.chat_template_source(false), Some("{{ 2 }}"));
    assert_eq!(marked.chat_template_source(true), Some("{{ 3 }}"));
    assert_eq!(plain.chat_template_source(true), Some("{{ 1 }}"));
}
