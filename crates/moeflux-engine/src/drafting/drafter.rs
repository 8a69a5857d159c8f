//! Decides what is drafted after one text, and how much of it.

use moeflux_core::TokenId;

use super::lookup::Lookup;
use crate::session::Session;
use crate::speculation::limits::{MAX_DRAFT, MAX_MTP_DRAFT};
use crate::speculation::options::{Speculation, SpeculationStats};
use crate::speculation::rates::{AcceptanceRate, MtpAcceptance, MtpRates, StepCost};

/// Classes of copied drafts: the least number of tokens that the place has in common with the
/// end of the text, and the assumed acceptance rate.
pub(super) const CLASSES: [(usize, f64); 4] = [(3, 0.4), (6, 0.6), (16, 0.85), (32, 0.95)];
/// The class of drafts copied from the expected text while the answer repeats its beginning.
const EXPECTED: usize = 2;
/// The class of tokens that a grammar forces, and the assumed rate at which a token of it is
/// accepted if those before it are.
const FORCED: usize = CLASSES.len();
const FORCED_ACCEPTANCE: f64 = 0.9;
/// The class of tokens that MTP drafts.
const MTP: usize = FORCED + 1;
/// The factor by which a draft must raise the expected tokens a second.
const MIN_GAIN: f64 = 1.02;
/// After this many steps without a draft, drafts of one token are tried to measure acceptance
/// again: at first, and at most. The number doubles each time.
pub(super) const EXPLORE_AFTER: [usize; 2] = [64, 1024];
/// How many drafts are tried then.
pub(super) const N_EXPLORED: usize = 3;

/// Drafts tokens after one text.
#[derive(Debug)]
pub(crate) struct Drafter {
    speculation: Speculation,
    /// The expected text, the prompt, and the answer so far, in this order.
    lookup: Lookup,
    n_expected: usize,
    n_answered: usize,
    rates: [AcceptanceRate; MTP],
    mtp: MtpAcceptance,
    last: Option<LastDraft>,
    exploration: Exploration,
    stats: SpeculationStats,
}

/// A draft that is not verified yet.
#[derive(Clone, Copy, Debug)]
struct LastDraft {
    class: usize,
    n: usize,
}

/// When drafts are tried that do not seem worth their rows.
#[derive(Debug)]
struct Exploration {
    /// Steps in a row for which no draft seemed worth it.
    n_skipped: usize,
    /// After how many of them drafts are tried.
    interval: usize,
    /// How often drafts were tried.
    n_rounds: usize,
}

/// What a draft adds tokens to.
pub(crate) struct DraftContext<'a> {
    pub(crate) step_cost: &'a StepCost,
    /// Rows of the step without the draft.
    pub(crate) rows: usize,
    /// How many other answers get a token from the step.
    pub(crate) n_others: usize,
    /// The most tokens that the step and the context have rows for.
    pub(crate) max_draft: usize,
    /// Whether accepted tokens are evaluated again where a later one is rejected.
    pub(crate) reevaluates: bool,
    /// Time and acceptance of tokens drafted by MTP; `None` where it cannot draft.
    pub(crate) mtp: Option<MtpRates>,
}

/// What is drafted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Draft {
    /// These tokens, or none.
    Tokens(Vec<TokenId>),
    /// This many tokens, which MTP has yet to draft.
    Mtp(usize),
}

impl Draft {
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of tokens.
    pub(crate) fn len(&self) -> usize {
        match self {
            Draft::Tokens(tokens) => tokens.len(),
            Draft::Mtp(n) => *n,
        }
    }
}

/// A possible origin of a draft.
#[derive(Clone, Copy)]
struct Source {
    class: usize,
    /// The most tokens that it gives.
    max_tokens: usize,
    /// Seconds that each token takes in addition to its row.
    seconds: f64,
    /// The probability that each token is accepted if those before it are.
    acceptance: [f64; MAX_DRAFT],
}

