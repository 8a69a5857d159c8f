//! The list of tokens in a GGUF file, and what each is for.

use std::collections::HashMap;

use moeflux_core::gguf::{Array, Metadata, Value};

use super::key;
use crate::error::{TextError, excerpt};
use crate::tokenizer_file::MAX_TOKENS;
use crate::vocabulary::files::damaged;

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Normal,
    /// Stands for what no other token does.
    Unknown,
    /// Markup that text does not become.
    Control,
    /// Taken from texts whole.
    UserDefined,
    /// A number without a token.
    Unused,
    /// One byte.
    Byte,
}

impl Use {
    fn of(number: i64) -> Option<Use> {
        Some(match number {
            // 0 is what converters write that do not know.
            0 | 1 => Use::Normal,
            2 => Use::Unknown,
            3 => Use::Control,
            4 => Use::UserDefined,
            5 => Use::Unused,
            6 => Use::Byte,
            _ => return None,
        })
    }
}

/// The tokens of a file by number, checked.
pub(super) struct TokenList<'a> {
    texts: &'a [String],
    uses: Vec<Use>,
    ids: HashMap<&'a str, u32>,
}

impl<'a> TokenList<'a> {
    /// Reads the lists of tokens and of what they are for.
    ///
    /// # Errors
    /// Where one is missing, they have different lengths, or a token comes twice.
    pub(super) fn read(metadata: &'a Metadata) -> Result<Self, TextError> {
        let texts = metadata
            .texts(key::TOKENS)?
            .ok_or_else(|| metadata.missing(key::TOKENS, "list the tokens"))?;
        if texts.is_empty() || texts.len() > MAX_TOKENS as usize {
            let what =
                format!("{}: {} tokens, 1 to {MAX_TOKENS} are read", key::TOKENS, texts.len());
            return Err(damaged(metadata.path(), what));
        }
        let numbers = metadata
            .integers(key::TOKEN_TYPE)?
            .ok_or_else(|| metadata.missing(key::TOKEN_TYPE, "say of each token what it is for"))?;
        same_length(metadata, key::TOKEN_TYPE, numbers.len(), texts.len())?;
        let mut uses = Vec::with_capacity(numbers.len());
        for (id, number) in numbers.iter().enumerate() {
            uses.push(Use::of(*number).ok_or_else(|| {
                let what = format!("{} of token {id} is {number}, not 1 to 6", key::TOKEN_TYPE);
                damaged(metadata.path(), what)
            })?);
        }
        let mut ids = HashMap::with_capacity(texts.len());
        for (id, text) in (0..).zip(texts).filter(|(_, text)| !text.is_empty()) {
            if let Some(first) = ids.insert(text.as_str(), id) {
                let text = excerpt(text);
                let what = format!("{}: {text:?} is both {first} and {id}", key::TOKENS);
                return Err(damaged(metadata.path(), what));
            }
        }
        Ok(Self { texts, uses, ids })
    }

    /// Numbers, texts and uses of the tokens that have a text.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, &'a str, Use)> {
        let all = (0..).zip(self.texts).zip(&self.uses);
        all.map(|((id, text), kind)| (id, text.as_str(), *kind))
            .filter(|(_, text, _)| !text.is_empty())
    }

    /// How many there are, those without a text included.
    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// The number of a token.
    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// The scores of the tokens.
    ///
    /// # Errors
    /// Where they are missing, not as many as the tokens, or not finite.
    pub(super) fn scores(&self, metadata: &Metadata) -> Result<Vec<f32>, TextError> {
        let scores: Vec<f32> = match metadata.get(key::SCORES) {
            Some(Value::Array(Array::Integers(all))) => all.iter().map(|n| *n as f32).collect(),
            _ => {
                let all = metadata.floats(key::SCORES)?;
                let all = all.ok_or_else(|| {
                    metadata.missing(key::SCORES, "say of each token how good it is")
                })?;
                all.iter().map(|score| *score as f32).collect()
            }
        };
        same_length(metadata, key::SCORES, scores.len(), self.len())?;
        match scores.iter().position(|score| !score.is_finite()) {
            None => Ok(scores),
            Some(id) => {
                let what = format!("{} of token {id} is {}", key::SCORES, scores[id]);
                Err(damaged(metadata.path(), what + ", it must be finite"))
            }
        }
    }
}

fn same_length(
    metadata: &Metadata,
    list: &str,
    have: usize,
    n_tokens: usize,
) -> Result<(), TextError> {
    if have == n_tokens {
        Ok(())
    } else {
        let what = format!("{list} has {have} entries, {} has {n_tokens}", key::TOKENS);
        Err(damaged(metadata.path(), what + ": the file is damaged, fetch it again"))
    }
}
