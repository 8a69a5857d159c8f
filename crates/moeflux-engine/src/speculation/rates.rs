//! Measurements that decide how much is drafted: times of steps, and acceptance rates.

use std::time::Duration;

use crate::speculation::limits::{MAX_MTP_DRAFT, MAX_STEP_ROWS};

/// The assumed time of another row, in parts of a step of one row.
const PER_ROW: f64 = 0.2;
/// The assumed time of a token drafted by MTP, in parts of a step of one row.
const MTP_TIME: f64 = 0.15;
/// The assumed acceptance rate of a token drafted by MTP.
const MTP_ACCEPTANCE: f64 = 0.6;
/// Until this many times are measured, the shortest counts: early ones include one-time work.
const EARLY: usize = 4;
/// The weight of a new time in the moving average.
const NEW_WEIGHT: f64 = 0.2;
/// The weight of the assumed acceptance rate, in drafts.
const PRIOR_WEIGHT: f64 = 4.0;
/// The factor by which earlier counts of a class fade with each of its drafts.
const FADING: f64 = 0.9;

/// The measurements of one engine, for all of its sessions.
#[derive(Debug, Default)]
pub(crate) struct SpeculationRates {
    pub(crate) step_cost: StepCost,
    mtp: MtpAcceptance,
}

impl SpeculationRates {
    /// Records that of `n` tokens drafted by MTP the first `n_accepted` were accepted.
    pub(crate) fn record_mtp(&mut self, n: usize, n_accepted: usize) {
        self.mtp.record(n, n_accepted);
    }

    /// The expected time and acceptance of a token drafted by MTP.
    pub(crate) fn mtp(&self) -> MtpRates {
        let acceptance = self.mtp.rates([MTP_ACCEPTANCE; MAX_MTP_DRAFT]);
        MtpRates { seconds: self.step_cost.mtp(), acceptance }
    }
}

/// The expected time and acceptance of tokens drafted by MTP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MtpRates {
    /// Seconds that a drafted token takes.
    pub(crate) seconds: f64,
    /// The probability that each token is accepted if those before it are.
    pub(crate) acceptance: [f64; MAX_MTP_DRAFT],
}

/// How often drafted tokens were accepted; recent drafts weigh more.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AcceptanceRate {
    accepted: f64,
    rejected: f64,
}

impl AcceptanceRate {
    /// Records that of `n` drafted tokens the first `n_accepted` were accepted.
    pub(crate) fn record(&mut self, n: usize, n_accepted: usize) {
        self.accepted = self.accepted * FADING + n_accepted as f64;
        self.rejected = self.rejected * FADING + if n_accepted < n { 1.0 } else { 0.0 };
    }

    /// The probability that the next token is accepted if those before it are. `prior` is
    /// assumed before anything is recorded.
    pub(crate) fn rate(&self, prior: f64) -> f64 {
        (self.accepted + PRIOR_WEIGHT * prior) / (self.accepted + self.rejected + PRIOR_WEIGHT)
    }
}

/// Acceptance rates of tokens drafted by MTP, by their place in the draft: each is computed from
/// the drafted ones before it, so that later ones are accepted less often.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MtpAcceptance([AcceptanceRate; MAX_MTP_DRAFT]);

impl MtpAcceptance {
    pub(crate) fn record(&mut self, n: usize, n_accepted: usize) {
        for (i, rate) in self.0.iter_mut().enumerate().take(n.min(n_accepted + 1)) {
            rate.record(1, usize::from(i < n_accepted));
        }
    }

    pub(crate) fn rates(&self, priors: [f64; MAX_MTP_DRAFT]) -> [f64; MAX_MTP_DRAFT] {
        std::array::from_fn(|i| self.0[i].rate(priors[i]))
    }
}

/// A moving average of a time. The first measurement is dropped, because it may include setting
/// up the device. Measurements after a step of another kind, and the first few, can only lower
/// it: the device was less ready then.
#[derive(Clone, Copy, Debug, Default)]
struct AverageTime {
    n: usize,
    seconds: Option<f64>,
}

impl AverageTime {
    fn record(&mut self, seconds: f64, is_repeated: bool) {
        self.n = self.n.saturating_add(1);
        if self.n == 1 {
            return;
        }
        let known = self.seconds.get_or_insert(seconds);
        *known = if is_repeated && self.n > EARLY {
            *known + NEW_WEIGHT * (seconds - *known)
        } else {
            known.min(seconds)
        };
    }
}

/// The time of steps by their number of rows, in seconds. It includes the copies of recurrent
/// states that drafts need.
#[derive(Debug)]
pub(crate) struct StepCost {
    steps: [AverageTime; MAX_STEP_ROWS + 1],
    /// The time of a token drafted by MTP.
    mtp: AverageTime,
    /// Whether the last step had drafts.
    had_draft: Option<bool>,
}

impl Default for StepCost {
    fn default() -> StepCost {
        StepCost {
            steps: [AverageTime::default(); MAX_STEP_ROWS + 1],
            mtp: AverageTime::default(),
            had_draft: None,
        }
    }
}

impl StepCost {
    /// Records the time of a step of `rows` rows, with drafts or without.
    pub(crate) fn record(&mut self, rows: usize, time: Duration, has_draft: bool) {
        let is_repeated = self.had_draft.replace(has_draft) == Some(has_draft);
        if let Some(step) = self.steps.get_mut(rows) {
            step.record(time.as_secs_f64(), is_repeated);
        }
    }

    /// Records the time in which MTP drafted `n` tokens for each of the texts of a step.
    pub(crate) fn record_mtp(&mut self, n: usize, time: Duration) {
        if n > 0 {
            let is_repeated = self.had_draft == Some(true);
            self.mtp.record(time.as_secs_f64() / n as f64, is_repeated);
        }
    }

    /// The expected time of another token drafted by MTP.
    pub(crate) fn mtp(&self) -> f64 {
        self.mtp.seconds.unwrap_or_else(|| MTP_TIME * self.of(1))
    }

    /// The expected time of a step of `rows` rows, interpolated between measured ones. Where
    /// none is measured, the unit is a step of one row.
    pub(crate) fn of(&self, rows: usize) -> f64 {
        let assumed = |rows: usize| 1.0 + PER_ROW * (rows.max(1) - 1) as f64;
        let rows = rows.min(MAX_STEP_ROWS);
        let measured = |rows: usize| self.steps[rows].seconds.map(|seconds| (rows, seconds));
        let below = (0..=rows).rev().find_map(measured);
        let above = (rows + 1..=MAX_STEP_ROWS).find_map(measured);
        match (below, above) {
            (Some((few, time)), Some((many, other))) => {
                time + (other - time) * (rows - few) as f64 / (many - few) as f64
            }
            (Some((n, time)), None) | (None, Some((n, time))) => time * assumed(rows) / assumed(n),
            (None, None) => assumed(rows),
        }
    }
}
