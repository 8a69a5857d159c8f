//! Guesses of what follows, checked in one step: the tokens that a text was continued
//! with where its end occurred before, or that a model with multi-token prediction foresees.
//! A guess that is right is a token for the price of
//! a row; what is said is the same with and without, as every token is chosen from its own
//! logits all the same.
//!
//! Source of the ideas: prompt lookup, a form of speculative decoding (Leviathan et al.,
//! 2023) whose drafts are copies and whose check is equality with the token drawn; and
//! multi-token prediction (DeepSeek-V3, 2024), whose drafts are a layer of the model's.

mod learned;
pub(crate) mod limits;
mod lookup;
mod step;
#[cfg(test)]
mod tests;

use moeflux_core::TokenId;

use self::learned::{ForeseenOdds, Odds};
pub(crate) use self::learned::{Foresight, Learned, Pace};
use self::lookup::Lookup;
pub(crate) use self::step::{Drafting, follow};
pub(crate) use crate::draft::limits::MOST_FORESEEN;

/// Most tokens of a guess.
pub const MAX_GUESS: usize = 15;

/// Whether tokens are guessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drafts {
    /// As many as are worth their rows, by how often guesses were right and what steps
    /// of so many rows took.
    #[default]
    Auto,
    /// None.
    Off,
    /// As many wherever there is a guess; at most [`MAX_GUESS`], and four of those that
    /// multi-token prediction makes.
    Fixed(usize),
}

/// Guesses in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Tokens guessed.
    pub guessed: u64,
    /// Those that were chosen.
    pub right: u64,
}

impl std::ops::AddAssign for DraftCounts {
    fn add_assign(&mut self, other: DraftCounts) {
        self.guessed += other.guessed;
        self.right += other.right;
    }
}

/// By tokens in common: the least, and how likely the next one is right before anybody
/// knows.
const CLASSES: [(usize, f64); 4] = [(3, 0.4), (6, 0.6), (16, 0.85), (32, 0.95)];
/// The class of what somebody expects, as long as it is said from its beginning on.
const EXPECTED: usize = 2;
/// The class of what a grammar forces, and how likely it still does when the tokens before
/// have come.
const FORCED: usize = CLASSES.len();
const FORCED_CHANCE: f64 = 0.9;
/// The class of what is foreseen, and how many tokens at most: each goes by what was foreseen
/// before it.
const FORESEEN: usize = FORCED + 1;
/// Tokens a second that a guess has to promise beyond those without.
const WORTH: f64 = 1.02;
/// Behind so many places where guesses do not seem worth it a few are tried all the same, of
/// a token each; twice as many the next time, up to a most.
const TRIED_BEHIND: [usize; 2] = [64, 1024];
const TRIED: usize = 3;

/// Guesses what follows in one text.
#[derive(Debug)]
pub(crate) struct Drafter {
    drafts: Drafts,
    /// What somebody expects to be said, the text, and what is said.
    lookup: Lookup,
    n_expected: usize,
    n_said: usize,
    odds: [Odds; FORESEEN],
    foreseen: ForeseenOdds,
    /// The class of the last guess, and how long it was.
    last: Option<(usize, usize)>,
    /// Places in a row where none seemed worth it, those behind which some are tried, and how
    /// often that was done.
    n_left: usize,
    tried_behind: usize,
    n_trials: usize,
    counts: DraftCounts,
}

/// What a step would be without a guess.
pub(crate) struct Occasion<'a> {
    pub(crate) pace: &'a Pace,
    /// Its rows, of which others bring tokens too.
    pub(crate) rows: usize,
    pub(crate) n_others: usize,
    /// Tokens that there is room for.
    pub(crate) room: usize,
    /// Whether tokens that are right are evaluated again where one behind them is wrong.
    pub(crate) again: bool,
    /// What foreseeing a token takes and promises; `None` where none can be.
    pub(crate) foresight: Option<Foresight>,
}

/// What may follow.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Guess {
    /// These tokens, or none.
    Known(Vec<TokenId>),
    /// So many that have to be foreseen.
    Foresee(usize),
}

impl Guess {
    /// Whether nothing is guessed.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens of it.
    pub(crate) fn len(&self) -> usize {
        match self {
            Guess::Known(tokens) => tokens.len(),
            Guess::Foresee(n) => *n,
        }
    }
}

/// Where a guess may come from.
#[derive(Clone, Copy)]
struct Source {
    class: usize,
    /// Tokens at most.
    most: usize,
    /// What each of them takes beside its row.
    seconds: f64,
    /// How likely each of them is right if those before are.
    chances: [f64; MAX_GUESS],
}

impl Drafter {
    /// Behind a text, for which somebody may `expect` something; `None` where nothing is to
    /// be guessed.
    pub(crate) fn new(drafts: Drafts, expected: &[TokenId], text: &[TokenId]) -> Option<Drafter> {
        if matches!(drafts, Drafts::Off | Drafts::Fixed(0)) {
            return None;
        }
        let mut lookup = Lookup::default();
        lookup.extend(expected);
        lookup.extend(text);
        let (odds, foreseen) = ([Odds::default(); FORESEEN], ForeseenOdds::default());
        let counts = DraftCounts::default();
        let (n_expected, n_said) = (expected.len(), 0);
        let (last, n_left, n_trials) = (None, 0, 0);
        let tried_behind = TRIED_BEHIND[0];
        Some(Drafter {
            drafts,
            lookup,
            n_expected,
            n_said,
            odds,
            foreseen,
            last,
            n_left,
            tried_behind,
            n_trials,
            counts,
        })
    }

