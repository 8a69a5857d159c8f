//! What a `tokenizer.json` may hold, checked before the tokenizer library reads it.
//!
//! The library trusts such files: some values make it panic, and others make it take gigabytes or
//! minutes. What it refuses by itself is left to it. The limits are far above those of published
//! models.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

/// Above this an id is taken for damage: tables have one entry for each id.
pub(super) const MAX_TOKENS: u32 = 1 << 22;

/// Tokens that a vocabulary may have beyond those that the model has logits for. Published ones have a
/// few hundred more at most, and small models with the tokenizer of a large one are opened for tests.
const MAX_WITHOUT_LOGITS: usize = 1 << 16;

/// Added tokens; every one is looked for in every text.
const MAX_ADDED: usize = 16_384;
/// Bytes of an added token, and of what a normalizer puts in.
const MAX_PART_BYTES: usize = 1024;
/// Normalizers, pre-tokenizers, post-processors and decoders of one kind, sequences counted through.
const MAX_STEPS: usize = 64;
/// Parts of a template of the post-processor, and ids of its special tokens.
const MAX_PIECES: usize = 1024;
/// Bytes of a piece of a Unigram vocabulary: pieces are looked up at every position of a text, and
/// kept in a tree of this depth. Sentencepiece's have 16 characters by default.
const MAX_PIECE_BYTES: usize = 256;
/// Bytes of what a model puts before or behind the pieces of a word.
const MAX_AFFIX_BYTES: usize = 64;
/// Characters of a word that WordPiece takes apart, in a time that grows with their square.
const MAX_WORD_CHARS: u64 = 1024;
/// Bytes of a regular expression; GPT-4o's has about 400.
pub(super) const MAX_REGEX_BYTES: usize = 16 << 10;
/// How many times longer all normalizers together may make a text, and all decoders.
const MAX_GROWTH: usize = 256;
/// Bytes of what a precompiled map puts in for one character; the longest of NFKC has 33.
const MAX_MAPPED_BYTES: usize = 256;

/// A value that is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadField {
    pub(super) field: String,
    pub(super) value: String,
    pub(super) want: &'static str,
}

type Checked = Result<(), BadField>;

/// Checks a whole file, of a model with `n_logits`, where that is known.
pub(super) fn check(json: &Value, n_logits: Option<u32>) -> Checked {
    check_size(&json["model"]["vocab"], n_logits)?;
    check_added(&json["added_tokens"])?;
    check_model(&json["model"])?;
    check_growth(json, "normalizer", "normalizers")?;
    check_growth(json, "decoder", "decoders")?;
    for step in steps(json, "pre_tokenizer", "pretokenizers")? {
        if step["type"] == "FixedLength" && step["length"] == 0 {
            return Err(bad("pre_tokenizer.length", &step["length"], "above 0"));
        }
        check_pattern("pre_tokenizer.pattern", &step["pattern"])?;
    }
    for step in steps(json, "post_processor", "processors")? {
        check_template(step)?;
    }
    Ok(())
}

fn bad(field: &str, value: &Value, want: &'static str) -> BadField {
    BadField { field: field.to_owned(), value: value.to_string(), want }
}

fn too_many(field: &str, n: usize, want: &'static str) -> BadField {
    BadField { field: format!("the number of {field}"), value: n.to_string(), want }
}

/// A vocabulary that cannot be the model's is refused before its tables are built, which take far
/// more memory and time than the model then needs.
fn check_size(vocab: &Value, n_logits: Option<u32>) -> Checked {
    let n_tokens = match vocab {
        Value::Object(tokens) => tokens.len(),
        Value::Array(tokens) => tokens.len(),
        _ => return Ok(()),
    };
    match n_logits {
        Some(n_logits) if n_tokens > n_logits as usize + MAX_WITHOUT_LOGITS => Err(too_many(
            "tokens in model.vocab",
            n_tokens,
            "at most 65536 more than the model's vocab_size",
        )),
        _ => Ok(()),
    }
}

