//! An answer on its way to the terminal, and in the line below it how it goes.

use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use console::Term;
use moeflux::TokenLogprob;
use moeflux_core::visible;
use moeflux_text::Delta;

use super::markdown::Markdown;
use super::wrap::Wrap;
use crate::commands::answers::View;
use crate::commands::certainty::Certainty;
use crate::commands::{print, print_styled};
use crate::error::OutputError;
use crate::progress::Bar;
use crate::report;

/// Prints an answer to standard output as it comes.
pub(super) struct Screen {
    bar: Option<Bar>,
    n_prompt: u64,
    said: Said,
    /// Holds the beginning of an answer back, until it is known to be no guess.
    certainty: Option<Certainty>,
    held: Vec<Delta>,
    error: Option<OutputError>,
    /// Where standard output is one.
    terminal: Option<Terminal>,
}

/// What the model wrote.
#[derive(Clone, Debug, Default)]
pub(super) struct Said {
    /// Its thoughts, which only a terminal shows.
    pub(super) thought: String,
    /// Its answer.
    pub(super) text: String,
}

impl Screen {
    pub(super) fn new(bar: Bar, n_prompt: usize, is_quiet: bool, has_markdown: bool) -> Screen {
        // A terminal that knows no commands gets the text alone.
        let is_terminal = io::stdout().is_terminal() && !report::is_dumb_terminal();
        let terminal = is_terminal.then(|| Terminal::new(!is_quiet, has_markdown));
        Screen {
            bar: Some(bar),
            n_prompt: n_prompt as u64,
            said: Said::default(),
            certainty: None,
            held: Vec::new(),
            error: None,
            terminal,
        }
    }

    /// This screen, which shows no answer that is a guess.
    pub(super) fn without_guesses(self, certainty: Certainty) -> Screen {
        Screen { certainty: Some(certainty), ..self }
    }

    fn is_guess(&self) -> bool {
        self.certainty.is_some_and(|certainty| certainty.is_guess())
    }

    /// What was written, its last line ended; `None` where it was withheld as a guess.
    pub(super) fn finish(mut self) -> Result<Option<Said>, OutputError> {
        self.bar = None;
        if self.is_guess() {
            return Ok(None);
        }
        self.certainty = None;
        if self.error.is_none() {
            self.error = self.show(Vec::new()).err();
        }
        if self.error.is_none() {
            let end = if self.said.text.ends_with('\n') { "" } else { "\n" };
            let rest = self.terminal.map_or(String::new(), |mut terminal| terminal.finish(width()));
            self.error = print_styled(&format!("{rest}{end}")).err();
        }
        self.error.map_or(Ok(Some(self.said)), Err)
    }

    fn show(&mut self, deltas: Vec<Delta>) -> Result<(), OutputError> {
        self.held.extend(deltas);
        if self.certainty.is_some_and(|certainty| certainty.is_open() || certainty.is_guess()) {
            return Ok(());
        }
        for delta in std::mem::take(&mut self.held) {
            let (kind, text) = match delta {
                Delta::Reasoning(text) => (Kind::Thought, text),
                Delta::Content(text) => (Kind::Answer, text),
                // Without tools calls are text.
                Delta::Call { .. } | Delta::Arguments(_) => continue,
            };
            match kind {
                Kind::Thought => self.said.thought.push_str(&text),
                Kind::Answer => self.said.text.push_str(&text),
            }
            match &mut self.terminal {
                Some(terminal) => print_styled(&terminal.show(&text, kind, width()))?,
                None if kind == Kind::Answer => print(&text)?,
                None => {}
            }
        }
        Ok(())
    }
}

/// What a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Thought,
    Answer,
}

impl View for Screen {
    fn prompt_progress(&mut self, n_done: usize) {
        if let Some(bar) = &mut self.bar {
            bar.set(n_done as u64, self.n_prompt);
        }
    }

