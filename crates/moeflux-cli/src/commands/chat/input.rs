//! Where the user's messages come from: an editor, or lines of a pipe.

use std::io::{self, BufRead, IsTerminal};

use anyhow::{Context, Result};
use reedline::{DefaultPrompt, DefaultPromptSegment, FileBackedHistory, Reedline, Signal};

use crate::args::UsageError;

/// Where the user's lines come from.
pub(super) enum Input {
    Terminal(Box<Reedline>, DefaultPrompt),
    Lines,
}

/// Lines that the terminal's history keeps.
const HISTORY_LINES: usize = 1000;

impl Input {
    pub(super) fn open() -> Result<Input> {
        if !io::stdin().is_terminal() {
            return Ok(Input::Lines);
        }
        let mut editor = Reedline::create();
        if let Some(file) = crate::demo::cache_dir().ok().map(|it| it.join("history")) {
            let history = FileBackedHistory::with_file(HISTORY_LINES, file);
            editor = editor.with_history(Box::new(history.context("cannot open the history")?));
        }
        let name = DefaultPromptSegment::Basic(String::from("you"));
        let prompt = DefaultPrompt::new(name, DefaultPromptSegment::Empty);
        Ok(Input::Terminal(Box::new(editor), prompt))
    }

    /// The next message, its continued lines joined; `None` at the end.
    pub(super) fn read(&mut self) -> Result<Option<String>> {
        let mut text = String::new();
        while let Some(line) = self.read_line()? {
            match line.strip_suffix('\\') {
                Some(more) => {
                    text.push_str(more);
                    text.push('\n');
                }
                None => return Ok(Some(text + &line)),
            }
        }
        Ok(if text.is_empty() { None } else { Some(text) })
    }

    fn read_line(&mut self) -> Result<Option<String>> {
        match self {
            Input::Terminal(editor, prompt) => match editor.read_line(prompt)? {
                Signal::Success(line) => Ok(Some(line)),
                _ => Ok(None),
            },
            Input::Lines => {
                let mut line = String::new();
                match io::stdin().lock().read_line(&mut line) {
                    Ok(0) => return Ok(None),
                    Ok(_) => {}
                    Err(err) if err.kind() == io::ErrorKind::InvalidData => {
                        return Err(UsageError(String::from("standard input is not UTF-8")).into());
                    }
                    Err(err) => return Err(err).context("cannot read standard input"),
                }
                let end = line.trim_end_matches(['\n', '\r']).len();
                line.truncate(end);
                Ok(Some(line))
            }
        }
    }
}