fn check_added(added: &Value) -> Checked {
    let added = added.as_array().map_or(&[][..], Vec::as_slice);
    if added.len() > MAX_ADDED {
        return Err(too_many("added_tokens", added.len(), "at most 16384"));
    }
    for token in added {
        check_id("added_tokens.id", &token["id"])?;
        if token["content"].as_str().is_some_and(|text| text.len() > MAX_PART_BYTES) {
            return Err(bad("added_tokens.content", &token["content"], "at most 1024 bytes"));
        }
    }
    Ok(())
}

fn check_id(field: &str, id: &Value) -> Checked {
    match id.as_u64() {
        Some(id) if id < u64::from(MAX_TOKENS) => Ok(()),
        _ => Err(bad(field, id, "a number below 4194304")),
    }
}

fn check_model(model: &Value) -> Checked {
    for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if model[key].as_str().is_some_and(|text| text.len() > MAX_AFFIX_BYTES) {
            return Err(bad(&format!("model.{key}"), &model[key], "at most 64 bytes"));
        }
    }
    let chars = &model["max_input_chars_per_word"];
    if chars.as_u64().is_some_and(|n_chars| n_chars > MAX_WORD_CHARS) {
        return Err(bad("model.max_input_chars_per_word", chars, "at most 1024"));
    }
    match &model["vocab"] {
        Value::Object(vocab) => {
            if vocab.is_empty() {
                return Err(bad("model.vocab", &model["vocab"], "a vocabulary with tokens"));
            }
            vocab.values().try_for_each(|id| check_id("an id of model.vocab", id))
        }
        Value::Array(vocab) => {
            if vocab.is_empty() || vocab.len() > MAX_TOKENS as usize {
                return Err(too_many("tokens in model.vocab", vocab.len(), "1 to 4194304"));
            }
            let is_long =
                |piece: &&Value| piece[0].as_str().is_some_and(|text| text.len() > MAX_PIECE_BYTES);
            if let Some(piece) = vocab.iter().find(is_long) {
                return Err(bad("a piece of model.vocab", &piece[0], "at most 256 bytes"));
            }
            match &model["unk_id"] {
                Value::Null => Ok(()),
                id if id.as_u64().is_some_and(|id| id < vocab.len() as u64) => Ok(()),
                id => Err(bad("model.unk_id", id, "the id of a token in model.vocab")),
            }
        }
        _ => Ok(()),
    }
}

/// The steps of a part of the file, those in sequences in their place.
fn steps<'a>(json: &'a Value, part: &str, inner: &str) -> Result<Vec<&'a Value>, BadField> {
    let mut found = Vec::new();
    let mut todo = vec![&json[part]];
    let mut n_seen = 0;
    while let Some(step) = todo.pop() {
        n_seen += 1;
        if n_seen > MAX_STEPS {
            return Err(too_many(&format!("steps in {part}"), n_seen, "at most 64"));
        }
        match step[inner].as_array() {
            Some(steps) if steps.len() > MAX_STEPS => {
                return Err(too_many(&format!("steps in {part}"), steps.len(), "at most 64"));
            }
            Some(steps) => todo.extend(steps.iter().rev()),
            None if step.is_null() => {}
            None => found.push(step),
        }
    }
    Ok(found)
}

/// Checks how much longer all steps of a part of the file together make a text.
fn check_growth(json: &Value, part: &str, inner: &str) -> Checked {
    let mut growth = 1;
    for step in steps(json, part, inner)? {
        growth *= growth_of(part, step)?;
        if growth > MAX_GROWTH {
            return Err(bad(part, step, "something that makes texts little longer"));
        }
    }
    Ok(())
}

