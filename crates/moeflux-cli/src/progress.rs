//! Progress bars for what takes longer than a second, on terminals only.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How long something may take without a bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a bar counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Bytes,
    Tokens,
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
        let is_quiet = is_quiet || !std::io::stderr().is_terminal();
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

fn new_bar(label: &str, unit: Unit, start: Instant) -> ProgressBar {
    let counts = match unit {
        Unit::Bytes => "{binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}",
        Unit::Tokens => "{pos}/{len} tokens  {per_sec}",
    };
    let template = format!("{{msg}}  {{wide_bar}}  {counts}  {{eta}} left");
    let style = ProgressStyle::with_template(&template);
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(label.to_owned());
    bar.with_elapsed(start.elapsed())
}
