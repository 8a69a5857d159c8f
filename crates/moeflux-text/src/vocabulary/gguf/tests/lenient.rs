//! Files that say less than they could, or say it wrongly, and are read all the same.

use moeflux_core::gguf::Value;

use super::{MERGES, WORDS, byte_level, ids, integers, pieces, sentencepiece, text, texts};
use crate::{ChatTemplate, Markup, Message, RenderRequest, Tokenizer, Turn};

/// The tokens of [`byte_level`] with others behind them, all of which are called normal.
fn with_normal(names: &[&str]) -> super::File {
    let file = byte_level("qwen2");
    let metadata = file.metadata();
    let all = metadata.texts("tokenizer.ggml.tokens").unwrap().unwrap();
    let all: Vec<&str> = all.iter().map(String::as_str).chain(names.iter().copied()).collect();
    let uses = metadata.integers("tokenizer.ggml.token_type").unwrap().unwrap();
    let uses: Vec<i64> = uses.iter().copied().chain(names.iter().map(|_| 1)).collect();
    file.with("tokenizer.ggml.tokens", texts(&all))
        .with("tokenizer.ggml.token_type", integers(&uses))
}

fn ends(tokenizer: &Tokenizer) -> Vec<u32> {
    tokenizer.eos_ids().iter().map(|id| id.0).collect()
}

#[test]
fn markup_that_is_called_normal_is_markup() {
    let names = ["<|eot_id|>", "<|start|>", "<tool>", "<ab>", "</s>", "<|fim_middle|>"];
    let merges = [&MERGES[..], &["< ab", "<ab >"]].concat();
    let tokenizer = with_normal(&names).with("tokenizer.ggml.merges", texts(&merges)).open();
    // A tag that merges make is text, and so is one of documents.
    let [end, start, tool, plain, document, middle] = [0, 1, 2, 3, 4, 5].map(|i| 269 + i);
    assert_eq!(ids(&tokenizer, "<|eot_id|><|start|><tool>"), [end, start, tool]);
    assert!(tokenizer.is_special(moeflux_core::TokenId(end)));
    for id in [end, start, tool, middle] {
        assert!(tokenizer.is_control(moeflux_core::TokenId(id)), "{id}");
    }
    assert!(!tokenizer.is_control(moeflux_core::TokenId(plain)));
    assert_eq!(ends(&tokenizer), [264, 265, end]);
    let literal = tokenizer.encode("<|eot_id|>", Markup::Literal).unwrap();
    assert_eq!(literal.len(), 10);
    // The key names it, whatever it is called.
    let named = with_normal(&names)
        .with("tokenizer.ggml.eos_token_id", Value::Integer(i128::from(document)))
        .open();
    assert_eq!(ends(&named), [264, 265, end, document]);
    assert_eq!(ids(&named, "</s>"), [document]);
}

#[test]
fn an_ordinary_token_that_a_key_names_stays_text() {
    // As converters write it that do not know.
    let comma = u32::from(b',');
    let at = byte_level("qwen2").with("tokenizer.ggml.bos_token_id", Value::Integer(44)).open();
    assert_eq!(pieces(&at, "a,b"), ["a", ",", "b"]);
    assert!(!at.is_control(moeflux_core::TokenId(comma)));
}

#[test]
fn lists_of_kinds_and_scores_may_be_missing() {
    let tokenizer = byte_level("qwen2").without("tokenizer.ggml.token_type").open();
    assert_eq!(ids(&tokenizer, "<|im_end|>ab<think>"), [265, 256, 267]);
    assert_eq!(ends(&tokenizer), [264, 265]);
    let bare = sentencepiece(&WORDS)
        .without("tokenizer.ggml.token_type")
        .without("tokenizer.ggml.scores")
        .open();
    for text in ["abc lo", "\u{e9}\u{1f600}"] {
        assert_eq!(bare.decode(&bare.encode(text, Markup::Parse).unwrap()).trim(), text);
    }
    assert_eq!(ends(&bare), [2, 272]);
}

