//! Fences keep content from becoming markup.
//!
//! A fence is a place in rendered text that no control token may span. Before a template is
//! rendered, content is marked: behind every character that could begin a control token, before
//! every character that could end one, and inside text that is itself a fragment of one. The
//! marks are digits of a number that is drawn anew for each rendering, so that content cannot
//! imitate them and filters such as `upper`, `trim` or `tojson` leave them alone. A control token
//! that took its first or its last character from content, or its middle alone, has a fence
//! inside; one without a fence inside was written by the template.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};

use serde_json::{Map, Value};
use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper};

use super::guard::catch_panic;
use super::jinja::is_space;
use super::placeholders::{is_placeholder, placeholder_text};

/// The control tokens of a vocabulary as text, and the ones that templates know by name.
#[derive(Clone, Debug, Default)]
pub struct MarkupText {
    tokens: Vec<ControlText>,
    firsts: HashSet<char>,
    lasts: HashSet<char>,
    normalizer: Option<NormalizerWrapper>,
    /// Values of `bos_token`, `eos_token` and the like, by the name that templates use.
    pub named: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
struct ControlText {
    text: String,
    special: bool,
}

/// A rendered conversation, and where no control token may stand in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    text: String,
    fences: Vec<usize>,
}

/// Which text stays without marks, because the template itself tests for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leniency {
    /// What the template tests for stays as it is in the messages of the assistant.
    Assistant,
    /// What the template tests for stays as it is everywhere.
    All,
}

/// A number that no content contains: 39 digits, of which only the first is a 9, so that it can
/// be found again whatever digits precede or follow it.
pub(super) struct Mark(String);

impl Rendered {
    /// Text that comes from the template alone: every control token in it counts.
    pub fn trusted(text: impl Into<String>) -> Self {
        Self { text: text.into(), fences: Vec::new() }
    }

    /// `fences` in any order; those that are not at a character boundary are dropped.
    pub(super) fn new(text: String, mut fences: Vec<usize>) -> Self {
        fences.retain(|&at| text.is_char_boundary(at));
        fences.sort_unstable();
        fences.dedup();
        Self { text, fences }
    }

    /// What stands before byte `end`.
    pub(super) fn up_to(mut self, end: usize) -> Self {
        self.text.truncate(end);
        self.fences.retain(|fence| *fence < end);
        self
    }

    /// The whole text, as the reference renders it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Byte offsets that no control token may span, ascending.
    pub fn fences(&self) -> &[usize] {
        &self.fences
    }
}

impl MarkupText {
    /// `tokens` are the texts of control tokens, each with whether it is flagged special;
    /// `named` is what templates see as `bos_token` and so on.
    pub fn new(tokens: Vec<(String, bool)>, named: BTreeMap<String, String>) -> Self {
        Self::with_normalizer(tokens, named, None)
    }

    pub(super) fn with_normalizer(
        tokens: Vec<(String, bool)>,
        named: BTreeMap<String, String>,
        normalizer: Option<NormalizerWrapper>,
    ) -> Self {
        let mut markup = Self { named, normalizer, ..Self::default() };
        let mut seen = HashSet::new();
        for (text, special) in tokens {
            // Templates write placeholders of pictures, and test for none.
            let special = special || is_placeholder(&text);
            for text in [markup.normalized(&text), text] {
                let text = text.trim();
                markup.firsts.extend(text.chars().next());
                markup.lasts.extend(text.chars().next_back());
                if !text.is_empty() && seen.insert(text.to_owned()) {
                    markup.tokens.push(ControlText { text: text.to_owned(), special });
                }
            }
        }
        markup
    }

    fn normalized(&self, text: &str) -> String {
        let mut normal = NormalizedString::from(text);
        let Some(normalizer) = &self.normalizer else { return text.to_owned() };
        match catch_panic(|| normalizer.normalize(&mut normal)) {
            Ok(Ok(())) => normal.get().to_owned(),
            _ => text.to_owned(),
        }
    }

