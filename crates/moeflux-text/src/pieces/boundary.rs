//! Places where a tokenizer can be given a text in two parts without another result.
//!
//! A place is known by the characters on its two sides. It will do where no step can join them:
//! added tokens do not hold them next to each other, normalizers treat each by itself, no
//! expression of a pre-tokenizer takes or looks at one after the other, and either a pre-tokenizer
//! always begins a word there, or no token of a BPE vocabulary holds them next to each other.

use std::collections::HashSet;

use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{Model, SplitDelimiterBehavior};
use unicode_normalization_alignments::char::canonical_combining_class;
use unicode_normalization_alignments::{
    IsNormalized, is_nfc_quick, is_nfd_quick, is_nfkc_quick, is_nfkd_quick,
};

use super::expression::Expression;
use crate::byte_level::char_of_byte;

/// What the byte-level pre-tokenizer splits by.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Characters that follow each other.
type Pairs = HashSet<(char, char)>;

/// What is known of the places of one tokenizer.
#[derive(Debug)]
pub(super) struct Boundaries {
    added: Added,
    normal: Vec<Normal>,
    split: Vec<PreSplit>,
    /// Pairs in tokens, where only the vocabulary can keep words apart.
    vocabulary: Option<VocabularyPairs>,
}

#[derive(Debug, Default)]
struct Added {
    pairs: Pairs,
    firsts: HashSet<char>,
    lasts: HashSet<char>,
    /// Some swallow white space after them.
    has_swallowing: bool,
}

#[derive(Debug)]
enum Normal {
    /// A Unicode form, with its quick check.
    Form(fn(char) -> IsNormalized),
    Lowercase,
    /// Something before the first part of a text, which is left out of later parts.
    Prepend,
    Replace {
        what: Expression,
        /// The one character that is replaced, where the pattern is one.
        one: Option<char>,
        with: String,
    },
}

#[derive(Debug)]
enum PreSplit {
    Words(Expression),
    /// Puts a space before what does not begin with one.
    PrefixSpace,
    /// Writes bytes as characters. The last step.
    Bytes,
    Metaspace {
        replacement: char,
        prepends: bool,
        splits: bool,
    },
}

#[derive(Debug)]
struct VocabularyPairs {
    pairs: Pairs,
    chars: HashSet<char>,
}

impl Boundaries {
    /// `None` where a step is not known well enough.
    pub(super) fn of(tokenizer: &tokenizers::Tokenizer) -> Option<Boundaries> {
        let mut normal = Vec::new();
        if let Some(normalizer) = tokenizer.get_normalizer() {
            add_normal(&mut normal, normalizer)?;
        }
        let mut split = Vec::new();
        if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
            add_split(&mut split, pre_tokenizer)?;
        }
        let bytes_at = split.iter().position(|step| matches!(step, PreSplit::Bytes));
        if bytes_at.is_some_and(|at| at + 1 < split.len()) {
            return None;
        }
        let begins_words = |step: &PreSplit| {
            matches!(step, PreSplit::Words(_) | PreSplit::Metaspace { splits: true, .. })
        };
        let vocabulary = if split.iter().any(begins_words) {
            None
        } else {
            Some(VocabularyPairs::of(tokenizer.get_model())?)
        };
        Some(Boundaries { added: Added::of(tokenizer)?, normal, split, vocabulary })
    }

    /// Whether a text can be given in two parts between these characters of it.
    pub(super) fn is_between(&self, before: char, after: char) -> bool {
        self.checked(before, after).unwrap_or(false)
    }

    fn checked(&self, before: char, after: char) -> Option<bool> {
        if !self.added.leave(before, after) {
            return Some(false);
        }
        let (mut x, mut y) = (before, after);
        for step in &self.normal {
            (x, y) = (step.image(x, y, x)?, step.image(x, y, y)?);
        }
        if !self.added.leave(x, y) {
            return Some(false);
        }
        let mut is_apart = false;
        for step in &self.split {
            match step {
                PreSplit::Words(words) => {
                    if words.joins(x, y) {
                        return Some(false);
                    }
                    is_apart |= words.always_takes(x) || words.always_takes(y);
                }
                PreSplit::PrefixSpace if is_apart || y == ' ' => {}
                PreSplit::PrefixSpace => return Some(false),
                PreSplit::Metaspace { replacement, prepends, splits } => {
                    let put = |c: char| if c == ' ' { *replacement } else { c };
                    (x, y) = (put(x), put(y));
                    if (*prepends && y != *replacement) || (*splits && x == *replacement) {
                        return Some(false);
                    }
                    is_apart |= *splits && y == *replacement;
                }
                PreSplit::Bytes if is_apart => {}
                PreSplit::Bytes => {
                    let mut bytes = [0; 4];
                    x = char_of_byte()[usize::from(*x.encode_utf8(&mut bytes).as_bytes().last()?)];
                    y = char_of_byte()[usize::from(*y.encode_utf8(&mut bytes).as_bytes().first()?)];
                }
            }
        }
        let of_tokens = self.vocabulary.as_ref();
        Some(is_apart || of_tokens.is_some_and(|vocabulary| vocabulary.leave(x, y)))
    }
}

