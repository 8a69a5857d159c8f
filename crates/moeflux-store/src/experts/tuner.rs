//! Decides whether prefetches save time, by trials on this machine, with this model and cache,
//! while it runs.

use std::fmt;
use std::time::Duration;

/// Decode steps of a window. The first step is not counted: the other setting left the cache as it
/// finds it.
const WINDOW_STEPS: u32 = 9;

/// Windows of each setting in a trial.
const TRIAL_WINDOWS: usize = 5;

/// Steps between the first trial and the second. They double after each trial that confirms the one
/// before.
const FIRST_REST: u32 = 1024;
const LONGEST_REST: u32 = 1 << 15;

/// Prefetches are on if a token takes less than this share of its time without them.
const GAIN: f64 = 0.99;

/// The cost of one decode step.
#[derive(Clone, Copy, Debug, Default)]
struct StepCost {
    time: Duration,
    /// The part of `time` that was spent waiting for experts.
    stall: Duration,
    /// The part of `time` in which the drive read.
    busy: Duration,
}

/// Means over a trial's windows; the time is their median.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrialSide {
    /// Milliseconds per token.
    pub token_ms: f64,
    /// Milliseconds of these spent waiting for experts.
    pub stall_ms: f64,
    /// Share of the time in which the drive read nothing.
    pub idle_share: f64,
}

/// The result of a trial of [`Prefetch::Auto`](crate::Prefetch::Auto).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PrefetchTrial {
    /// Whether predicted experts are read now.
    pub is_on: bool,
    /// The steps without predictions.
    pub without: TrialSide,
    /// The steps with lookahead.
    pub with: TrialSide,
    /// Trials so far, this one included.
    pub n_trials: u32,
}

impl fmt::Display for PrefetchTrial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.is_on { "lookahead" } else { "off" };
        let side = |side: &TrialSide| {
            let TrialSide { token_ms, stall_ms, idle_share } = side;
            let idle = 100.0 * idle_share;
            format!("{token_ms:.2} ms a token (stalled {stall_ms:.2} ms, drive idle {idle:.0} %)")
        };
        let (with, without) = (side(&self.with), side(&self.without));
        write!(f, "auto chose {name}: {with} with lookahead, {without} without")
    }
}

/// Alternates between both settings during a trial, then uses the faster one.
#[derive(Debug)]
pub(crate) struct Tuner {
    phase: Phase,
    /// Counted windows of the present trial: without predictions, with predictions.
    windows: [Vec<StepCost>; 2],
    window: Vec<StepCost>,
    rest: u32,
    last: Option<PrefetchTrial>,
    /// Total stall time of consumers and total busy time of the drive when the last step ended.
    totals: (Duration, Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Trial { is_on: bool },
    Settled { is_on: bool, n_left: u32 },
}

impl Tuner {
    pub(crate) fn new() -> Tuner {
        Tuner {
            phase: Phase::Trial { is_on: false },
            windows: [Vec::new(), Vec::new()],
            window: Vec::new(),
            rest: FIRST_REST,
            last: None,
            totals: Default::default(),
        }
    }

    /// Whether to predict in the next step.
    pub(crate) fn is_on(&self) -> bool {
        match self.phase {
            Phase::Trial { is_on } | Phase::Settled { is_on, .. } => is_on,
        }
    }

    /// The outcome of the last trial.
    pub(crate) fn last(&self) -> Option<PrefetchTrial> {
        self.last
    }

    /// Records a decode step that took `time`. `stall` is the time that consumers waited in all steps
    /// so far, and `busy` that in which the drive read.
    pub(super) fn end_step(&mut self, time: Duration, stall: Duration, busy: Duration) {
        let before = std::mem::replace(&mut self.totals, (stall, busy));
        let (stall, busy) = (stall.saturating_sub(before.0), busy.saturating_sub(before.1));
        self.step(StepCost { time, stall: stall.min(time), busy: busy.min(time) });
    }

