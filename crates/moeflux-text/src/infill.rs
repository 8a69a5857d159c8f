//! Text in whose middle something is missing, as the prompt of a model that was trained to fill it in.

use moeflux_core::TokenId;

use super::config::INFILL_NAMES;
use super::control_names::{FILE, INFILL, PROJECT};
use super::encode::Markup;
use super::error::TextError;
use super::tokenizer::Tokenizer;

/// What stands where a project or a file without a name has its own.
const NO_NAME: &str = "untitled";

/// Text in whose middle something is missing. None of it becomes a control token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Infill {
    /// What comes before the gap.
    pub prefix: String,
    /// What comes behind it.
    pub suffix: String,
    /// Other texts that help, the most helpful one last. Those that do not fit are left out.
    pub others: Vec<NamedText>,
    /// Tokens of an answer for which others leave room.
    pub n_answer: usize,
}

/// A text with a name, such as a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedText {
    /// Its name.
    pub name: String,
    /// The text.
    pub text: String,
}

/// The tokens around the parts of a text with a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InfillMarks {
    prefix: TokenId,
    suffix: TokenId,
    /// `None` where what is missing follows the prefix, and the suffix comes first.
    middle: Option<TokenId>,
    /// Stands before the name of a project, and before the name of a file.
    project: Option<TokenId>,
    file: Option<TokenId>,
}

impl InfillMarks {
    /// Those of a vocabulary: what the model's files name, and spellings that are known.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<InfillMarks> {
        let control = |text: &str| tokenizer.id_of(text).filter(|id| tokenizer.is_control(*id));
        let named = |name: &str| tokenizer.named(name).and_then(control);
        let [prefix, suffix, middle] = INFILL_NAMES.map(named);
        let spelled = INFILL.iter().find_map(|names| {
            let middle = match names.middle {
                Some(middle) => Some(control(middle)?),
                None => None,
            };
            Some((control(names.prefix)?, control(names.suffix)?, middle))
        });
        let (prefix, suffix, middle) = match (prefix, suffix, middle, spelled) {
            (Some(prefix), Some(suffix), Some(middle), _) => (prefix, suffix, Some(middle)),
            (_, _, _, spelled) => spelled?,
        };
        let first = |texts: &[&str]| texts.iter().find_map(|text| control(text));
        Some(InfillMarks { prefix, suffix, middle, project: first(&PROJECT), file: first(&FILE) })
    }

    /// The prompt of a text with a gap: other texts that fit, then what is before the gap and behind
    /// it, in the model's order.
    ///
    /// # Errors
    /// [`TextError::TooLong`] where the two parts have more than `max_tokens`, and where they cannot be
    /// encoded.
    pub(super) fn encode(
        &self,
        tokenizer: &Tokenizer,
        infill: &Infill,
        max_tokens: usize,
    ) -> Result<Vec<TokenId>, TextError> {
        let n_marks = 2 + usize::from(self.middle.is_some()) + tokenizer.prefix().len();
        let plain = |text: &str, before: usize| {
            let most = max_tokens.saturating_sub(before);
            let tokens = tokenizer.encode_within(text, Markup::Literal, most);
            tokens.map_err(|err| err.with_tokens_before(before))
        };
        let prefix = plain(&infill.prefix, n_marks)?;
        let suffix = plain(&infill.suffix, n_marks + prefix.len())?;
        let n_tokens = n_marks + prefix.len() + suffix.len();
        if n_tokens > max_tokens {
            return Err(TextError::TooLong { n_tokens, is_exact: true, max_tokens });
        }
        let left = max_tokens - n_tokens;
        let mut prompt = tokenizer.prefix().to_vec();
        prompt.extend(self.others(tokenizer, infill, left - infill.n_answer.min(left / 2))?);
        let (first, last) = match self.middle {
            Some(_) => ((self.prefix, prefix), (self.suffix, suffix)),
            None => ((self.suffix, suffix), (self.prefix, prefix)),
        };
        for (mark, tokens) in [first, last] {
            prompt.push(mark);
            prompt.extend(tokens);
        }
        prompt.extend(self.middle);
        Ok(prompt)
    }

    /// The other texts, as many of the last ones as have room.
    fn others(
        &self,
        tokenizer: &Tokenizer,
        infill: &Infill,
        room: usize,
    ) -> Result<Vec<TokenId>, TextError> {
        if infill.others.is_empty() {
            return Ok(Vec::new());
        }
        let (mut begin, mut end) = (Vec::new(), Vec::new());
        if let Some(file) = self.file {
            let name = |mark: TokenId| headed(tokenizer, mark, NO_NAME, "", usize::MAX);
            begin = self.project.map_or(Ok(Vec::new()), name)?;
            end = name(file)?;
        }
        let Some(mut room) = room.checked_sub(begin.len() + end.len()) else {
            return Ok(Vec::new());
        };
        let mut texts = Vec::new();
        for other in infill.others.iter().rev() {
            let tokens = match self.file {
                Some(file) => headed(tokenizer, file, &other.name, &other.text, room),
                None => {
                    let text = format!("{}\n\n", other.text);
                    tokenizer.encode_within(&text, Markup::Literal, room)
                }
            };
            match tokens {
                Ok(tokens) if tokens.len() <= room => {
                    room -= tokens.len();
                    texts.push(tokens);
                }
                Ok(_) | Err(TextError::TooLong { .. } | TextError::Unbroken { .. }) => break,
                Err(err) => return Err(err),
            }
        }
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        texts.reverse();
        Ok([begin, texts.concat(), end].concat())
    }
}

/// A mark, a name on a line of its own, and a text.
fn headed(
    tokenizer: &Tokenizer,
    mark: TokenId,
    name: &str,
    text: &str,
    max_tokens: usize,
) -> Result<Vec<TokenId>, TextError> {
    let name = if name.is_empty() { NO_NAME } else { name };
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    let text = format!("{name}\n{text}{end}");
    let tokens = tokenizer.encode_within(&text, Markup::Literal, max_tokens.saturating_sub(1))?;
    Ok([vec![mark], tokens].concat())
}