impl Added {
    fn of(tokenizer: &tokenizers::Tokenizer) -> Option<Added> {
        let mut added = Added::default();
        for token in tokenizer.get_added_tokens_decoder().into_values() {
            if token.single_word || token.lstrip {
                return None;
            }
            added.pairs.extend(pairs_of(&token.content));
            added.firsts.extend(token.content.chars().next());
            added.lasts.extend(token.content.chars().last());
            added.has_swallowing |= token.rstrip;
        }
        Some(added)
    }

    /// Whether no added token reaches over the place, and none ends or begins there.
    fn leave(&self, before: char, after: char) -> bool {
        let is_swallowed = self.has_swallowing && before.is_whitespace() && after.is_whitespace();
        let is_joined = self.pairs.contains(&(before, after));
        let is_edge = self.firsts.contains(&after) || self.lasts.contains(&before);
        !(is_swallowed || is_joined || is_edge)
    }
}

impl VocabularyPairs {
    fn of(model: &ModelWrapper) -> Option<VocabularyPairs> {
        let ModelWrapper::BPE(bpe) = model else { return None };
        let is_set = |affix: &Option<String>| affix.as_ref().is_some_and(|text| !text.is_empty());
        let BPE { dropout, continuing_subword_prefix, end_of_word_suffix, ignore_merges, .. } = bpe;
        if dropout.is_some() || *ignore_merges {
            return None;
        }
        if is_set(continuing_subword_prefix) || is_set(end_of_word_suffix) {
            return None;
        }
        let (mut pairs, mut chars) = (Pairs::new(), HashSet::new());
        for token in model.get_vocab().into_keys() {
            pairs.extend(pairs_of(&token));
            let mut of_token = token.chars();
            if let (Some(c), None) = (of_token.next(), of_token.next()) {
                chars.insert(c);
            }
        }
        Some(VocabularyPairs { pairs, chars })
    }

    /// Whether both are known, so that neither becomes a part of an unknown word, and no token
    /// holds both next to each other.
    fn leave(&self, before: char, after: char) -> bool {
        self.chars.contains(&before)
            && self.chars.contains(&after)
            && !self.pairs.contains(&(before, after))
    }
}

fn pairs_of(text: &str) -> impl Iterator<Item = (char, char)> {
    text.chars().zip(text.chars().skip(1))
}