    /// Records the cost of a decode step.
    fn step(&mut self, cost: StepCost) {
        match self.phase {
            Phase::Settled { n_left: 0, .. } => self.phase = Phase::Trial { is_on: false },
            Phase::Settled { is_on, n_left } => {
                self.phase = Phase::Settled { is_on, n_left: n_left - 1 };
            }
            Phase::Trial { is_on } => {
                self.window.push(cost);
                if self.window.len() == WINDOW_STEPS as usize {
                    let mean = mean(&self.window[1..]);
                    self.window.clear();
                    self.windows[usize::from(is_on)].push(mean);
                    self.phase = Phase::Trial { is_on: !is_on };
                    if self.windows.iter().all(|window| window.len() == TRIAL_WINDOWS) {
                        self.settle();
                    }
                }
            }
        }
    }

    fn settle(&mut self) {
        let [without, with] = [side(&self.windows[0]), side(&self.windows[1])];
        let is_on = with.token_ms < without.token_ms * GAIN;
        let is_confirmed = self.last.is_some_and(|trial| trial.is_on == is_on);
        self.rest = if is_confirmed { (self.rest * 2).min(LONGEST_REST) } else { FIRST_REST };
        let n_trials = 1 + self.last.map_or(0, |trial| trial.n_trials);
        self.last = Some(PrefetchTrial { is_on, without, with, n_trials });
        self.windows.iter_mut().for_each(Vec::clear);
        self.phase = Phase::Settled { is_on, n_left: self.rest };
    }
}

fn mean(steps: &[StepCost]) -> StepCost {
    let n = u32::try_from(steps.len()).unwrap_or(1).max(1);
    let sum = |part: fn(&StepCost) -> Duration| steps.iter().map(part).sum::<Duration>() / n;
    StepCost {
        time: sum(|cost| cost.time),
        stall: sum(|cost| cost.stall),
        busy: sum(|cost| cost.busy),
    }
}

fn side(windows: &[StepCost]) -> TrialSide {
    let mut times: Vec<Duration> = windows.iter().map(|window| window.time).collect();
    times.sort_unstable();
    let all = mean(windows);
    let busy = all.busy.as_secs_f64() / all.time.as_secs_f64().max(1e-9);
    TrialSide {
        token_ms: times[times.len() / 2].as_secs_f64() * 1e3,
        stall_ms: all.stall.as_secs_f64() * 1e3,
        idle_share: (1.0 - busy).clamp(0.0, 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(ms: u64) -> StepCost {
        let time = Duration::from_millis(ms);
        StepCost { time, stall: time / 2, busy: time / 4 }
    }

    /// Runs a trial in which a step takes `without` or `with` milliseconds.
    fn trial(tuner: &mut Tuner, without: u64, with: u64) -> PrefetchTrial {
        let n_before = tuner.last().map_or(0, |tuner| tuner.n_trials);
        for _ in 0..100_000 {
            tuner.step(cost(if tuner.is_on() { with } else { without }));
            match tuner.last() {
                Some(trial) if trial.n_trials > n_before => return trial,
                _ => {}
            }
        }
        panic!("a trial should end");
    }

    #[test]
    fn settles_on_what_is_faster() {
        let mut tuner = Tuner::new();
        assert!(!tuner.is_on());
        let found = trial(&mut tuner, 40, 30);
        assert!(found.is_on && tuner.is_on());
        assert_eq!((found.without.token_ms, found.with.token_ms), (40.0, 30.0));
        assert_eq!((found.with.stall_ms, found.with.idle_share), (15.0, 0.75));
        let text = found.to_string();
        assert!(text.starts_with("auto chose lookahead: 30.00 ms a token"), "{text}");
        assert!(text.ends_with("40.00 ms a token (stalled 20.00 ms, drive idle 75 %) without"));
    }

    #[test]
    fn does_nothing_where_nothing_is_gained() {
        assert!(!trial(&mut Tuner::new(), 40, 40).is_on);
        assert!(!trial(&mut Tuner::new(), 0, 0).is_on);
    }

    #[test]
    fn tries_again_and_changes_its_mind() {
        let mut tuner = Tuner::new();
        assert!(trial(&mut tuner, 40, 30).is_on);
        let again = trial(&mut tuner, 30, 40);
        assert!(!again.is_on && !tuner.is_on());
        assert_eq!(again.n_trials, 2);
    }

    #[test]
    fn one_slow_window_decides_nothing() {
        let mut tuner = Tuner::new();
        for _ in 0..WINDOW_STEPS {
            tuner.step(cost(900));
        }
        assert!(!trial(&mut tuner, 30, 40).is_on);
    }
}
