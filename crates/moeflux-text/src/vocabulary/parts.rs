//! Parts of a `tokenizer.json` that several kinds of vocabularies need.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::facts::{AddedToken, VocabularyFacts};
use crate::error::{TextError, excerpt};
use crate::tokenizer_file::MAX_TOKENS;
use crate::vocabulary::files::damaged;

/// A vocabulary of texts and ids, and the tokens that are looked for in texts first.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    pub(super) ids: Map<String, Value>,
    texts: BTreeMap<u32, String>,
    added: BTreeMap<u32, AddedToken>,
}

impl Tokens {
    /// Takes a token of the model.
    ///
    /// # Errors
    /// The token or the id that came before.
    pub(super) fn insert(&mut self, text: &str, id: u32) -> Result<(), String> {
        if id >= MAX_TOKENS {
            return Err(format!("the id {id} of a token must be below {MAX_TOKENS}"));
        }
        if let Some(other) = self.texts.get(&id) {
            return Err(format!(
                "the tokens {:?} and {:?} have the same id {id}",
                excerpt(other),
                excerpt(text)
            ));
        }
        if self.ids.contains_key(text) {
            return Err(format!("the token {:?} comes twice", excerpt(text)));
        }
        self.texts.insert(id, text.to_owned());
        self.ids.insert(text.to_owned(), Value::from(id));
        Ok(())
    }

    /// Takes a token that is looked for in texts before they are split. The vocabulary of the
    /// model gets it too, because the library finds ids of added tokens there.
    ///
    /// # Errors
    /// As [`Tokens::insert`], but for a token that the vocabulary has under this id.
    pub(super) fn add(&mut self, token: AddedToken, id: u32) -> Result<(), String> {
        if self.texts.get(&id).is_none_or(|text| *text != token.content) {
            self.insert(&token.content, id)?;
        }
        self.added.insert(id, token);
        Ok(())
    }

    /// Takes the added tokens of the files next to the vocabulary: those with ids, and texts that
    /// are special (`eos_token` and the like), which get the next free ids if they have none.
    ///
    /// # Errors
    /// As [`Tokens::add`].
    pub(super) fn add_all(
        &mut self,
        path: &Path,
        facts: &VocabularyFacts,
    ) -> Result<(), TextError> {
        for (id, token) in &facts.added {
            let mut token = token.clone();
            token.special |= facts.is_special(&token.content);
            self.add(token, *id).map_err(|what| {
                damaged(path, format!("added_tokens_decoder does not fit to it: {what}"))
            })?;
        }
        for text in facts.special.iter().filter(|text| !text.is_empty()) {
            let id = self.id(text).unwrap_or_else(|| self.end());
            if !self.added.contains_key(&id) {
                let token = AddedToken::plain(text.clone(), true);
                self.add(token, id).map_err(|what| damaged(path, what))?;
            }
        }
        Ok(())
    }

    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok())
    }

    pub(super) fn has_id(&self, id: u32) -> bool {
        self.texts.contains_key(&id)
    }

    pub(super) fn text(&self, id: u32) -> Option<&str> {
        self.texts.get(&id).map(String::as_str)
    }

    /// One more than the largest id.
    pub(super) fn end(&self) -> u32 {
        self.texts.last_key_value().map_or(0, |(id, _)| id + 1)
    }

    /// `added_tokens` of a `tokenizer.json`.
    pub(super) fn added_json(&self) -> Vec<Value> {
        let one = |(id, token): (&u32, &AddedToken)| {
            json!({
                "id": id,
                "content": token.content,
                "single_word": token.single_word,
                "lstrip": token.lstrip,
                "rstrip": token.rstrip,
                "normalized": token.normalized,
                "special": token.special,
            })
        };
        self.added.iter().map(one).collect()
    }

    /// A whole `tokenizer.json` of a byte-level vocabulary.
    pub(super) fn into_byte_level(
        self,
        merges: Vec<Value>,
        ignore_merges: bool,
        (normalizer, pre_tokenizer): (Value, Value),
    ) -> Value {
        let mut json = json!({
            "added_tokens": self.added_json(),
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": null,
            "decoder": {
                "type": "ByteLevel",
                "add_prefix_space": true,
                "trim_offsets": true,
                "use_regex": true,
            },
            "model": {
                "type": "BPE",
                "ignore_merges": ignore_merges,
            },
        });
        // Not in the macro, which copies what it is given.
        json["model"]["vocab"] = Value::Object(self.ids);
        json["model"]["merges"] = Value::Array(merges);
        json
    }
}