    /// The text goes on.
    pub(crate) fn push(&mut self, token: TokenId) {
        self.lookup.push(token);
        self.n_said += 1;
    }

    pub(crate) fn counts(&self) -> DraftCounts {
        self.counts
    }

    /// What may follow the text, the beginning of what is `forced` where anything is; who
    /// asks says with [`judge`](Drafter::judge) how much of it was right.
    pub(crate) fn guess(&mut self, at: &Occasion<'_>, forced: &[TokenId]) -> Guess {
        self.last = None;
        let room = at.room.min(MAX_GUESS);
        if room == 0 {
            return Guess::Known(Vec::new());
        }
        if !forced.is_empty() {
            let most = room.min(forced.len());
            let chosen = self.choose(&[self.source(FORCED, most, FORCED_CHANCE)], at);
            return Guess::Known(forced[..chosen.map_or(0, |it| it.1)].to_vec());
        }
        let begun = self.lookup.begun(self.n_said, self.n_expected);
        let is_begun = begun.is_some();
        let found = begun.or_else(|| self.lookup.find());
        let mut sources = Vec::with_capacity(2);
        if let Some(found) = &found {
            let class = match is_begun {
                true => EXPECTED,
                false => CLASSES.iter().rposition(|it| it.0 <= found.n_common).unwrap_or(0),
            };
            sources.push(self.source(class, room, CLASSES[class].1));
        }
        if let Some(Foresight { seconds, chances: priors }) = at.foresight {
            let most = room.min(MOST_FORESEEN);
            let mut chances = [0.0; MAX_GUESS];
            chances[..MOST_FORESEEN].copy_from_slice(&self.foreseen.chances(priors));
            sources.push(Source { class: FORESEEN, most, seconds, chances });
        }
        match (self.choose(&sources, at), found) {
            (Some((FORESEEN, n)), _) => Guess::Foresee(n),
            (Some((_, n)), Some(found)) => Guess::Known(self.lookup.continuation(found.start, n)),
            _ => Guess::Known(Vec::new()),
        }
    }

    /// The class of the guess that is made now, if one is, and how many tokens it has.
    fn choose(&mut self, sources: &[Source], at: &Occasion<'_>) -> Option<(usize, usize)> {
        let chosen = match self.drafts {
            Drafts::Off => None,
            Drafts::Fixed(n) => sources.first().map(|it| (it.class, n.min(it.most))),
            Drafts::Auto => self.worthwhile(sources, at),
        };
        self.last = chosen.filter(|it| it.1 > 0);
        self.last
    }

    /// So many of the tokens were foreseen that were to be.
    pub(crate) fn has_foreseen(&mut self, n: usize) {
        self.last = self.last.map(|it| (it.0, n.min(it.1))).filter(|it| it.1 > 0);
    }

    /// So many tokens of the last guess were chosen; gives how many it had if they were
    /// foreseen.
    pub(crate) fn judge(&mut self, n_right: usize) -> Option<usize> {
        let (class, n) = self.last.take()?;
        match self.odds.get_mut(class) {
            Some(odds) => odds.note(n, n_right),
            None => self.foreseen.note(n, n_right),
        }
        self.counts += DraftCounts { guessed: n as u64, right: n_right as u64 };
        (class == FORESEEN).then_some(n)
    }

    /// Takes back the last guess, which nobody checked.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }

    /// A place that tokens are copied from, with what is known of others of its class.
    fn source(&self, class: usize, most: usize, prior: f64) -> Source {
        let chances = [self.odds[class].chance(prior); MAX_GUESS];
        Source { class, most, seconds: 0.0, chances }
    }

    /// The source, and the number of tokens, that promise most tokens a second.
    fn worthwhile(&mut self, sources: &[Source], at: &Occasion<'_>) -> Option<(usize, usize)> {
        let alone = rate(&[], 0.0, at);
        let rates = sources.iter().flat_map(|it| {
            let rate = |n| ((it.class, n), rate(&it.chances[..n], it.seconds, at));
            (1..=it.most).map(rate)
        });
        let best = rates.max_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((best, _)) = best.filter(|it| it.1 > alone * WORTH) {
            (self.n_left, self.tried_behind) = (0, TRIED_BEHIND[0]);
            return Some(best);
        }
        if sources.is_empty() {
            return None;
        }
        self.n_left += 1;
        if self.n_left <= self.tried_behind {
            return None;
        }
        // Now one, now the other.
        let source = sources[self.n_trials % sources.len()];
        if self.n_left == self.tried_behind + TRIED {
            self.n_left = 0;
            self.n_trials += 1;
            self.tried_behind = (2 * self.tried_behind).min(TRIED_BEHIND[1]);
        }
        Some((source.class, 1))
    }
}

/// Tokens a second with a guess of tokens that are right with these `chances` if those before
/// are, and `seconds` of each beside its row.
fn rate(chances: &[f64], seconds: f64, at: &Occasion<'_>) -> f64 {
    let n = chances.len();
    let mut time = at.pace.of(at.rows + n) + n as f64 * seconds;
    // What the next step would be without.
    let next = at.pace.of(1 + at.n_others);
    let (mut n_right, mut whole) = (0.0, 1.0);
    for (i, chance) in chances.iter().enumerate() {
        if at.again {
            let again = at.pace.of(1 + at.n_others + i);
            time += whole * (1.0 - chance) * (again - next).max(0.0);
        }
        whole *= chance;
        n_right += whole;
    }
    (1.0 + at.n_others as f64 + n_right) / time
}