/// How many times longer a step of a normalizer or of a decoder may make a text, at least 1.
fn growth_of(part: &str, step: &Value) -> Result<usize, BadField> {
    let text = |key: &str| step[key].as_str().unwrap_or_default();
    Ok(match text("type") {
        "Replace" => {
            check_pattern(&format!("{part}.pattern"), &step["pattern"])?;
            check_part(&format!("{part}.content"), &step["content"])?;
            // A regular expression may match one byte, or none.
            let least = step["pattern"]["String"].as_str().map_or(1, str::len);
            text("content").len().div_ceil(least).max(1)
        }
        // Once for each piece between added tokens, which may have a single byte.
        "Prepend" => {
            check_part(&format!("{part}.prepend"), &step["prepend"])?;
            1 + text("prepend").len()
        }
        "Precompiled" => {
            check_charsmap(text("precompiled_charsmap"))?;
            1
        }
        // A byte as a character; a decoder makes bytes of characters.
        "ByteLevel" if part == "normalizer" => 2,
        _ => 1,
    })
}

fn check_part(field: &str, part: &Value) -> Checked {
    match part.as_str() {
        Some(text) if text.len() > MAX_PART_BYTES => Err(bad(field, part, "at most 1024 bytes")),
        _ => Ok(()),
    }
}

fn check_pattern(field: &str, pattern: &Value) -> Checked {
    if pattern["String"] == "" || pattern["Regex"] == "" {
        return Err(bad(field, pattern, "a pattern that matches some text"));
    }
    let text = pattern["String"].as_str().or(pattern["Regex"].as_str()).unwrap_or_default();
    if text.len() > MAX_REGEX_BYTES {
        Err(bad(field, pattern, "at most 16384 bytes"))
    } else {
        Ok(())
    }
}

/// Checks sentencepiece's map of characters: the length of a trie in bytes, the trie, and texts
/// that end with NUL. Entries of the trie are positions in the texts. A position that is wrong in
/// another way makes the library panic when the character comes, which is caught there.
fn check_charsmap(charsmap: &str) -> Checked {
    let wrong = |what: &str, want| BadField {
        field: String::from("normalizer.precompiled_charsmap"),
        value: what.to_owned(),
        want,
    };
    let bytes = BASE64_STANDARD.decode(charsmap);
    let bytes = bytes.map_err(|_| wrong("no base64", "base64"))?;
    let Some((len, rest)) = bytes.split_first_chunk() else {
        return Err(wrong("shorter than 4 bytes", "a map of sentencepiece"));
    };
    let n_trie = u32::from_le_bytes(*len) as usize;
    if n_trie == 0 || !n_trie.is_multiple_of(4) || n_trie > rest.len() {
        return Err(wrong(
            &format!("a trie of {n_trie} bytes in {}", rest.len()),
            "a map of sentencepiece",
        ));
    }
    let longest = rest[n_trie..].split(|byte| *byte == 0).map(<[u8]>::len).max();
    match longest {
        Some(n_bytes) if n_bytes > MAX_MAPPED_BYTES => Err(wrong(
            &format!("a map to a text of {n_bytes} bytes"),
            "a map to texts of at most 256 bytes",
        )),
        _ => Ok(()),
    }
}

