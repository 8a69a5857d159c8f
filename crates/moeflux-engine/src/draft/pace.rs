//! How long steps take, by their rows.

use std::time::Duration;

use super::MOST_ROWS;

/// What another row costs where nothing is known, in parts of the first.
const PER_ROW: f64 = 0.2;
/// What a foreseen token costs where nothing is known, in parts of a step of one row.
const FORESIGHT: f64 = 0.15;
/// How much of what was known a step replaces.
const NEWER: f64 = 0.2;

/// What steps of so many rows took, copies of states for their guesses included.
#[derive(Debug)]
pub(crate) struct Pace {
    /// By rows, of the second step and those behind it: a device may have got ready for the
    /// first.
    seconds: [Option<f64>; MOST_ROWS + 1],
    was_seen: [bool; MOST_ROWS + 1],
    /// What a foreseen token took, and how often any was.
    foresight: Option<f64>,
    n_foreseen: usize,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            seconds: [None; MOST_ROWS + 1],
            was_seen: [false; MOST_ROWS + 1],
            foresight: None,
            n_foreseen: 0,
        }
    }
}

impl Pace {
    pub(crate) fn note(&mut self, rows: usize, time: Duration) {
        if rows > MOST_ROWS || !std::mem::replace(&mut self.was_seen[rows], true) {
            return;
        }
        let time = time.as_secs_f64();
        let known = self.seconds[rows].get_or_insert(time);
        *known += NEWER * (time - *known);
    }

    /// Takes what it took to foresee so many tokens, of as many texts as had a row.
    pub(crate) fn note_foresight(&mut self, n: usize, time: Duration) {
        self.n_foreseen += 1;
        if n == 0 || self.n_foreseen == 1 {
            return;
        }
        let time = time.as_secs_f64() / n as f64;
        let known = self.foresight.get_or_insert(time);
        *known += NEWER * (time - *known);
    }

    /// What another foreseen token takes.
    pub(crate) fn foresight(&self) -> f64 {
        self.foresight.unwrap_or_else(|| FORESIGHT * self.of(1))
    }

    /// What a step of so many rows takes, between the steps that are known; where there
    /// are none, in parts of a step of one.
    pub(super) fn of(&self, rows: usize) -> f64 {
        let guess = |rows: usize| 1.0 + PER_ROW * (rows.max(1) - 1) as f64;
        let rows = rows.min(MOST_ROWS);
        let known = |it: &usize| self.seconds[*it].map(|seconds| (*it, seconds));
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
