//! Normalizers and pre-tokenizers of a tokenizer, with limits on their regular expressions.
//!
//! A `tokenizer.json` brings expressions of its own. Some backtrack for hours on some texts, and
//! where the library's engine gives one up, the library takes the rest of the text for text
//! without matches, which gives wrong tokens. Here both are errors. All else is the library's.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fancy_regex::{Regex, RegexBuilder};
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pattern::{Invert, Pattern};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    NormalizedString, Normalizer, Offsets, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior,
};

type Source = Box<dyn std::error::Error + Send + Sync>;
type Done = Result<(), Source>;

/// Steps back that an expression may take for one match.
const MAX_BACKTRACKS: usize = 200_000;
/// Processor time that all matches in one text may take, and what each byte adds to it. The
/// expressions of published models take about 0.05 µs a byte.
const BASE_TIME: Duration = Duration::from_secs(1);
const TIME_PER_BYTE: Duration = Duration::from_nanos(500);
/// Matches between two looks at the clock.
const MATCHES_PER_LOOK: u32 = 8;

/// The steps of one tokenizer in the order in which they run.
#[derive(Debug)]
pub(super) struct Pipeline {
    normalizers: Vec<NormalizerStep>,
    pre_tokenizers: Vec<PreTokenizerStep>,
}

#[derive(Debug)]
enum NormalizerStep {
    Library(NormalizerWrapper),
    Replace { regex: Regex, content: String },
}

#[derive(Debug)]
enum PreTokenizerStep {
    Library(PreTokenizerWrapper),
    Split { regex: Regex, behavior: SplitDelimiterBehavior, invert: bool },
}

impl Pipeline {
    /// The steps of what the library read.
    pub(super) fn new(tokenizer: &tokenizers::Tokenizer) -> Result<Self, Source> {
        let mut pipeline = Self { normalizers: Vec::new(), pre_tokenizers: Vec::new() };
        if let Some(normalizer) = tokenizer.get_normalizer() {
            pipeline.add_normalizer(normalizer)?;
        }
        if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
            pipeline.add_pre_tokenizer(pre_tokenizer)?;
        }
        Ok(pipeline)
    }

    fn add_normalizer(&mut self, step: &NormalizerWrapper) -> Done {
        if let NormalizerWrapper::Sequence(steps) = step {
            return steps.as_ref().iter().try_for_each(|step| self.add_normalizer(step));
        }
        self.normalizers.push(match step {
            NormalizerWrapper::Replace(replace) => {
                // The library keeps the pattern to itself.
                let json = serde_json::to_value(replace)?;
                match json["pattern"]["Regex"].as_str() {
                    Some(regex) => NormalizerStep::Replace {
                        regex: compile(regex)?,
                        content: replace.content.clone(),
                    },
                    None => NormalizerStep::Library(step.clone()),
                }
            }
            _ => NormalizerStep::Library(step.clone()),
        });
        Ok(())
    }

    fn add_pre_tokenizer(&mut self, step: &PreTokenizerWrapper) -> Done {
        if let PreTokenizerWrapper::Sequence(steps) = step {
            return steps.as_ref().iter().try_for_each(|step| self.add_pre_tokenizer(step));
        }
        self.pre_tokenizers.push(match step {
            PreTokenizerWrapper::Split(Split {
                pattern: SplitPattern::Regex(regex),
                behavior,
                invert,
                ..
            }) => PreTokenizerStep::Split {
                regex: compile(regex)?,
                behavior: *behavior,
                invert: *invert,
            },
            _ => PreTokenizerStep::Library(step.clone()),
        });
        Ok(())
    }

    /// The work on one text of `n_bytes`.
    pub(super) fn start(&self, n_bytes: usize) -> Run<'_> {
        let n_bytes = u32::try_from(n_bytes).unwrap_or(u32::MAX);
        let limit = BASE_TIME + TIME_PER_BYTE * n_bytes;
        let clock = Clock::new(limit);
        let continues = AtomicBool::new(false);
        Run { pipeline: self, clock, failure: Mutex::new(None), continues }
    }
}

fn compile(regex: &str) -> Result<Regex, Source> {
    Ok(RegexBuilder::new(regex).backtrack_limit(MAX_BACKTRACKS).build()?)
}