impl Normal {
    /// What `c`, which is one of the two, becomes; `None` where it may depend on more.
    fn image(&self, before: char, after: char, c: char) -> Option<char> {
        match self {
            Normal::Form(check) => {
                let is_stable = check(c) == IsNormalized::Yes && canonical_combining_class(c) == 0;
                is_stable.then_some(c)
            }
            Normal::Lowercase => only(c.to_lowercase()),
            Normal::Prepend => Some(c),
            Normal::Replace { what, one: Some(from), with } => {
                debug_assert!(!what.joins(before, after), "one character has no pairs");
                if c == *from { only(with.chars()) } else { Some(c) }
            }
            Normal::Replace { what, one: None, .. } => (!what.mentions(c)).then_some(c),
        }
    }
}

/// The character, where there is only one.
fn only(mut chars: impl Iterator<Item = char>) -> Option<char> {
    let c = chars.next()?;
    chars.next().is_none().then_some(c)
}

fn add_normal(steps: &mut Vec<Normal>, step: &NormalizerWrapper) -> Option<()> {
    use std::iter::once;

    steps.push(match step {
        NormalizerWrapper::Sequence(inner) => {
            return inner.as_ref().iter().try_for_each(|step| add_normal(steps, step));
        }
        NormalizerWrapper::NFC(_) => Normal::Form(|c| is_nfc_quick(once(c))),
        NormalizerWrapper::NFD(_) => Normal::Form(|c| is_nfd_quick(once(c))),
        NormalizerWrapper::NFKC(_) => Normal::Form(|c| is_nfkc_quick(once(c))),
        NormalizerWrapper::NFKD(_) => Normal::Form(|c| is_nfkd_quick(once(c))),
        NormalizerWrapper::Lowercase(_) => Normal::Lowercase,
        NormalizerWrapper::Prepend(_) => Normal::Prepend,
        NormalizerWrapper::Replace(replace) => {
            // The library keeps the pattern to itself.
            let json = serde_json::to_value(replace).ok()?;
            let with = replace.content.clone();
            match json["pattern"]["String"].as_str() {
                Some(text) => {
                    let one = only(text.chars());
                    Normal::Replace { what: Expression::of_text(text)?, one, with }
                }
                None => {
                    let what = Expression::of_regex(json["pattern"]["Regex"].as_str()?)?;
                    Normal::Replace { what, one: None, with }
                }
            }
        }
        _ => return None,
    });
    Some(())
}

fn add_split(steps: &mut Vec<PreSplit>, step: &PreTokenizerWrapper) -> Option<()> {
    match step {
        PreTokenizerWrapper::Sequence(inner) => {
            return inner.as_ref().iter().try_for_each(|step| add_split(steps, step));
        }
        PreTokenizerWrapper::Split(Split { pattern, behavior, invert, .. }) => {
            let is_known = matches!(
                (behavior, invert),
                (SplitDelimiterBehavior::Isolated, false) | (SplitDelimiterBehavior::Removed, true)
            );
            if !is_known {
                return None;
            }
            steps.push(PreSplit::Words(match pattern {
                SplitPattern::Regex(regex) => Expression::of_regex(regex)?,
                SplitPattern::String(text) => Expression::of_text(text)?,
            }));
        }
        PreTokenizerWrapper::Digits(digits) => {
            let regex = if digits.individual_digits { r"\p{N}" } else { r"\p{N}+" };
            steps.push(PreSplit::Words(Expression::of_regex(regex)?));
        }
        PreTokenizerWrapper::ByteLevel(bytes) => {
            if bytes.add_prefix_space {
                steps.push(PreSplit::PrefixSpace);
            }
            if bytes.use_regex {
                steps.push(PreSplit::Words(Expression::of_regex(GPT2)?));
            }
            steps.push(PreSplit::Bytes);
        }
        PreTokenizerWrapper::Metaspace(meta) => {
            use tokenizers::pre_tokenizers::metaspace::PrependScheme;

            steps.push(PreSplit::Metaspace {
                replacement: meta.get_replacement(),
                prepends: meta.get_prepend_scheme() != PrependScheme::Never,
                splits: meta.get_split(),
            });
        }
        _ => return None,
    }
    Some(())
}
