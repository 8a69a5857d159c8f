//! What an engine learns while it runs: how long steps take, by their rows, and how often
//! what multi-token prediction foresees is right.

use std::time::Duration;

use crate::draft::limits::{MOST_FORESEEN, MOST_ROWS};

/// What another row costs where nothing is known, in parts of the first.
const PER_ROW: f64 = 0.2;
/// What a foreseen token costs where nothing is known, in parts of a step of one row.
const FORESIGHT: f64 = 0.15;
/// How likely a foreseen token is right where nothing is known.
const FORESEEN_CHANCE: f64 = 0.6;
/// How many times what takes the least counts, as others may have had to get something ready.
const EARLY: usize = 4;
/// How much of what was known a later time replaces.
const NEWER: f64 = 0.2;
/// How many guesses what was known before weighs.
const PRIOR: f64 = 4.0;
/// What is left of what was counted with every further guess of a class.
const FADING: f64 = 0.9;

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Learned {
    pub(crate) pace: Pace,
    /// Of foreseen tokens in all texts.
    foreseen: ForeseenOdds,
}

impl Learned {
    /// Takes how many of some foreseen tokens were right.
    pub(crate) fn note_foreseen(&mut self, n: usize, n_right: usize) {
        self.foreseen.note(n, n_right);
    }

    /// What foreseeing a token takes and promises.
    pub(crate) fn foresight(&self) -> Foresight {
        let chances = self.foreseen.chances([FORESEEN_CHANCE; MOST_FORESEEN]);
        Foresight { seconds: self.pace.foresight(), chances }
    }
}

/// What a token takes that is foreseen, and how likely the first is right, the second if the
/// first is, and so on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Foresight {
    pub(crate) seconds: f64,
    pub(crate) chances: [f64; MOST_FORESEEN],
}

/// How often guesses were right.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Odds {
    right: f64,
    wrong: f64,
}

impl Odds {
    pub(super) fn note(&mut self, n: usize, n_right: usize) {
        self.right = self.right * FADING + n_right as f64;
        self.wrong = self.wrong * FADING + if n_right < n { 1.0 } else { 0.0 };
    }

    /// How likely the next token is right if those before are; `prior` is what was known
    /// before.
    pub(super) fn chance(&self, prior: f64) -> f64 {
        (self.right + PRIOR * prior) / (self.right + self.wrong + PRIOR)
    }
}

/// How often foreseen tokens were right if those before were, by how many these are: each goes
/// by what was foreseen before it, so that later ones are right less often.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ForeseenOdds([Odds; MOST_FORESEEN]);

impl ForeseenOdds {
    pub(super) fn note(&mut self, n: usize, n_right: usize) {
        for (i, odds) in self.0.iter_mut().enumerate().take(n.min(n_right + 1)) {
            odds.note(1, usize::from(i < n_right));
        }
    }

    pub(super) fn chances(&self, priors: [f64; MOST_FORESEEN]) -> [f64; MOST_FORESEEN] {
        std::array::from_fn(|i| self.0[i].chance(priors[i]))
    }
}

/// A time that was measured again and again, the later the more. Not the first, which may have
/// had to get a device ready. What comes after something else finds the device less ready than
/// what comes again, so it is no more than a bound, as are the first few.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    n: usize,
    seconds: Option<f64>,
}

impl Measured {
    fn note(&mut self, seconds: f64, comes_again: bool) {
        self.n = self.n.saturating_add(1);
        if self.n == 1 {
            return;
        }
        let known = self.seconds.get_or_insert(seconds);
        *known = match comes_again && self.n > EARLY {
            true => *known + NEWER * (seconds - *known),
            false => known.min(seconds),
        };
    }
}

/// What steps of so many rows took, copies of states for their guesses included.
#[derive(Debug)]
pub(crate) struct Pace {
    steps: [Measured; MOST_ROWS + 1],
    /// What a foreseen token took.
    foresight: Measured,
    /// Whether the last step had a guess.
    was_guess: Option<bool>,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            steps: [Measured::default(); MOST_ROWS + 1],
            foresight: Measured::default(),
            was_guess: None,
        }
    }
}

impl Pace {
    /// Takes what a step took, with a guess or without.
    pub(crate) fn note(&mut self, rows: usize, time: Duration, is_guess: bool) {
        let comes_again = self.was_guess.replace(is_guess) == Some(is_guess);
        if let Some(step) = self.steps.get_mut(rows) {
            step.note(time.as_secs_f64(), comes_again);
        }
    }

    /// Takes what it took to foresee so many tokens, of as many texts as had a row.
    pub(crate) fn note_foresight(&mut self, n: usize, time: Duration) {
        if n > 0 {
            let comes_again = self.was_guess == Some(true);
            self.foresight.note(time.as_secs_f64() / n as f64, comes_again);
        }
    }

    /// What another foreseen token takes.
    pub(super) fn foresight(&self) -> f64 {
        self.foresight.seconds.unwrap_or_else(|| FORESIGHT * self.of(1))
    }

    /// What a step of so many rows takes, between the steps that are known; where there
    /// are none, in parts of a step of one.
    pub(super) fn of(&self, rows: usize) -> f64 {
        let guess = |rows: usize| 1.0 + PER_ROW * (rows.max(1) - 1) as f64;
        let rows = rows.min(MOST_ROWS);
        let known = |it: &usize| self.steps[*it].seconds.map(|seconds| (*it, seconds));
        let below = (0..=rows).rev().find_map(|it| known(&it));
        let above = (rows + 1..=MOST_ROWS).find_map(|it| known(&it));
        match (below, above) {
            (Some((few, time)), Some((many, other))) => {
                time + (other - time) * (rows - few) as f64 / (many - few) as f64
            }
            (Some((n, time)), None) | (None, Some((n, time))) => time * guess(rows) / guess(n),
            (None, None) => guess(rows),
        }
    }
}