/// A pipeline at work on one text.
pub(super) struct Run<'a> {
    pipeline: &'a Pipeline,
    clock: Clock,
    /// The library ignores errors of normalizers where it looks for added tokens.
    failure: Mutex<Option<Source>>,
    /// The next text to be normalised goes on where another one ended.
    continues: AtomicBool,
}

impl Run<'_> {
    /// Says whether the text that is normalised next goes on where another one ended: then nothing
    /// is put before it.
    pub(super) fn begin(&self, continues: bool) {
        self.continues.store(continues, Ordering::Relaxed);
    }

    /// Runs the pre-tokenizers, unless a normalizer failed before.
    pub(super) fn pre_tokenize(&self, parts: &mut PreTokenizedString) -> Done {
        if let Some(failure) = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(failure);
        }
        for step in &self.pipeline.pre_tokenizers {
            match step {
                PreTokenizerStep::Library(step) => step.pre_tokenize(parts)?,
                PreTokenizerStep::Split { regex, behavior, invert } => {
                    let pattern = || Bounded { regex, clock: &self.clock };
                    self.clock.run(|| {
                        parts.split(|_, part| {
                            if *invert {
                                part.split(Invert(pattern()), *behavior)
                            } else {
                                part.split(pattern(), *behavior)
                            }
                        })
                    })?;
                }
            }
        }
        Ok(())
    }

    fn run_normalizers(&self, part: &mut NormalizedString) -> Done {
        let continues = self.continues.swap(false, Ordering::Relaxed);
        for step in &self.pipeline.normalizers {
            match step {
                NormalizerStep::Library(NormalizerWrapper::Prepend(_)) if continues => {}
                NormalizerStep::Library(step) => step.normalize(part)?,
                NormalizerStep::Replace { regex, content } => {
                    let pattern = Bounded { regex, clock: &self.clock };
                    self.clock.run(|| part.replace(pattern, content))?;
                }
            }
        }
        Ok(())
    }
}

impl Normalizer for Run<'_> {
    fn normalize(&self, part: &mut NormalizedString) -> tokenizers::Result<()> {
        let done = self.run_normalizers(part);
        if let Err(err) = &done {
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            failure.get_or_insert_with(|| err.to_string().into());
        }
        done
    }
}

/// An expression of the file at work on one text.
struct Bounded<'a> {
    regex: &'a Regex,
    clock: &'a Clock,
}

impl Pattern for Bounded<'_> {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        if inside.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let mut parts = Vec::new();
        let mut end = 0;
        for found in self.regex.find_iter(inside) {
            self.clock.check()?;
            let found = found
                .map_err(|err| format!("a regular expression of the tokenizer gives up: {err}"))?;
            if end != found.start() {
                parts.push(((end, found.start()), false));
            }
            parts.push(((found.start(), found.end()), true));
            end = found.end();
        }
        if end != inside.len() {
            parts.push(((end, inside.len()), false));
        }
        Ok(parts)
    }
}

/// What the matches in one text may take. The steps between them do not count.
struct Clock {
    limit: Duration,
    /// Nanoseconds of the steps before.
    spent: AtomicU64,
    /// When the step began, in nanoseconds of [`thread_time`].
    began: AtomicU64,
    n_matches: AtomicU32,
}

impl Clock {
    fn new(limit: Duration) -> Self {
        let zero = || AtomicU64::new(0);
        Self { limit, spent: zero(), began: zero(), n_matches: AtomicU32::new(0) }
    }

    /// Runs a step, whose time counts.
    fn run(&self, step: impl FnOnce() -> tokenizers::Result<()>) -> tokenizers::Result<()> {
        self.began.store(nanoseconds(thread_time()), Ordering::Relaxed);
        let done = step();
        self.spent.fetch_add(self.of_step(), Ordering::Relaxed);
        done
    }

    fn of_step(&self) -> u64 {
        nanoseconds(thread_time()).saturating_sub(self.began.load(Ordering::Relaxed))
    }