    /// The text of the token that stands for a picture.
    pub(super) fn placeholder(&self) -> Option<&'static str> {
        placeholder_text(|text| self.tokens.iter().any(|token| token.text == text))
    }

    /// Whether a special token is part of `text`.
    pub(super) fn has_special(&self, text: &str) -> bool {
        self.tokens.iter().any(|t| t.special && text.contains(&t.text))
    }

    /// Whether any control token is part of `text`.
    pub(super) fn has_control(&self, text: &str) -> bool {
        self.tokens.iter().any(|t| text.contains(&t.text))
    }

    /// Whether `c` could begin or end control text.
    pub(super) fn is_edge(&self, c: char) -> bool {
        self.firsts.contains(&c) || self.lasts.contains(&c)
    }

    /// Byte offsets of the fences of `leaf`, ascending, but for those within one of `spared`.
    pub(super) fn fences_of(&self, leaf: &str, spared: &[String]) -> Vec<usize> {
        let mut known = HashMap::new();
        let mut fences = Vec::new();
        for (at, c) in leaf.char_indices() {
            let (first, last) = *known.entry(c).or_insert_with(|| self.edges(c));
            if last {
                fences.push(at);
            }
            if first {
                fences.push(at + c.len_utf8());
            }
        }
        let core = leaf.trim_matches(is_space);
        if !core.is_empty() && self.tokens.iter().any(|t| is_inside(&t.text, core)) {
            let start = leaf.len() - leaf.trim_start_matches(is_space).len();
            fences.push(start + core.chars().next().map_or(0, char::len_utf8));
        }
        if spared.iter().any(|text| leaf.contains(text.as_str())) {
            let mut inside = vec![false; leaf.len() + 1];
            for text in spared {
                for (start, found) in leaf.match_indices(text.as_str()) {
                    inside[start + 1..start + found.len()].fill(true);
                }
            }
            fences.retain(|&at| !inside[at]);
        }
        fences.sort_unstable();
        fences.dedup();
        fences
    }

    fn edges(&self, c: char) -> (bool, bool) {
        let mut edges = (self.firsts.contains(&c), self.lasts.contains(&c));
        if self.normalizer.is_some() {
            for c in self.normalized(c.encode_utf8(&mut [0; 4])).chars() {
                edges.0 |= self.firsts.contains(&c);
                edges.1 |= self.lasts.contains(&c);
            }
        }
        edges
    }
}

/// Whether `fragment` stands in `text` with something before and something behind it.
fn is_inside(text: &str, fragment: &str) -> bool {
    let mut chars = text.chars();
    chars.next();
    chars.next_back();
    chars.as_str().contains(fragment)
}

impl Mark {
    /// Draws a mark that does not occur in `content`.
    pub(super) fn draw(content: &[&Value]) -> Self {
        loop {
            let mut digits = String::from("9");
            while digits.len() < 39 {
                let mut bits = RandomState::new().build_hasher().finish();
                for _ in 0..19.min(39 - digits.len()) {
                    digits.push(char::from(b'0' + (bits % 9) as u8));
                    bits /= 9;
                }
            }
            if !content.iter().any(|value| occurs(value, &digits)) {
                return Self(digits);
            }
        }
    }

    /// Where it stands last in `text`.
    pub(super) fn find_last(&self, text: &str) -> Option<usize> {
        text.rfind(self.0.as_str())
    }

    /// `leaf` with a mark at each of `fences`.
    pub(super) fn insert(&self, leaf: &str, fences: &[usize]) -> String {
        let mut marked = String::with_capacity(leaf.len() + fences.len() * self.0.len());
        let mut from = 0;
        for &at in fences {
            marked.push_str(&leaf[from..at]);
            marked.push_str(&self.0);
            from = at;
        }
        marked + &leaf[from..]
    }

    /// Takes the marks out again and tells where they stood.
    pub(super) fn remove(&self, marked: &str) -> (String, Vec<usize>) {
        let mut text = String::with_capacity(marked.len());
        let mut fences = Vec::new();
        for (i, part) in marked.split(self.0.as_str()).enumerate() {
            if i > 0 {
                fences.push(text.len());
            }
            text.push_str(part);
        }
        (text, fences)
    }
}

fn occurs(value: &Value, digits: &str) -> bool {
    match value {
        Value::String(text) => text.contains(digits),
        Value::Array(items) => items.iter().any(|item| occurs(item, digits)),
        Value::Object(fields) => {
            fields.iter().any(|(key, item)| key.contains(digits) || occurs(item, digits))
        }
        Value::Number(number) => number.to_string().contains(digits),
        Value::Null | Value::Bool(_) => false,
    }
}

/// Keys that are structure: templates look them up, users do not choose them.
const STRUCTURE: [&str; 20] = [
    "role",
    "content",
    "text",
    "type",
    "function",
    "name",
    "description",
    "parameters",
    "properties",
    "required",
    "items",
    "enum",
    "arguments",
    "id",
    "tool_calls",
    "tool_call_id",
    "reasoning_content",
    "reasoning",
    "thinking",
    "title",
];

/// `value` with `change` applied to every string and every key that a user can choose.
pub(super) fn map_leaves(value: &Value, change: &mut dyn FnMut(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(change(text)),
        Value::Array(items) => {
            Value::Array(items.iter().map(|item| map_leaves(item, change)).collect())
        }
        Value::Object(fields) => Value::Object(map_fields(fields, change)),
        other => other.clone(),
    }
}

fn map_fields(
    fields: &Map<String, Value>,
    change: &mut dyn FnMut(&str) -> String,
) -> Map<String, Value> {
    let mut mapped = Map::new();
    for (key, item) in fields {
        let is_kind = key == "type" && item.as_str().is_some_and(is_word);
        let item = if is_kind { item.clone() } else { map_leaves(item, change) };
        let key = if STRUCTURE.contains(&key.as_str()) { key.clone() } else { change(key) };
        mapped.insert(key, item);
    }
    mapped
}

/// Whether `text` is 1 to 64 letters, digits, `_`, `-` or `.`.
pub(super) fn is_word(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
}