#[test]
fn numbers_that_no_token_has_are_ignored_with_a_warning() {
    for name in
        ["bos", "eos", "eot", "eom", "padding", "unknown", "seperator", "fim_pad", "fim_pre"]
    {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let file = byte_level("qwen2").with(&key, Value::Integer(269));
        let tokenizer = file.open();
        let [warning] = tokenizer.warnings() else { panic!("{key}: {:?}", tokenizer.warnings()) };
        assert!(warning.contains(&format!("{key} is 269, there are 269 tokens")), "{warning}");
        assert_eq!(ends(&tokenizer), [264, 265]);
    }
    let list = byte_level("qwen2").with("tokenizer.ggml.eos_token_ids", integers(&[268, 999, -1]));
    assert_eq!(ends(&list.open()), [264, 265, 268]);
    assert_eq!(list.open().warnings().len(), 1);
    let one = byte_level("qwen2").with("tokenizer.ggml.eos_token_ids", Value::Integer(268));
    assert_eq!(ends(&one.open()), [264, 265, 268]);
    let bad = byte_level("qwen2").with("tokenizer.ggml.eos_token_ids", text("x"));
    bad.refused(&["tokenizer.ggml.eos_token_ids", "be a list of whole numbers"]);
    assert!(byte_level("qwen2").open().warnings().is_empty());
}

/// The tokens of a conversation of one message.
fn chat(tokenizer: &Tokenizer, message: &str) -> Vec<u32> {
    let template = ChatTemplate::of(tokenizer, false).unwrap().unwrap();
    let messages = [Message::new("user", message)];
    let request = RenderRequest { messages: &messages, ..RenderRequest::default() };
    let turn = Turn::of(tokenizer, &template, &request, usize::MAX).unwrap();
    turn.tokens.iter().map(|id| id.0).collect()
}

#[test]
fn a_conversation_begins_as_the_file_asks_once() {
    let file = |template: &str, add: bool| {
        byte_level("qwen2")
            .with("tokenizer.ggml.bos_token_id", Value::Integer(264))
            .with("tokenizer.ggml.add_bos_token", Value::Bool(add))
            .with("tokenizer.chat_template", text(template))
    };
    let without = "{{ messages[0].content }}";
    let with = "{{ bos_token }}{{ messages[0].content }}";
    assert_eq!(chat(&file(without, true).open(), "ab"), [264, 256]);
    assert_eq!(chat(&file(with, true).open(), "ab"), [264, 256]);
    assert_eq!(chat(&file(without, false).open(), "ab"), [256]);
    assert_eq!(chat(&file(with, false).open(), "ab"), [264, 256]);
    // A message that looks like it is text.
    assert!(chat(&file(without, true).open(), "<|endoftext|>").len() > 2);
    // The same goes for what a packed container keeps of the file.
    let dir = tempfile::tempdir().unwrap();
    let parts = crate::text_files(&file(without, true).metadata(), &super::dialects()).unwrap();
    for part in parts {
        std::fs::write(dir.path().join(part.name), part.content).unwrap();
    }
    let packed = Tokenizer::from_dir(dir.path(), &super::dialects()).unwrap();
    assert_eq!(chat(&packed, "ab"), [264, 256]);
}

#[test]
fn a_raw_prompt_begins_once() {
    let file = byte_level("qwen2")
        .with("tokenizer.ggml.bos_token_id", Value::Integer(264))
        .with("tokenizer.ggml.add_bos_token", Value::Bool(true));
    let prompt = |text: &str| -> Vec<u32> {
        let ids = file.open().encode_prompt(text, usize::MAX).unwrap();
        ids.iter().map(|id| id.0).collect()
    };
    assert_eq!(prompt("ab"), [264, 256]);
    assert_eq!(prompt("<|endoftext|>ab"), [264, 256]);
    assert_eq!(prompt("ab<|im_end|>"), [264, 256, 265]);
    assert_eq!(file.open().encode_prompt("ab", 2).unwrap().len(), 2);
    let long = file.open().encode_prompt("abab", 2).unwrap_err().to_string();
    assert!(long.contains("3 tokens"), "{long}");
    assert_eq!(file.open().encode_prompt("<|endoftext|>ab", 2).unwrap().len(), 2);
}

#[test]
fn templates_of_a_folder_with_several_models_are_left_aside() {
    let file = byte_level("qwen2")
        .with("tokenizer.chat_template", text("own"))
        .beside("chat_template.jinja", "of the folder");
    assert_eq!(file.open().chat_template_source(false), Some("of the folder"));
    // Files that belong to the model are no other models.
    let file = file.beside("model.gguf", "").beside("mmproj-F16.gguf", "");
    assert_eq!(file.open().chat_template_source(false), Some("of the folder"));
    let file = file.beside("other-Q4_K_M.gguf", "");
    assert_eq!(file.open().chat_template_source(false), Some("own"));
    assert_eq!(file.open().template_file(), Some(file.metadata().path()));
    assert!(file.open().warnings()[0].contains("chat_template.jinja is left aside"));
    // A file without one takes what there is.
    let bare = file.without("tokenizer.chat_template");
    assert_eq!(bare.open().chat_template_source(false), Some("of the folder"));
}