    fn check(&self) -> Done {
        let n_matches = self.n_matches.fetch_add(1, Ordering::Relaxed);
        if n_matches.is_multiple_of(MATCHES_PER_LOOK)
            && self.spent.load(Ordering::Relaxed) + self.of_step() > nanoseconds(self.limit)
        {
            let limit = self.limit.as_millis();
            return Err(format!(
                "regular expressions of the tokenizer take longer than {limit} ms"
            )
            .into());
        }
        Ok(())
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Processor time of this thread, so that a busy machine refuses no text.
#[cfg(target_os = "linux")]
fn thread_time() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(spent).unwrap_or_default()
}

#[cfg(not(target_os = "linux"))]
fn thread_time() -> Duration {
    use std::sync::OnceLock;
    use std::time::Instant;

    static STARTED: OnceLock<Instant> = OnceLock::new();
    STARTED.get_or_init(Instant::now).elapsed()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};
    use tokenizers::{Model, OffsetType};

    use super::*;

    const TEXT: &str = "Hello, World 123!\n\t  aaab\u{301} \u{e9} \u{4e16}\u{754c} ab";

    /// A tokenizer of single characters that does this to a text first.
    fn tokenizer(normalizer: Value, pre_tokenizer: Value) -> tokenizers::Tokenizer {
        let vocab: serde_json::Map<_, _> =
            (0..0x7f_u8).map(|byte| (char::from(byte).to_string(), json!(byte))).collect();
        let json = json!({
            "version": "1.0", "added_tokens": [], "post_processor": null, "decoder": null,
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
            "model": {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": "?"},
        });
        tokenizers::Tokenizer::deserialize(json).unwrap()
    }

    fn encode(tokenizer: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>, Source> {
        let pipeline = Pipeline::new(tokenizer).unwrap();
        let run = pipeline.start(text.len());
        let added = tokenizer.get_added_vocabulary();
        let mut parts = added.extract_and_normalize(Some(&run), text);
        run.pre_tokenize(&mut parts)?;
        tokenizer.get_model().tokenize_in_pretokenized(&mut parts, None)?;
        Ok(parts.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec())
    }

    fn split(regex: &str, behavior: &str, invert: bool) -> Value {
        json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior,
               "invert": invert})
    }

    fn replace(regex: &str) -> Value {
        json!({"type": "Replace", "pattern": {"Regex": regex}, "content": "x"})
    }

    #[test]
    fn ids_are_those_of_the_library() {
        let behaviors =
            ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"];
        for regex in [r"\s+(?!\S)|\s+", r"a+|\p{L}", r"(?=b)", r"(a)\1", ""] {
            for (i, behavior) in behaviors.into_iter().enumerate() {
                let first = split(regex, behavior, i % 2 == 0);
                let digits = json!({"type": "Digits", "individual_digits": true});
                let steps = json!({"type": "Sequence", "pretokenizers": [first, digits]});
                let normal = json!({"type": "Sequence", "normalizers": [
                    {"type": "NFC"}, {"type": "Lowercase"}, replace(regex),
                    {"type": "Replace", "pattern": {"String": "l"}, "content": "ll"},
                ]});
                let tokenizer = tokenizer(normal, steps);
                let library = tokenizer.encode_fast(TEXT, false).unwrap();
                assert_eq!(encode(&tokenizer, TEXT).unwrap(), library.get_ids(), "{regex}");
            }
        }
    }

    #[test]
    fn expressions_that_backtrack_are_errors() {
        let text = "a".repeat(30_000);
        let hostile = [
            // All of the rest of the text for every match.
            (r"(a)(?:(?!\1*b)|)", "take longer"),
            // More and more for one match.
            (r"(?:(a)|\1?a)*b", "gives up"),
            (r"(?:(a+)\1?)+$(?<!a)", "gives up"),
        ];
        for (regex, reason) in hostile {
            let split = split(regex, "Isolated", false);
            for (normalizer, pre_tokenizer) in [(Value::Null, split), (replace(regex), Value::Null)]
            {
                let started = thread_time();
                let refused = encode(&tokenizer(normalizer, pre_tokenizer), &text).unwrap_err();
                assert!(refused.to_string().contains(reason), "{regex}: {refused}");
                let took = thread_time().saturating_sub(started);
                assert!(took < Duration::from_secs(6), "{regex} took {took:?}");
            }
        }
    }
}