impl Drafter {
    /// For an answer to `prompt` that is expected to repeat parts of `expected`; `None` where
    /// nothing is to be drafted.
    pub(crate) fn new(
        speculation: Speculation,
        expected: &[TokenId],
        prompt: &[TokenId],
    ) -> Option<Drafter> {
        if matches!(speculation, Speculation::Off | Speculation::Fixed(0)) {
            return None;
        }
        let mut lookup = Lookup::default();
        lookup.extend(expected);
        lookup.extend(prompt);
        Some(Drafter {
            speculation,
            lookup,
            n_expected: expected.len(),
            n_answered: 0,
            rates: [AcceptanceRate::default(); MTP],
            mtp: MtpAcceptance::default(),
            last: None,
            exploration: Exploration { n_skipped: 0, interval: EXPLORE_AFTER[0], n_rounds: 0 },
            stats: SpeculationStats::default(),
        })
    }

    /// Appends a token of the answer.
    pub(crate) fn push(&mut self, token: TokenId) {
        self.lookup.push(token);
        self.n_answered += 1;
    }

    pub(crate) fn stats(&self) -> SpeculationStats {
        self.stats
    }

    /// Drafts tokens after the text: the first of `forced` where a grammar forces any. The
    /// caller reports with [`Drafter::record`] how many were accepted.
    pub(crate) fn draft(&mut self, context: &DraftContext<'_>, forced: &[TokenId]) -> Draft {
        self.last = None;
        let max_draft = context.max_draft.min(MAX_DRAFT);
        if max_draft == 0 {
            return Draft::Tokens(Vec::new());
        }
        if !forced.is_empty() {
            let source = self.copy_source(FORCED, max_draft.min(forced.len()), FORCED_ACCEPTANCE);
            let chosen = self.choose(&[source], context);
            return Draft::Tokens(forced[..chosen.map_or(0, |draft| draft.n)].to_vec());
        }
        let expected = self.lookup.find_at_start(self.n_answered, self.n_expected);
        let is_expected = expected.is_some();
        let found = expected.or_else(|| self.lookup.find());
        let mut sources = Vec::with_capacity(2);
        let n_copied =
            found.as_ref().map_or(0, |found| self.lookup.n_copied(found.start, max_draft));
        if let Some(found) = found.as_ref().filter(|_| n_copied > 0) {
            let class = if is_expected {
                EXPECTED
            } else {
                CLASSES.iter().rposition(|class| class.0 <= found.n_common).unwrap_or(0)
            };
            sources.push(self.copy_source(class, n_copied, CLASSES[class].1));
        }
        if let Some(MtpRates { seconds, acceptance: priors }) = context.mtp {
            let max_tokens = max_draft.min(MAX_MTP_DRAFT);
            let mut acceptance = [0.0; MAX_DRAFT];
            acceptance[..MAX_MTP_DRAFT].copy_from_slice(&self.mtp.rates(priors));
            sources.push(Source { class: MTP, max_tokens, seconds, acceptance });
        }
        match (self.choose(&sources, context), found) {
            (Some(LastDraft { class: MTP, n }), _) => Draft::Mtp(n),
            (Some(LastDraft { n, .. }), Some(found)) => {
                Draft::Tokens(self.lookup.continuation(found.start, n))
            }
            _ => Draft::Tokens(Vec::new()),
        }
    }

    /// Sets how many tokens MTP has drafted of those that [`Draft::Mtp`] asked for.
    pub(crate) fn set_mtp_len(&mut self, n: usize) {
        let shortened = |draft: LastDraft| LastDraft { n: n.min(draft.n), ..draft };
        self.last = self.last.map(shortened).filter(|draft| draft.n > 0);
    }

    /// Records that the first tokens of the last draft were accepted, and appends them.
    pub(crate) fn accept(&mut self, session: &Session, accepted: &[TokenId]) {
        if let Some(n) = self.record(accepted.len()) {
            session.speculation_rates().record_mtp(n, accepted.len());
        }
        accepted.iter().for_each(|token| self.push(*token));
    }

