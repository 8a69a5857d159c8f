//! A tokenizer that fits any vocabulary: bytes, the special tokens of chat,
//! and made-up words for every other id.

use serde_json::{Map, Value, json};

const SPECIAL: [&str; 5] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"];

/// Their ids in Qwen3.5's vocabulary.
const QWEN_IDS: [usize; 5] = [248_044, 248_045, 248_046, 248_068, 248_069];

const N_BYTES: usize = 256;

/// A byte is a token here, so turns go without their roles' names.
pub(super) const CHAT_TEMPLATE: &str = "\
{%- for message in messages %}
    {{- '<|im_start|>' + message.content + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>' }}
{%- endif %}
";

/// The smallest vocabulary that holds bytes and special tokens.
pub(super) const MIN_VOCAB: usize = N_BYTES + SPECIAL.len();

/// Names and contents of the files.
pub(super) fn files(vocab: usize) -> Vec<(&'static str, Vec<u8>)> {
    let ids = special_ids(vocab);
    let (end_of_text, end_of_turn) = (ids[0], ids[2]);
    let tokenizer_config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": null,
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "add_bos_token": false,
        "clean_up_tokenization_spaces": false,
        "chat_template": CHAT_TEMPLATE,
    });
    let generation = json!({"eos_token_id": [end_of_turn, end_of_text], "do_sample": false});
    vec![
        ("tokenizer.json", tokenizer(vocab, ids).to_string().into_bytes()),
        ("tokenizer_config.json", tokenizer_config.to_string().into_bytes()),
        ("chat_template.jinja", CHAT_TEMPLATE.as_bytes().to_vec()),
        ("generation_config.json", generation.to_string().into_bytes()),
    ]
}

fn special_ids(vocab: usize) -> [usize; 5] {
    if vocab > QWEN_IDS[4] { QWEN_IDS } else { std::array::from_fn(|i| vocab - 5 + i) }
}

/// The id of the token that ends a turn.
pub(super) fn end_of_turn(vocab: usize) -> usize {
    special_ids(vocab)[2]
}

/// Whether a word is a token of its own that texts do not contain; `None` for the others.
pub(super) fn special(word: &str) -> Option<bool> {
    SPECIAL.contains(&word).then(|| !word.contains("think"))
}

/// The words of all ids.
pub(super) fn words(vocab: usize) -> Vec<String> {
    let mut words: Vec<String> = byte_words().map(String::from).collect();
    words.extend((N_BYTES..vocab).map(filler));
    for (content, id) in SPECIAL.into_iter().zip(special_ids(vocab)) {
        words[id] = content.to_owned();
    }
    words
}

/// A word that no text has. "Ġ" is how byte-level tokenizers write a space.
fn filler(id: usize) -> String {
    format!("Ġw{id}")
}

fn tokenizer(vocab: usize, ids: [usize; 5]) -> Value {
    let mut words = Map::new();
    for (id, word) in byte_words().enumerate() {
        words.insert(word.to_string(), json!(id));
    }
    for id in (N_BYTES..vocab).filter(|id| !ids.contains(id)) {
        words.insert(filler(id), json!(id));
    }
    let added = |(content, id): (&str, usize)| {
        json!({
            "id": id, "content": content, "special": special(content),
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        })
    };
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
    });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": SPECIAL.into_iter().zip(ids).map(added).collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": bytes,
        "post_processor": null,
        "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": words, "merges": [],
        },
    })
}

/// How byte-level tokenizers write each byte: printable ones as themselves,
/// the others from U+0100 on.
fn byte_words() -> impl Iterator<Item = char> {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    (0..=255u8).scan(0x100, move |next, byte| {
        if is_printable(byte) {
            return Some(char::from(byte));
        }
        *next += 1;
        char::from_u32(*next - 1)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_id_has_one_word() {
        for vocab in [MIN_VOCAB, 512, 248_320] {
            let ids = special_ids(vocab);
            let tokenizer = tokenizer(vocab, ids);
            let words = tokenizer["model"]["vocab"].as_object().unwrap();
            let mut seen: BTreeSet<u64> =
                words.values().map(|word| word.as_u64().unwrap()).collect();
            seen.extend(ids.map(|id| id as u64));
            assert_eq!(seen.len(), vocab);
            assert_eq!(seen.last(), Some(&(vocab as u64 - 1)));
        }
    }

    #[test]
    fn bytes_are_written_as_gpt_2_does() {
        let words: Vec<char> = byte_words().collect();
        assert_eq!(words.len(), 256);
        assert_eq!(
            (words[b' ' as usize], words[b'\n' as usize], words[b'a' as usize]),
            ('Ġ', 'Ċ', 'a')
        );
        assert_eq!(words.iter().collect::<BTreeSet<_>>().len(), 256);
    }
}
