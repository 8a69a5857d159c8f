//! Patterns that the grammar library takes and then cannot follow.
//!
//! The library makes the states of a regular expression while text is written, and gives up where
//! a token needs too many. Patterns whose counts multiply are therefore tried before the answer: a
//! few texts that they allow are followed for some tokens, with less work allowed than later.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::toktrie::{InferenceCapabilities, TokTrie};
use llguidance::{Logger, Matcher, ParserFactory};
use regex_syntax::hir::{Hir, HirKind};
use serde_json::{Value, json};

use super::schema::{LeftOut, Path, children_mut, remove_with_dependents};
use crate::guard::catch_panic;

/// Work of the library's regular expressions for one token, in its own unit, of which a millisecond
/// has about 14,000.
pub(super) const STEP_FUEL: u64 = 400_000;
/// The same in a trial.
const TRIAL_FUEL: u64 = STEP_FUEL / 2;
/// Characters of a pattern with all counts written out, from which on it is tried.
const MANY_CHARACTERS: u64 = 256;
/// Time for the trials of one request. Patterns that are not tried by then are taken as they are: where
/// one of them cannot be followed, its answer ends with an error.
const TIME: Duration = Duration::from_millis(800);
/// Tokens of each text.
const N_TOKENS: usize = 24;

const TOO_LARGE: &str = "its counts make it too large to follow";

/// How the next token of a text is chosen.
#[derive(Clone, Copy)]
enum Choice {
    Longest,
    Shortest,
    Mixed,
}

/// Tries the patterns of one request.
pub(super) struct PatternTrials<'a> {
    factory: &'a ParserFactory,
    deadline: Instant,
    /// Whether patterns of the request can be followed, as far as they were tried.
    tried: HashMap<String, bool>,
}

impl PatternTrials<'_> {
    pub(super) fn new(factory: &ParserFactory) -> PatternTrials<'_> {
        PatternTrials { factory, deadline: Instant::now() + TIME, tried: HashMap::new() }
    }

    /// Leaves out the patterns of a schema that cannot be followed. `places` says where its
    /// definitions were in the original.
    pub(super) fn loosen(
        &mut self,
        schema: &mut Value,
        places: &HashMap<String, Path>,
    ) -> Vec<LeftOut> {
        let mut left_out = Vec::new();
        let definitions = schema.get_mut("$defs").and_then(Value::as_object_mut);
        for (name, definition) in definitions.into_iter().flatten() {
            let place = places.get(name).cloned().unwrap_or_default();
            self.loosen_part(definition, &place, &mut left_out);
        }
        self.loosen_part(schema, &Path::default(), &mut left_out);
        left_out
    }

    fn loosen_part(&mut self, schema: &mut Value, path: &Path, left_out: &mut Vec<LeftOut>) {
        let pattern = schema["pattern"].as_str().map(str::to_owned);
        let names = schema["patternProperties"].as_object();
        let names: Vec<String> = names.into_iter().flat_map(|all| all.keys().cloned()).collect();
        for (key, patterns) in [("pattern", Vec::from_iter(pattern)), ("patternProperties", names)]
        {
            let problem = patterns.iter().find_map(|pattern| self.check(pattern).err());
            if let Some(reason) = problem {
                remove_with_dependents(schema, key);
                left_out.push(LeftOut { path: path.key(key).shown(), reason });
            }
        }
        for (child, path) in children_mut(schema, path) {
            if child.is_object() {
                self.loosen_part(child, &path, left_out);
            }
        }
    }

    /// # Errors
    /// Where texts of the pattern cannot be followed.
    fn check(&mut self, pattern: &str) -> Result<(), String> {
        if n_characters(pattern) < MANY_CHARACTERS {
            return Ok(());
        }
        let can_be_followed = match self.tried.get(pattern) {
            Some(known) => *known,
            None => {
                let found = self.can_be_followed(pattern);
                self.tried.insert(pattern.to_owned(), found);
                found
            }
        };
        if can_be_followed { Ok(()) } else { Err(String::from(TOO_LARGE)) }
    }

    fn can_be_followed(&self, pattern: &str) -> bool {
        if self.is_late() {
            return true;
        }
        let followed = catch_panic(|| {
            let Some(matcher) = self.matcher(pattern) else { return Ok(()) };
            let choices = [Choice::Longest, Choice::Shortest, Choice::Mixed];
            choices.into_iter().try_for_each(|choice| self.follow(matcher.deep_clone(), choice))
        });
        matches!(followed, Ok(Ok(())))
    }

    fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// `None` where the library refuses the pattern, which shows later.
    fn matcher(&self, pattern: &str) -> Option<Matcher> {
        let schema = json!({"type": "string", "pattern": pattern});
        let grammar = TopLevelGrammar::from_lark(format!("start: %json {schema}"));
        let mut limits = self.factory.limits().clone();
        limits.step_lexer_fuel = TRIAL_FUEL;
        let matcher = Matcher::new(self.factory.create_parser_from_init_ext(
            GrammarInit::Serialized(grammar),
            Logger::new(0, 0),
            InferenceCapabilities::default(),
            limits,
        ));
        (!matcher.is_error()).then_some(matcher)
    }

    fn follow(&self, mut matcher: Matcher, choice: Choice) -> Result<(), String> {
        let words = self.factory.tok_env().tok_trie();
        for step in 0..N_TOKENS {
            if self.is_late() {
                return Ok(());
            }
            let mask = matcher.compute_mask_or_eos().map_err(|err| err.to_string())?;
            let allowed = mask.as_slice().iter().zip((0_u32..).step_by(32));
            let allowed = allowed.flat_map(|(bits, first)| {
                (0..32).filter(move |i| (bits >> i) & 1 == 1).map(move |i| first + i)
            });
            let is_text = |token: &u32| {
                let first = words.token(*token).first();
                first.is_some_and(|byte| *byte != TokTrie::SPECIAL_TOKEN_MARKER)
            };
            let allowed: Vec<u32> = allowed.filter(is_text).collect();
            let n_bytes = |token: &u32| words.token_len(*token);
            let next = match choice {
                Choice::Longest => allowed.iter().copied().max_by_key(n_bytes),
                Choice::Shortest => allowed.iter().copied().min_by_key(n_bytes),
                Choice::Mixed => allowed.get(step * 7919 % allowed.len().max(1)).copied(),
            };
            let Some(next) = next else { return Ok(()) };
            matcher.consume_token(next).map_err(|err| err.to_string())?;
            if matcher.is_stopped() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Characters of a pattern with all counts written out; none where it cannot be read.
fn n_characters(pattern: &str) -> u64 {
    fn of(hir: &Hir) -> u64 {
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => 0,
            HirKind::Literal(literal) => literal.0.len() as u64,
            HirKind::Class(_) => 1,
            HirKind::Repetition(repeated) => {
                let times = repeated.max.unwrap_or(repeated.min).max(1);
                of(&repeated.sub).saturating_mul(u64::from(times))
            }
            HirKind::Capture(group) => of(&group.sub),
            HirKind::Concat(parts) | HirKind::Alternation(parts) => {
                parts.iter().map(of).fold(0, u64::saturating_add)
            }
        }
    }
    regex_syntax::parse(pattern).map_or(0, |hir| of(&hir))
}