    /// Records how many tokens of the last draft were accepted. Returns the number of its
    /// tokens if MTP has drafted them.
    pub(super) fn record(&mut self, n_accepted: usize) -> Option<usize> {
        let LastDraft { class, n } = self.last.take()?;
        match self.rates.get_mut(class) {
            Some(rate) => rate.record(n, n_accepted),
            None => self.mtp.record(n, n_accepted),
        }
        let (drafted, accepted) = (n as u64, n_accepted as u64);
        self.stats += SpeculationStats { drafted, accepted };
        (class == MTP).then_some(n)
    }

    /// Forgets the last draft, which was not verified.
    pub(crate) fn discard(&mut self) {
        self.last = None;
    }

    /// A source of copied tokens, with the acceptance rate of its class.
    fn copy_source(&self, class: usize, max_tokens: usize, prior: f64) -> Source {
        let acceptance = [self.rates[class].rate(prior); MAX_DRAFT];
        Source { class, max_tokens, seconds: 0.0, acceptance }
    }

    /// Chooses a source and the number of tokens.
    fn choose(&mut self, sources: &[Source], context: &DraftContext<'_>) -> Option<LastDraft> {
        let chosen = match self.speculation {
            Speculation::Off => None,
            Speculation::Fixed(n) => sources
                .first()
                .map(|source| LastDraft { class: source.class, n: n.min(source.max_tokens) }),
            Speculation::Auto => self.choose_by_rate(sources, context),
        };
        self.last = chosen.filter(|draft| draft.n > 0);
        self.last
    }

    /// Chooses the source and the number of tokens that promise the most tokens a second.
    fn choose_by_rate(
        &mut self,
        sources: &[Source],
        context: &DraftContext<'_>,
    ) -> Option<LastDraft> {
        let without = tokens_per_second(&[], 0.0, context);
        let drafts = sources.iter().flat_map(|source| {
            (1..=source.max_tokens).map(|n| {
                let rate = tokens_per_second(&source.acceptance[..n], source.seconds, context);
                (LastDraft { class: source.class, n }, rate)
            })
        });
        let best = drafts.max_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((best, _)) = best.filter(|(_, rate)| *rate > without * MIN_GAIN) {
            (self.exploration.n_skipped, self.exploration.interval) = (0, EXPLORE_AFTER[0]);
            return Some(best);
        }
        self.exploration.choose(sources)
    }
}

impl Exploration {
    /// Chooses a source for a draft of one token, where it is time to try one.
    fn choose(&mut self, sources: &[Source]) -> Option<LastDraft> {
        if sources.is_empty() {
            return None;
        }
        self.n_skipped += 1;
        if self.n_skipped <= self.interval {
            return None;
        }
        // The sources in turn.
        let source = sources[self.n_rounds % sources.len()];
        if self.n_skipped == self.interval + N_EXPLORED {
            self.n_skipped = 0;
            self.n_rounds += 1;
            self.interval = (2 * self.interval).min(EXPLORE_AFTER[1]);
        }
        Some(LastDraft { class: source.class, n: 1 })
    }
}

/// The expected tokens a second of a step with drafts. `acceptance` has for each draft the
/// probability that it is accepted if those before it are; `seconds` is the time that each takes
/// in addition to its row.
pub(super) fn tokens_per_second(
    acceptance: &[f64],
    seconds: f64,
    context: &DraftContext<'_>,
) -> f64 {
    let n = acceptance.len();
    let n_answers = 1 + context.n_others;
    let mut time = context.step_cost.of(context.rows + n) + n as f64 * seconds;
    // The next step without anything to evaluate again.
    let next = context.step_cost.of(n_answers);
    // The expected number of accepted drafts, and the probability that all so far are.
    let (mut n_accepted, mut all) = (0.0, 1.0);
    for (i, rate) in acceptance.iter().enumerate() {
        if context.reevaluates {
            let again = context.step_cost.of(n_answers + i);
            time += all * (1.0 - rate) * (again - next).max(0.0);
        }
        all *= rate;
        n_accepted += all;
    }
    (n_answers as f64 + n_accepted) / time
}
