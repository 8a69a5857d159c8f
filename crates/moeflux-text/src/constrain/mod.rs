//! Answers that follow a grammar: before each token is chosen, those that the
//! grammar does not allow are ruled out.

mod error;
mod lark;
mod limits;
mod members;
mod patterns;
mod prepared;
mod rules;
mod schema;
mod tagged;
mod trials;
mod values;

use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenizerEnv};
use llguidance::{Matcher, ParserFactory};
use moeflux_core::{TokenId, explain_thread_error};

use self::lark::Lark;
use self::patterns::PatternTrials;
use self::prepared::Prepared;
use self::trials::Trials;
use crate::guard::catch_panic;
use crate::{Markup, Tokenizer};

pub use self::error::ConstraintError;
pub use self::lark::{AnswerShape, Grammar};
pub use self::prepared::LeftToModel;

/// Alternatives that a grammar may have at one place: an object with a thousand optional properties
/// has four thousand.
const MAX_ITEMS_IN_ROW: usize = 20_000;

/// How long grammars are built with fewer and fewer tools held to their schemas.
const BUILD_TIME: Duration = Duration::from_millis(500);

/// What all grammars for one model share.
pub struct Grammars {
    factory: ParserFactory,
    tokenizer: Arc<Tokenizer>,
    trials: OnceLock<Result<Trials, String>>,
}

/// One answer's grammar, and where in it the answer is.
pub struct Constraint {
    matcher: Matcher,
    left_to_model: Arc<[LeftToModel]>,
    text: Arc<str>,
}

/// The library's grammar.
struct Built {
    matcher: Matcher,
    lark: Lark,
}

/// The tokenizer as grammars see it.
struct Vocabulary {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let text = std::str::from_utf8(bytes).ok();
        let tokens = text.and_then(|text| self.tokenizer.encode(text, Markup::Literal).ok());
        match tokens {
            Some(tokens) => tokens.into_iter().map(|token| token.0).collect(),
            None => self.trie.greedy_tokenize(bytes),
        }
    }
}

impl Grammars {
    /// Prepares a vocabulary; for a large one that takes a second.
    ///
    /// # Errors
    /// Where it has no token that ends an answer, or none that stands for text.
    pub fn new(tokenizer: &Arc<Tokenizer>) -> Result<Grammars, ConstraintError> {
        let eos: Vec<u32> = tokenizer.eos_ids().iter().map(|id| id.0).collect();
        let n_tokens = u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
        let eos: Vec<u32> = eos.into_iter().filter(|id| *id < n_tokens).collect();
        let Some(first) = eos.first() else {
            return Err(ConstraintError::Vocabulary(String::from("no token ends an answer")));
        };
        let words: Vec<Vec<u8>> = (0..n_tokens).map(|id| word(tokenizer, TokenId(id))).collect();
        let info = TokRxInfo::new(n_tokens, *first);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&eos);
        let env: TokEnv = Arc::new(Vocabulary { trie, tokenizer: Arc::clone(tokenizer) });
        let factory = ParserFactory::new_simple(&env);
        let mut factory = factory.map_err(|err| ConstraintError::Vocabulary(one_line(&err)))?;
        factory.quiet();
        limits::bound(factory.limits_mut());
        factory.limits_mut().max_items_in_row = MAX_ITEMS_IN_ROW;
        factory.limits_mut().step_lexer_fuel = patterns::STEP_FUEL;
        Ok(Grammars { factory, tokenizer: Arc::clone(tokenizer), trials: OnceLock::new() })
    }

    /// Makes a grammar ready for an answer. Parts of tools' schemas that no grammar can hold a
    /// model to are left to the model ([`Constraint::left_to_model`]): the keyword, else the
    /// property, else the arguments of that tool.
    ///
    /// # Errors
    /// Where the schema of an [`AnswerShape::Json`] says what grammars cannot enforce, or all of it
    /// is too large.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, ConstraintError> {
        thread::scope(|scope| {
            let compiling = thread::Builder::new()
                .stack_size(limits::STACK_BYTES)
                .spawn_scoped(scope, || catch_panic(|| self.compile_here(grammar)));
            let compiling = compiling.map_err(|err| {
                let err = explain_thread_error(err);
                ConstraintError::Grammar(format!("no thread can be started to compile it ({err})"))
            })?;
            match compiling.join() {
                Ok(Ok(compiled)) => compiled,
                Ok(Err(panic)) => Err(ConstraintError::Grammar(panic)),
                Err(_) => Err(ConstraintError::Grammar(String::from("compiling it failed"))),
            }
        })
    }

    fn compile_here(&self, grammar: &Grammar) -> Result<Constraint, ConstraintError> {
        let mut prepared = Prepared::of(grammar)?;
        prepared.check_patterns(&mut PatternTrials::new(&self.factory))?;
        let deadline = Instant::now() + BUILD_TIME;
        let mut built = self.build(&prepared.grammar);
        if built.is_err() {
            prepared.check_shape(self.trials()?)?;
            prepared.loosen_tools(self.trials()?);
            built = self.build(&prepared.grammar);
        }
        // Each time the library takes as long as for all of it.
        let mut n_free = (prepared.grammar.tools.len() / 4).max(1);
        while let Err(problem) = &built {
            if Instant::now() >= deadline {
                n_free = prepared.grammar.tools.len();
            }
            if !prepared.free_largest_tools(n_free, problem) {
                return Err(ConstraintError::Grammar(trials::reason(problem)));
            }
            n_free *= 2;
            built = self.build(&prepared.grammar);
        }
        let Built { matcher, lark } = built.map_err(ConstraintError::Grammar)?;
        prepared.leave_tools_from(lark.n_held);
        let left_to_model = prepared.left_to_model.into();
        Ok(Constraint { matcher, left_to_model, text: lark.text.into() })
    }

    fn build(&self, grammar: &Grammar) -> Result<Built, String> {
        limits::check(grammar)?;
        let lark = grammar.to_lark(&self.tokenizer)?;
        let built = catch_panic(|| {
            let parser = self.factory.create_parser(TopLevelGrammar::from_lark(lark.text.clone()));
            Matcher::new(parser)
        });
        let matcher = built?;
        match matcher.get_error() {
            Some(err) => Err(err),
            None => Ok(Built { matcher, lark }),
        }
    }

    fn trials(&self) -> Result<&Trials, ConstraintError> {
        let trials = self.trials.get_or_init(Trials::new).as_ref();
        trials.map_err(|problem| ConstraintError::Grammar(problem.clone()))
    }
}