fn check_template(step: &Value) -> Checked {
    let pieces = ["single", "pair"].map(|key| step[key].as_array().map_or(0, Vec::len));
    let special = step["special_tokens"].as_object();
    let ids = special.into_iter().flat_map(|tokens| tokens.values());
    let n_ids: usize = ids.map(|token| 1 + token["ids"].as_array().map_or(0, Vec::len)).sum();
    match pieces[0].max(pieces[1]).max(n_ids) {
        n if n > MAX_PIECES => Err(too_many("pieces in post_processor", n, "at most 1024")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(json: &Value) -> Checked {
        super::check(json, None)
    }

    #[test]
    fn what_published_files_hold_passes() {
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let prepend = json!({"type": "Prepend", "prepend": "▁"});
        let split = json!({"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Isolated"});
        check(&json!({
            "added_tokens": [{"id": 163_584, "content": "[BOS]"}],
            "normalizer": {"type": "Sequence", "normalizers": [prepend, replace]},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, {"type": "ByteLevel"}]},
            "post_processor": {"type": "TemplateProcessing", "single": [{}, {}]},
            "model": {"type": "BPE", "vocab": {"a": 0}},
        }))
        .unwrap();
        assert_eq!(check(&json!({})), Ok(()));
        let pieces = |n: usize| json!({"model": {"vocab": vec![json!(["a", 0.0]); n]}});
        let of_100 = |json: &Value| super::check(json, Some(100));
        assert_eq!(of_100(&pieces(65_636)), Ok(()));
        let refused = of_100(&pieces(65_637)).unwrap_err();
        assert_eq!(refused.field, "the number of tokens in model.vocab");
    }

    #[test]
    fn values_that_hurt_are_refused_by_field() {
        let grow = |n: usize| {
            let one = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaa"});
            json!({"normalizer": {"type": "Sequence", "normalizers": vec![one; n]}})
        };
        let decoders = |n: usize| {
            let one = json!({"type": "Replace", "pattern": {"String": "e"}, "content": "eeeeeeee"});
            json!({"type": "Sequence", "decoders": vec![one; n]})
        };
        assert_eq!(check(&grow(2)), Ok(()));
        assert_eq!(check(&json!({"decoder": decoders(2)})), Ok(()));
        let charsmap = |bytes: &[u8]| {
            let text = BASE64_STANDARD.encode(bytes);
            json!({"normalizer": {"type": "Precompiled", "precompiled_charsmap": text}})
        };
        let mut nested = json!({"type": "NFC"});
        for _ in 0..100 {
            nested = json!({"type": "Sequence", "normalizers": [nested]});
        }
        let mut long = 4u32.to_le_bytes().to_vec();
        long.extend([0; 4]);
        assert_eq!(check(&charsmap(&long)), Ok(()));
        long.extend([b'a'; 300]);
        for (json, field) in [
            (grow(3), "normalizer"),
            (json!({"normalizer": nested}), "steps in normalizer"),
            (json!({"normalizer": {"normalizers": vec![json!({}); 65]}}), "steps in normalizer"),
            (
                json!({"normalizer": {"type": "Replace", "pattern": {"String": ""}}}),
                "normalizer.pattern",
            ),
            (json!({"decoder": decoders(3)}), "decoder"),
            (json!({"decoder": decoders(65)}), "steps in decoder"),
            (charsmap(b""), "precompiled_charsmap"),
            (charsmap(&[0xff; 4]), "precompiled_charsmap"),
            (charsmap(&[0; 4]), "precompiled_charsmap"),
            (charsmap(&long), "precompiled_charsmap"),
            (json!({"added_tokens": vec![json!({"id": 1}); 20_000]}), "added_tokens"),
            (json!({"added_tokens": [{"id": 4_294_967_295u32}]}), "added_tokens.id"),
            (json!({"model": {"vocab": {"a": 4_194_304}}}), "model.vocab"),
            (json!({"model": {"vocab": {"a": -1}}}), "model.vocab"),
            (json!({"model": {"vocab": []}}), "model.vocab"),
            (json!({"model": {"vocab": [["a", 0.0]], "unk_id": 1}}), "model.unk_id"),
            (json!({"model": {"vocab": [["a".repeat(300), 0.0]]}}), "a piece of model.vocab"),
            (json!({"model": {"end_of_word_suffix": "a".repeat(100)}}), "end_of_word_suffix"),
            (json!({"model": {"max_input_chars_per_word": 2000}}), "max_input_chars_per_word"),
            (json!({"post_processor": {"single": vec![json!({}); 2000]}}), "post_processor"),
            (json!({"pre_tokenizer": {"type": "FixedLength", "length": 0}}), "pre_tokenizer"),
        ] {
            let refused = check(&json).unwrap_err();
            assert!(refused.field.contains(field), "{refused:?}");
        }
    }
}
