//! A tokenizer that fits any vocabulary: bytes, the special tokens of chat,
//! and made-up words for every other id.

use moeflux_core::checkpoint::{Config, FormatError};
use serde_json::{Map, Value, json};

/// Words that are tokens of their own. The last one is of models that take pictures alone.
const SPECIAL: [&str; 6] =
    ["<|endoftext|>", "<|im_start|>", END_OF_TURN, "<think>", "</think>", "<|image_pad|>"];

const END_OF_TURN: &str = "<|im_end|>";

/// Their ids in Qwen3.5's vocabulary.
const QWEN_IDS: [usize; 6] = [248_044, 248_045, 248_046, 248_068, 248_069, 248_056];

const N_BYTES: usize = 256;

/// A byte is a token here, so turns go without their roles' names.
const CHAT_TEMPLATE: &str = "\
{%- for message in messages %}
    {{- '<|im_start|>' + message.content + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>' }}
{%- endif %}
";

/// The same for contents with pictures.
const PICTURE_TEMPLATE: &str = "\
{%- for message in messages %}
    {{- '<|im_start|>' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {{- '<|image_pad|>' if part.type == 'image' else part.text }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>' }}
{%- endif %}
";

/// The vocabulary of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vocabulary {
    n_ids: usize,
    has_pictures: bool,
}

impl Vocabulary {
    /// That of a shape.
    ///
    /// # Errors
    /// Where it has no place for bytes and special tokens.
    pub(super) fn of(config: &Config) -> Result<Vocabulary, FormatError> {
        let has_pictures = config.part("vision_config").is_some();
        let n_special = SPECIAL.len() - usize::from(!has_pictures);
        let n_ids = config.usize_in("vocab_size", N_BYTES + n_special..=1 << 24)?;
        Ok(Vocabulary { n_ids, has_pictures })
    }

    /// Names and contents of the files.
    pub(super) fn files(self) -> Vec<(&'static str, Vec<u8>)> {
        let template = self.template();
        let tokenizer_config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": null,
            "eos_token": END_OF_TURN,
            "pad_token": SPECIAL[0],
            "add_bos_token": false,
            "clean_up_tokenization_spaces": false,
            "chat_template": template,
        });
        let ends = [self.end_of_turn(), self.id(0)];
        let generation = json!({"eos_token_id": ends, "do_sample": false});
        vec![
            ("tokenizer.json", self.tokenizer().to_string().into_bytes()),
            ("tokenizer_config.json", tokenizer_config.to_string().into_bytes()),
            ("chat_template.jinja", template.as_bytes().to_vec()),
            ("generation_config.json", generation.to_string().into_bytes()),
        ]
    }

    /// The chat template.
    pub(super) fn template(self) -> &'static str {
        if self.has_pictures { PICTURE_TEMPLATE } else { CHAT_TEMPLATE }
    }

    /// The id of the token that ends a turn.
    pub(super) fn end_of_turn(self) -> usize {
        self.id(2)
    }

    /// The id of a special word. In vocabularies smaller than Qwen3.5's they are the last ones, that of
    /// pictures before the others.
    fn id(self, nth: usize) -> usize {
        let is_large = self.n_ids > QWEN_IDS[4];
        match (is_large, nth) {
            (true, _) => QWEN_IDS[nth],
            (false, 5) => self.n_ids - 6,
            (false, _) => self.n_ids - 5 + nth,
        }
    }

    /// The special words and their ids.
    fn special(self) -> impl Iterator<Item = (&'static str, usize)> {
        let n = SPECIAL.len() - usize::from(!self.has_pictures);
        (0..n).map(move |nth| (SPECIAL[nth], self.id(nth)))
    }

    /// The words of all ids.
    pub(super) fn words(self) -> Vec<String> {
        let mut words: Vec<String> = byte_words().map(String::from).collect();
        words.extend((N_BYTES..self.n_ids).map(filler));
        for (content, id) in self.special() {
            words[id] = content.to_owned();
        }
        words
    }

    fn tokenizer(self) -> Value {
        let special: Vec<_> = self.special().collect();
        let is_special = |id: &usize| special.iter().any(|(_, of)| of == id);
        let mut words = Map::new();
        for (id, word) in byte_words().enumerate() {
            words.insert(word.to_string(), json!(id));
        }
        for id in (N_BYTES..self.n_ids).filter(|id| !is_special(id)) {
            words.insert(filler(id), json!(id));
        }
        let added = |(content, id): &(&str, usize)| {
            json!({
                "id": id, "content": content, "special": is_hidden(content),
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
            "added_tokens": special.iter().map(added).collect::<Vec<_>>(),
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
}

/// Whether a word is a token of its own that texts do not contain; `None` for the others.
pub(super) fn special(word: &str) -> Option<bool> {
    SPECIAL.contains(&word).then(|| is_hidden(word))
}

fn is_hidden(special: &str) -> bool {
    !special.contains("think")
}

/// A word that no text has. "Ġ" is how byte-level tokenizers write a space.
fn filler(id: usize) -> String {
    format!("Ġw{id}")
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
        for (n_ids, has_pictures) in [
            (261, false),
            (512, false),
            (248_320, false),
            (262, true),
            (512, true),
            (248_320, true),
        ] {
            let vocabulary = Vocabulary { n_ids, has_pictures };
            let tokenizer = vocabulary.tokenizer();
            let words = tokenizer["model"]["vocab"].as_object().unwrap();
            let mut seen: BTreeSet<u64> =
                words.values().map(|word| word.as_u64().unwrap()).collect();
            seen.extend(vocabulary.special().map(|(_, id)| id as u64));
            assert_eq!(seen.len(), n_ids);
            assert_eq!(seen.last(), Some(&(n_ids as u64 - 1)));
            let is_there = |word: &str| vocabulary.words().iter().any(|other| other == word);
            assert_eq!(is_there("<|image_pad|>"), has_pictures);
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
