//! Progress of what takes longer than a second: bars on terminals; elsewhere lines now and then
//! for downloads, and nothing for the rest.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::bytes::show;
use crate::report::{is_dumb_terminal, note};

/// How long something may take without a bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a bar counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Bytes,
    Files,
    Tokens,
    Layers,
}

/// A bar that shows itself when it has something to say.
pub(crate) struct Bar {
    label: String,
    unit: Unit,
    start: Instant,
    is_quiet: bool,
    bar: Option<ProgressBar>,
}

impl Bar {
    pub(crate) fn new(label: &str, unit: Unit, is_quiet: bool) -> Bar {
        let is_quiet = is_quiet || !has_bars();
        Bar { label: label.to_owned(), unit, start: Instant::now(), is_quiet, bar: None }
    }

    pub(crate) fn set(&mut self, done: u64, total: u64) {
        if self.is_quiet || (self.bar.is_none() && self.start.elapsed() < PATIENCE) {
            return;
        }
        let (label, unit, start) = (&self.label, self.unit, self.start);
        let bar = self.bar.get_or_insert_with(|| new_bar(label, unit, start));
        bar.set_length(total);
        bar.set_position(done);
    }

    pub(crate) fn set_label(&mut self, label: &str) {
        if self.label != label {
            label.clone_into(&mut self.label);
            if let Some(bar) = &self.bar {
                bar.set_message(self.label.clone());
            }
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Whether standard error is a terminal that knows the commands that move a bar.
fn has_bars() -> bool {
    std::io::stderr().is_terminal() && !is_dumb_terminal()
}

fn new_bar(label: &str, unit: Unit, start: Instant) -> ProgressBar {
    let counts = match unit {
        Unit::Bytes => "{binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}",
        Unit::Files => "{pos}/{len} files",
        Unit::Tokens => "{pos}/{len} tokens  {per_sec}",
        Unit::Layers => "{pos}/{len} layers",
    };
    let template = format!("{{msg}}  {{wide_bar}}  {counts}  {{eta}} left");
    styled(&template, label).with_elapsed(start.elapsed())
}

fn styled(template: &str, label: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(label.to_owned());
    bar
}

/// The time over which a download's rate is taken.
const RATE_SPAN: Duration = Duration::from_secs(20);
/// Time between the first lines where there is no bar; it doubles up to [`MAX_LINE_WAIT`].
const LINE_WAIT: Duration = Duration::from_secs(15);
const MAX_LINE_WAIT: Duration = Duration::from_secs(120);

/// A download: one bar over all files, or lines where standard error is no terminal.
pub(crate) struct Transfer {
    is_quiet: bool,
    is_terminal: bool,
    bar: Option<ProgressBar>,
    rate: Rate,
    lines: Lines,
    label: String,
}

/// Bytes that arrived, and how fast. Bytes that were here before do not count.
struct Rate {
    start: Instant,
    received: u64,
    /// Times, and the bytes received until then; the oldest is [`RATE_SPAN`] ago.
    samples: VecDeque<(Instant, u64)>,
}

/// When the next line is due.
struct Lines {
    last: Instant,
    wait: Duration,
}

impl Transfer {
    pub(crate) fn new(is_quiet: bool) -> Transfer {
        let now = Instant::now();
        Transfer {
            is_quiet,
            is_terminal: has_bars(),
            bar: None,
            rate: Rate::new(now),
            lines: Lines { last: now, wait: LINE_WAIT },
            label: String::new(),
        }
    }

    /// The first byte is about to be asked for; `here` bytes need not be.
    pub(crate) fn start(&mut self, label: &str, here: u64) {
        let now = Instant::now();
        label.clone_into(&mut self.label);
        self.rate = Rate::new(now);
        self.lines = Lines { last: now, wait: LINE_WAIT };
        if self.is_terminal && !self.is_quiet {
            let template = "{msg}  {wide_bar}  {binary_bytes}/{binary_total_bytes}  {prefix}";
            let bar = styled(template, label);
            bar.set_position(here);
            self.bar = Some(bar);
        }
    }

    pub(crate) fn set(&mut self, done: u64, total: u64, received: u64) {
        let now = Instant::now();
        self.rate.add(now, received);
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
            bar.set_prefix(self.rate.text(now, total - done.min(total)));
        } else if !self.label.is_empty() && self.lines.is_due(now) {
            let share = 100.0 * done as f64 / total.max(1) as f64;
            let text = self.rate.text(now, total - done.min(total));
            let (label, done, total) = (&self.label, show(done), show(total));
            note(self.is_quiet, &format!("{label}: {done} of {total} ({share:.0} %), {text}"));
        }
    }

    /// A line of its own, above the bar if there is one.
    pub(crate) fn say(&self, text: &str) {
        match &self.bar {
            _ if text.is_empty() => {}
            Some(bar) => bar.suspend(|| note(self.is_quiet, text)),
            None => note(self.is_quiet, text),
        }
    }

    pub(crate) fn finish(self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let elapsed = self.rate.start.elapsed();
        if self.rate.received > 0 {
            let rate = self.rate.received as f64 / elapsed.as_secs_f64().max(1e-3);
            let (bytes, time) = (show(self.rate.received), duration(elapsed.as_secs_f64()));
            note(self.is_quiet, &format!("received {bytes} in {time} ({}/s)", show(rate as u64)));
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Rate {
    fn new(now: Instant) -> Rate {
        Rate { start: now, received: 0, samples: VecDeque::from([(now, 0)]) }
    }

    fn add(&mut self, now: Instant, received: u64) {
        self.received += received;
        self.samples.push_back((now, self.received));
        while self.samples.len() > 2 && now.duration_since(self.samples[1].0) > RATE_SPAN {
            self.samples.pop_front();
        }
    }

    /// Bytes a second lately.
    fn per_second(&self, now: Instant) -> f64 {
        let (since, before) = self.samples[0];
        let span = now.duration_since(since).as_secs_f64();
        if span < 0.5 { 0.0 } else { (self.received - before) as f64 / span }
    }

    /// The rate, and how long the rest will take at that rate.
    fn text(&self, now: Instant, rest: u64) -> String {
        let rate = self.per_second(now);
        if rate < 1.0 {
            return String::from("waiting for data");
        }
        format!("{}/s, {} left", show(rate as u64), duration(rest as f64 / rate))
    }
}

impl Lines {
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now.duration_since(self.last) >= self.wait;
        if is_due {
            self.last = now;
            self.wait = (self.wait * 2).min(MAX_LINE_WAIT);
        }
        is_due
    }
}

/// Seconds as people say them.
pub(crate) fn duration(secs: f64) -> String {
    match secs {
        ..10.0 => format!("{secs:.1} s"),
        ..90.0 => format!("{secs:.0} s"),
        ..5400.0 => format!("{:.0} min", secs / 60.0),
        ..172_800.0 => format!("{:.1} h", secs / 3600.0),
        _ => format!("{:.0} days", secs / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_of_the_last_seconds_and_of_received_bytes() {
        let start = Instant::now();
        let at = |secs: u64| start + Duration::from_secs(secs);
        let mut rate = Rate::new(start);
        rate.add(at(1), 0); // a resumed file: its bytes are no speed
        assert_eq!(rate.text(at(1), 100), "waiting for data");
        (2..=10).for_each(|i| rate.add(at(i), 1 << 20));
        assert_eq!(rate.per_second(at(10)), 0.9 * f64::from(1 << 20));
        (11..=100).for_each(|i| rate.add(at(i), 4 << 20));
        assert_eq!(rate.text(at(100), 40 << 20), "4.00 MiB/s, 10 s left");
        assert!(rate.samples.len() < 30);
    }

    #[test]
    fn lines_become_rarer() {
        let start = Instant::now();
        let mut lines = Lines { last: start, wait: LINE_WAIT };
        let due: Vec<u64> =
            (0..600).filter(|&i| lines.is_due(start + Duration::from_secs(i))).collect();
        assert_eq!(due, [15, 45, 105, 225, 345, 465, 585]);
    }

    #[test]
    fn times_have_a_unit_that_suits_them() {
        for (secs, want) in
            [(2.0, "2.0 s"), (42.0, "42 s"), (600.0, "10 min"), (7200.0, "2.0 h"), (4e5, "5 days")]
        {
            assert_eq!(duration(secs), want);
        }
    }
}