impl Clone for Constraint {
    fn clone(&self) -> Constraint {
        let matcher = self.matcher.deep_clone();
        let (left_to_model, text) = (Arc::clone(&self.left_to_model), Arc::clone(&self.text));
        Constraint { matcher, left_to_model, text }
    }
}

impl Constraint {
    /// The grammar in the Lark notation.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Parts of tools' schemas that the grammar does not hold the model to.
    pub fn left_to_model(&self) -> &[LeftToModel] {
        &self.left_to_model
    }

    /// Rules tokens out that may not come next.
    ///
    /// # Errors
    /// Where the grammar has become too complex.
    pub fn restrict(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        let mask =
            catch_panic(|| self.matcher.compute_mask_or_eos()).map_err(ConstraintError::Step)?;
        let mask = mask.map_err(|err| ConstraintError::Step(one_line(&err)))?;
        let (known, others) = logits.split_at_mut(mask.len().min(logits.len()));
        for (allowed, logits) in mask.as_slice().iter().zip(known.chunks_mut(32)) {
            match *allowed {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                bits => {
                    let ruled_out = |(i, _): &(usize, _)| (bits >> i) & 1 == 0;
                    let all = logits.iter_mut().enumerate();
                    all.filter(ruled_out).for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
                }
            }
        }
        // A model may have more logits than its tokenizer has tokens.
        others.fill(f32::NEG_INFINITY);
        Ok(())
    }

    /// What has to follow, as the tokenizer writes it. [`restrict`](Constraint::restrict) looks
    /// for the same and then allows nothing but the first of these.
    pub fn forced(&mut self) -> Vec<TokenId> {
        // After a panic the next call of restrict says that it cannot go on.
        let forced = catch_panic(|| self.matcher.compute_ff_tokens()).unwrap_or_default();
        forced.into_iter().map(TokenId).collect()
    }

    /// Whether these tokens may come next, one after the other.
    pub fn takes(&mut self, tokens: &[TokenId]) -> bool {
        let tokens: Vec<u32> = tokens.iter().map(|token| token.0).collect();
        let taken = catch_panic(|| self.matcher.validate_tokens(&tokens));
        matches!(taken, Ok(Ok(n)) if n == tokens.len())
    }

    /// Goes on with a token; whether nothing may follow it.
    ///
    /// # Errors
    /// Where the token was ruled out.
    pub fn accept(&mut self, token: TokenId) -> Result<bool, ConstraintError> {
        let step =
            catch_panic(|| self.matcher.consume_token(token.0)).map_err(ConstraintError::Step)?;
        step.map_err(|err| ConstraintError::Step(one_line(&err)))?;
        Ok(self.matcher.is_stopped())
    }
}

/// A token's bytes; those of control tokens are no text.
fn word(tokenizer: &Tokenizer, token: TokenId) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(token);
    if tokenizer.is_control(token) || tokenizer.is_special(token) {
        let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
        word.extend_from_slice(bytes);
        return word;
    }
    bytes.to_vec()
}

fn one_line(err: &impl std::fmt::Display) -> String {
    first_line(&err.to_string())
}

/// Messages go on with the whole grammar.
fn first_line(text: &str) -> String {
    const MAX_CHARS: usize = 300;
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    line.chars().take(MAX_CHARS).collect()
}