    fn add(&mut self, deltas: Vec<Delta>, tokens: &[TokenLogprob]) -> ControlFlow<()> {
        self.bar = None;
        if let Some(certainty) = &mut self.certainty {
            certainty.add_all(tokens);
        }
        if self.error.is_none() {
            self.error = self.show(deltas).err();
        }
        if self.error.is_some() || self.is_guess() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// What a terminal is sent: the text, and a line below it that goes again.
struct Terminal {
    /// What the last text was.
    last: Option<Kind>,
    has_status: bool,
    is_shown: bool,
    wrap: Wrap,
    n_pieces: u32,
    start: Option<Instant>,
    status: String,
    changed: Option<Instant>,
    markdown: Option<Markdown>,
}

impl Terminal {
    /// Between two changes of the status.
    const PAUSE: Duration = Duration::from_millis(200);

    fn new(has_status: bool, has_markdown: bool) -> Terminal {
        let markdown = has_markdown.then(|| Markdown::new(width()));
        Terminal {
            last: None,
            has_status,
            is_shown: false,
            wrap: Wrap::default(),
            n_pieces: 0,
            start: None,
            status: String::new(),
            changed: None,
            markdown,
        }
    }

    /// What takes the status away: all behind where the text ended. Ctrl-C makes terminals
    /// forget what they were about to show, so that the cursor may have stayed below.
    fn cleared(&self) -> &'static str {
        if self.is_shown { "\x1b8\x1b[0m\x1b[J" } else { "" }
    }

    /// The end of the text on a terminal of `width` columns: no status, and all that was held.
    fn finish(&mut self, width: usize) -> String {
        let rest = self.markdown.as_mut().map(Markdown::finish).unwrap_or_default();
        format!("{}{}", self.cleared(), self.wrap.add(&rest, width))
    }

    /// More text for a terminal of `width` columns; 0 where that is not known. Thoughts are dim.
    fn show(&mut self, piece: &str, kind: Kind, width: usize) -> String {
        let mut out = String::from(self.cleared());
        let text = visible(piece).into_owned();
        let mut shown = match (kind, &mut self.markdown) {
            (Kind::Answer, Some(markdown)) => markdown.feed(&text),
            (Kind::Answer, None) => text,
            (Kind::Thought, _) => format!("\x1b[2m{text}\x1b[0m"),
        };
        if self.last.replace(kind).is_some_and(|last| last != kind) {
            shown.insert_str(0, "\n\n");
        }
        out.push_str(&self.wrap.add(&shown, width));
        self.count();
        // Behind the last column the cursor is nowhere: what is cleared from there on takes
        // the last character along.
        self.is_shown = self.has_status && !self.status.is_empty() && self.wrap.column() < width;
        if self.is_shown {
            let line: String = self.status.chars().take(width - 1).collect();
            // A line below, and back: at the bottom that makes room.
            out.push_str("\x1bD\x1bM\x1b7\x1b[B\r\x1b[2m");
            out.push_str(&line);
            // Some terminals keep a place only until they go back to it.
            out.push_str("\x1b[0m\x1b8\x1b7");
        }
        out
    }

    /// A piece of the answer has come.
    fn count(&mut self) {
        let start = *self.start.get_or_insert_with(Instant::now);
        self.n_pieces += 1;
        if self.changed.is_none_or(|since| since.elapsed() >= Self::PAUSE) && self.n_pieces > 1 {
            let rate = f64::from(self.n_pieces - 1) / start.elapsed().as_secs_f64().max(1e-9);
            self.status = format!("{} tokens, {rate:.1} tok/s, Ctrl-C stops", self.n_pieces);
            self.changed = Some(Instant::now());
        }
    }
}

/// Columns of the terminal; 0 where it does not say.
fn width() -> usize {
    Term::stdout().size_checked().map_or(0, |(_, width)| width.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_model_writes_commands_no_terminal() {
        let mut terminal = Terminal::new(false, false);
        assert_eq!(
            terminal.show("a\x1b[31mb\r\n\tc\u{9b}2J\x07", Kind::Answer, 80),
            "a␛[31mb\n\tc<U+009B>2J␇"
        );
    }

    #[test]
    fn thoughts_are_dim_and_apart_from_the_answer() {
        let mut terminal = Terminal::new(false, false);
        let mut shown = terminal.show("Hm.", Kind::Thought, 80);
        shown += &terminal.show("Yes.", Kind::Answer, 80);
        assert_eq!(shown, "\x1b[2mHm.\x1b[0m\n\nYes.");
    }

    #[test]
    fn the_cursor_is_followed_over_lines_and_wide_characters() {
        let mut terminal = Terminal::new(false, false);
        for (text, column) in [("abc", 3), ("日本", 7), ("ab", 9), ("日", 2), ("x\t", 8), ("\n", 0)]
        {
            terminal.show(text, Kind::Answer, 10);
            assert_eq!(terminal.wrap.column(), column, "{text:?}");
        }
    }

    #[test]
    fn no_status_is_shown_where_the_cursor_is_behind_the_last_column() {
        let mut terminal = Terminal::new(true, false);
        terminal.show("abc", Kind::Answer, 10);
        let shown = terminal.show("def", Kind::Answer, 10);
        assert!(shown.contains("\x1b[2m2 tokens,\x1b[0m"), "cut to the width: {shown:?}");
        let full = terminal.show("ghij", Kind::Answer, 10);
        assert!(full.starts_with("\x1b8\x1b[0m\x1b[Jghij") && !terminal.is_shown, "{full:?}");
        assert!(terminal.show("k", Kind::Answer, 10).starts_with('k'));
        assert!(terminal.is_shown);
    }
}
