//! How much a model is to think, in a word that its chat template knows.
//!
//! Clients say it in the words of OpenAI's API. A template may know some of them or others; a few refuse
//! what they do not know. Which these are shows in what it writes for each.

use crate::jinja::string_literals;

/// The words of clients, from the least to the most.
const WORDS: [&str; 6] = ["minimal", "low", "medium", "high", "xhigh", "max"];

/// The one in the middle, from which the others are less or more.
const MIDDLE: usize = 2;

/// What models know whose templates write any word, and mention none.
const USUAL: [usize; 3] = [1, 2, 3];

/// A word that no template knows.
const UNKNOWN: &str = "zqx";

/// The words that a template knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Efforts {
    /// Places in [`WORDS`], ascending.
    known: Vec<usize>,
    /// Whether any other word means how much the model thinks by itself.
    others_are_usual: bool,
}

impl Efforts {
    /// Those of a template with this source; `render` gives what it writes for a word, or `None`
    /// where it refuses it.
    pub(super) fn find(source: &str, render: impl Fn(&str) -> Option<String>) -> Efforts {
        let all = 0..WORDS.len();
        let (known, others_are_usual) = match render(UNKNOWN) {
            None => (all.filter(|i| render(WORDS[*i]).is_some()).collect(), false),
            Some(text) if text.to_lowercase().contains(UNKNOWN) => {
                let literals = string_literals(source);
                let is_said = |i: &usize| literals.iter().any(|text| text == WORDS[*i]);
                (all.filter(|i| USUAL.contains(i) || is_said(i)).collect(), false)
            }
            Some(text) => {
                let differs = |i: &usize| render(WORDS[*i]).is_some_and(|other| other != text);
                (all.filter(differs).collect(), true)
            }
        };
        Efforts { known, others_are_usual }
    }

    /// The nearest word to one of a client.
    pub(super) fn nearest<'a>(&self, word: &'a str) -> &'a str {
        let Some(wanted) = WORDS.iter().position(|known| *known == word) else { return word };
        if self.known.contains(&wanted) {
            return word;
        }
        let is_near = |i: usize| {
            let (less, more) = (i < MIDDLE && wanted < MIDDLE, i > MIDDLE && wanted > MIDDLE);
            let is_farther_out = if less { i < wanted } else { i > wanted };
            (less || more) && (!is_farther_out || i.abs_diff(wanted) == 1)
        };
        let candidates = self.known.iter().copied();
        let candidates = candidates.filter(|i| !self.others_are_usual || is_near(*i));
        // Of two that are as near, the one with more thought.
        let nearest = candidates.min_by_key(|i| (i.abs_diff(wanted), std::cmp::Reverse(*i)));
        nearest.map_or(word, |i| WORDS[i])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, render: impl Fn(&str) -> Option<String>, want: [&str; 6]) {
        let efforts = Efforts::find(source, render);
        assert_eq!(WORDS.map(|word| efforts.nearest(word)), want);
        assert_eq!(efforts.nearest("other"), "other");
    }

    #[test]
    fn what_a_template_refuses_becomes_the_nearest_word_that_it_takes() {
        let takes = |words: &'static [&str]| {
            move |word: &str| words.contains(&word).then(|| String::from("same"))
        };
        let want = ["low", "low", "medium", "xhigh", "xhigh", "xhigh"];
        check("", takes(&["low", "medium", "xhigh"]), want);
        check("", takes(&["high"]), ["high"; 6]);
        check("", takes(&[]), WORDS);
    }

    #[test]
    fn a_template_that_writes_any_word_gets_the_usual_ones_and_those_that_it_mentions() {
        let write = |word: &str| Some(format!("Reasoning: {}", word.to_uppercase()));
        check("", write, ["low", "low", "medium", "high", "high", "high"]);
        let source = "{% if reasoning_effort == 'max' %}!{% endif %}";
        check(source, write, ["low", "low", "medium", "high", "max", "max"]);
    }

    #[test]
    fn a_word_that_changes_nothing_stays_unless_a_near_one_does() {
        let knows = |words: &'static [&str]| {
            move |word: &str| Some(if words.contains(&word) { word } else { "" }.to_owned())
        };
        check("", knows(&["max"]), ["minimal", "low", "medium", "high", "max", "max"]);
        check("", knows(&["low", "high"]), ["low", "low", "medium", "high", "high", "high"]);
        check("", knows(&[]), WORDS);
    }
}
