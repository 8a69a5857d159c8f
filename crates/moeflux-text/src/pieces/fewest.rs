//! How many tokens a text has at least, in one pass over its bytes.
//!
//! A token of n bytes that holds the bytes a and b next to each other is at most as long as the
//! longest token that does. So each byte of a text stands for at least one part in that many of a
//! token, and the sum over all bytes is a lower bound, whatever the tokenizer chooses.

use moeflux_core::TokenId;
use serde_json::Value;
use unicode_normalization_alignments::{IsNormalized, is_nfc_quick, is_nfkc_quick};

use crate::table::TokenTable;

/// Parts of a token.
const WHOLE: u32 = 1 << 31;

/// The least part of a token that a byte can be.
#[derive(Debug)]
pub(super) struct Fewest {
    /// (256 × 256,): the part of the longest token that holds this pair of bytes; `WHOLE` for a
    /// pair that no token holds.
    share: Vec<u32>,
    form: Option<Form>,
}

/// A Unicode form that texts are brought into.
#[derive(Clone, Copy, Debug)]
enum Form {
    Nfc,
    Nfkc,
}

impl Fewest {
    /// `json` is the content of a `tokenizer.json`. `None` where a token may stand for a text of
    /// any length (unknown words, white space that is swallowed), or where a step of the tokenizer
    /// may take text away.
    pub(super) fn of(
        json: &Value,
        tokenizer: &tokenizers::Tokenizer,
        table: &TokenTable,
    ) -> Option<Fewest> {
        let added = tokenizer.get_added_tokens_decoder();
        if added.values().any(|token| token.lstrip || token.rstrip) {
            return None;
        }
        if json["model"]["type"] != "BPE" || !keeps_words(&json["pre_tokenizer"]) {
            return None;
        }
        let form = form_of(&json["normalizer"])?;
        let mut share = vec![WHOLE; 1 << 16];
        let mut single = [false; 256];
        for id in 0..table.vocab_size() {
            let bytes = table.bytes(TokenId(id as u32));
            let of_token = WHOLE / u32::try_from(bytes.len()).unwrap_or(WHOLE).max(1);
            if let [byte] = bytes {
                single[usize::from(*byte)] = true;
            }
            for pair in bytes.windows(2) {
                let share: &mut u32 = &mut share[index(pair[0], pair[1])];
                *share = of_token.min(*share);
            }
        }
        // Bytes that no UTF-8 has are in no text.
        let has = |byte: u8| single[usize::from(byte)] || matches!(byte, 0xC0 | 0xC1 | 0xF5..);
        (0..=u8::MAX).all(has).then_some(Fewest { share, form })
    }

    /// A number of tokens below which `text` cannot come.
    pub(super) fn tokens_of(&self, text: &str) -> usize {
        let is_kept = match self.form {
            None => true,
            Some(_) if text.is_ascii() => true,
            Some(Form::Nfc) => is_nfc_quick(text.chars()) == IsNormalized::Yes,
            Some(Form::Nfkc) => is_nfkc_quick(text.chars()) == IsNormalized::Yes,
        };
        if !is_kept {
            return 0;
        }
        let bytes = text.as_bytes();
        let mut before = WHOLE;
        let mut sum: u64 = 0;
        for pair in bytes.windows(2) {
            let after = self.share[index(pair[0], pair[1])];
            sum += u64::from(after.min(before));
            before = after;
        }
        if !bytes.is_empty() {
            sum += u64::from(before);
        }
        (sum / u64::from(WHOLE)) as usize
    }
}

fn index(first: u8, second: u8) -> usize {
    usize::from(first) << 8 | usize::from(second)
}

/// Whether the pre-tokenizer leaves all text in.
fn keeps_words(pre_tokenizer: &Value) -> bool {
    if let Some(steps) = pre_tokenizer["pretokenizers"].as_array() {
        return steps.iter().all(keeps_words);
    }
    match pre_tokenizer["type"].as_str() {
        None => pre_tokenizer.is_null(),
        Some("Split") => pre_tokenizer["behavior"] != "Removed",
        Some(kind) => matches!(kind, "ByteLevel" | "Digits" | "Metaspace"),
    }
}

/// The form that the normalizer brings texts into, if any; `None` where it may take text away in
/// another way.
fn form_of(normalizer: &Value) -> Option<Option<Form>> {
    let one = [normalizer.clone()];
    let steps = normalizer["normalizers"].as_array().map_or(&one[..], Vec::as_slice);
    let mut form = None;
    for step in steps.iter().filter(|step| !step.is_null()) {
        match step["type"].as_str()? {
            "NFC" => form = form.or(Some(Form::Nfc)),
            "NFKC" => form = Some(Form::Nfkc),
            "Prepend" => {}
            // The spelling of spaces, which decoding takes back.
            "Replace" if step["pattern"]["String"] == " " && step["content"] == "▁" => {}
            _ => return None,
        }
    }
    Some(form)
}
