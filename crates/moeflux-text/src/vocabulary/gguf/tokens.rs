//! The list of tokens in a GGUF file, and what each is for.

use std::collections::{HashMap, HashSet};

use moeflux_core::gguf::{Array, Metadata, Value};

use super::key;
use crate::control_names;
use crate::error::{TextError, excerpt};
use crate::tokenizer_file::MAX_TOKENS;
use crate::vocabulary::files::damaged;

/// Ends of an answer that are read of a list.
const MAX_ENDS: usize = 1024;

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
    /// Where the first is missing, they have different lengths, or a token comes twice.
    pub(super) fn read(metadata: &'a Metadata) -> Result<Self, TextError> {
        let texts = metadata
            .texts(key::TOKENS)?
            .ok_or_else(|| metadata.missing(key::TOKENS, "list the tokens"))?;
        if texts.is_empty() || texts.len() > MAX_TOKENS as usize {
            let what =
                format!("{}: {} tokens, 1 to {MAX_TOKENS} are read", key::TOKENS, texts.len());
            return Err(damaged(metadata.path(), what));
        }
        let mut uses = match metadata.integers(key::TOKEN_TYPE)? {
            Some(numbers) => read_uses(metadata, numbers, texts.len())?,
            None => uses_by_text(metadata, texts)?,
        };
        find_markup(metadata, texts, &mut uses)?;
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

    /// The scores of the tokens; without them all are alike.
    ///
    /// # Errors
    /// Where they are not as many as the tokens, or not finite.
    pub(super) fn scores(&self, metadata: &Metadata) -> Result<Vec<f32>, TextError> {
        let scores: Vec<f32> = match metadata.get(key::SCORES) {
            Some(Value::Array(Array::Integers(all))) => all.iter().map(|n| *n as f32).collect(),
            _ => match metadata.floats(key::SCORES)? {
                Some(all) => all.iter().map(|score| *score as f32).collect(),
                None => vec![0.0; self.len()],
            },
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

fn read_uses(metadata: &Metadata, numbers: &[i64], n_tokens: usize) -> Result<Vec<Use>, TextError> {
    same_length(metadata, key::TOKEN_TYPE, numbers.len(), n_tokens)?;
    let mut uses = Vec::with_capacity(numbers.len());
    for (id, number) in numbers.iter().enumerate() {
        uses.push(Use::of(*number).ok_or_else(|| {
            let what = format!("{} of token {id} is {number}, not 1 to 6", key::TOKEN_TYPE);
            damaged(metadata.path(), what)
        })?);
    }
    Ok(uses)
}

/// What tokens are for where the file does not say it: all are normal, but for the unknown one and, in
/// vocabularies that have them, those of single bytes.
fn uses_by_text(metadata: &Metadata, texts: &[String]) -> Result<Vec<Use>, TextError> {
    let has_bytes = metadata.text(key::MODEL)? != Some("gpt2");
    let is_byte = |text: &str| {
        let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
        digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
    };
    let of = |text: &String| if has_bytes && is_byte(text) { Use::Byte } else { Use::Normal };
    let mut uses: Vec<Use> = texts.iter().map(of).collect();
    let unknown = metadata.number(key::UNKNOWN)?.or(has_bytes.then_some(0));
    if let Some(kind) = unknown.and_then(|id| uses.get_mut(id)) {
        *kind = Use::Unknown;
    }
    Ok(uses)
}

/// Makes markup of tokens that are called normal and are none: those that end answers or mark parts of
/// a text, those that keys name, and tags that no merge makes, which no text would become.
fn find_markup(metadata: &Metadata, texts: &[String], uses: &mut [Use]) -> Result<(), TextError> {
    let named = named_ids(metadata)?;
    let lines = metadata.texts(key::MERGES)?;
    let is_suspect =
        |text: &str| control_names::is_end(text) || is_tag(text) || control_names::is_infill(text);
    let suspects: Vec<usize> =
        (0..texts.len()).filter(|id| uses[*id] == Use::Normal && is_suspect(&texts[*id])).collect();
    if suspects.is_empty() {
        return Ok(());
    }
    let longest = suspects.iter().map(|id| texts[*id].len()).max().unwrap_or(0);
    let made: Option<HashSet<String>> = lines.map(|lines| {
        let lines = lines.iter().filter(|line| line.len() <= longest + 1);
        lines.map(|line| line.replacen(' ', "", 1)).collect()
    });
    for id in suspects {
        let text = texts[id].as_str();
        // Without merges texts may become any token.
        let is_unreachable = made.as_ref().is_some_and(|made| !made.contains(text));
        let is_named = named.contains(&id);
        uses[id] = match () {
            () if control_names::is_end(text) => Use::Control,
            () if text == control_names::TAG_OF_DOCUMENTS && !is_named => continue,
            () if is_named && (is_unreachable || made.is_none()) => Use::Control,
            () if control_names::is_infill(text) && (is_unreachable || made.is_none()) => {
                Use::Control
            }
            () if !is_unreachable => continue,
            () if text.starts_with("<|") || text.starts_with("<｜") => Use::Control,
            () => Use::UserDefined,
        };
    }
    Ok(())
}

/// Tokens that a list of the file names as ends; some have one number in its place.
pub(crate) fn listed_ends(metadata: &Metadata) -> Result<Vec<i64>, TextError> {
    if let Some(Value::Integer(id)) = metadata.get(key::EOS_LIST) {
        return Ok(i64::try_from(*id).into_iter().collect());
    }
    let list = metadata.integers(key::EOS_LIST)?.unwrap_or_default();
    Ok(list.iter().copied().take(MAX_ENDS).collect())
}

/// The tokens that keys of the file name as those that begin or end texts.
fn named_ids(metadata: &Metadata) -> Result<HashSet<usize>, TextError> {
    let keys = [key::BOS, key::EOS, key::EOT, key::EOM].into_iter();
    let keys = keys.chain(key::INFILL_PREFIX).chain(key::INFILL_SUFFIX).chain(key::INFILL_MIDDLE);
    let one = |key: &str| match metadata.get(key) {
        Some(Value::Integer(id)) => usize::try_from(*id).ok(),
        _ => None,
    };
    let list = listed_ends(metadata)?;
    let list = list.into_iter().filter_map(|id| usize::try_from(id).ok());
    Ok(keys.filter_map(one).chain(list).collect())
}

/// Whether a text is a word in angle brackets.
fn is_tag(text: &str) -> bool {
    let inner = text.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
    inner.is_some_and(|inner| {
        inner.chars().any(char::is_alphabetic)
            && !inner.contains(|c: char| c.is_whitespace() || c == '<' || c == '>')
    })
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
