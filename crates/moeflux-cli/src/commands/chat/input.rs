//! Where the user's messages come from: an editor, or lines of a pipe.

use std::io::{self, BufRead, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use moeflux_core::visible;
use reedline::{
    ColumnarMenu, DefaultPrompt, DefaultPromptSegment, Emacs, FileBackedHistory, KeyCode,
    KeyModifiers, MenuBuilder, Reedline, ReedlineEvent, ReedlineMenu, Signal, ValidationResult,
    Validator, default_emacs_keybindings,
};
use signal_hook::consts::SIGINT;
use signal_hook::flag;

use super::completer::Lines;
use crate::error::UsageError;
use crate::{paths, report};

/// Where the user's lines come from.
pub(super) enum Input {
    Terminal(Box<Reedline>, DefaultPrompt),
    Lines,
}

/// Lines that the terminal's history keeps.
const HISTORY_LINES: usize = 1000;

/// Exit code of a program that Ctrl-C has ended.
const INTERRUPTED: i32 = 130;

/// Exit code of a program whose terminal has gone.
#[cfg(unix)]
const HUNG_UP: i32 = 129;

/// Ends the program when its terminal closes, even where the parent process had SIGHUP
/// ignored: without a terminal the editor would loop. The history is saved after every line.
#[cfg(unix)]
fn leave_with_terminal() -> Result<()> {
    let always = Arc::new(AtomicBool::new(true));
    flag::register_conditional_shutdown(signal_hook::consts::SIGHUP, HUNG_UP, always)
        .context("cannot listen for the end of the terminal")?;
    Ok(())
}

fn open_history() -> Result<Option<Box<FileBackedHistory>>> {
    let Some(file) = paths::history().context("the state directory")? else { return Ok(None) };
    let history = FileBackedHistory::with_file(HISTORY_LINES, file.clone());
    Ok(Some(Box::new(history.with_context(|| file.display().to_string())?)))
}

/// A line that ends with a backslash goes on.
struct Continued;

impl Validator for Continued {
    fn validate(&self, line: &str) -> ValidationResult {
        if line.ends_with('\\') { ValidationResult::Incomplete } else { ValidationResult::Complete }
    }
}

/// An editor in which Tab completes.
fn with_completion(editor: Reedline) -> Reedline {
    let menu = ColumnarMenu::default().with_name(MENU);
    let mut keys = default_emacs_keybindings();
    let complete = [ReedlineEvent::Menu(MENU.to_owned()), ReedlineEvent::MenuNext];
    keys.add_binding(
        KeyModifiers::NONE,
        KeyCode::Tab,
        ReedlineEvent::UntilFound(complete.to_vec()),
    );
    editor
        .with_completer(Box::new(Lines))
        .with_menu(ReedlineMenu::EngineCompleter(Box::new(menu)))
        .with_quick_completions(true)
        .with_partial_completions(true)
        .with_edit_mode(Box::new(Emacs::new(keys)))
}

/// The menu of completions.
const MENU: &str = "completions";

impl Input {
    pub(super) fn open() -> Result<Input> {
        // The editor needs a terminal that knows commands.
        if !io::stdin().is_terminal() || report::is_dumb_terminal() {
            return Ok(Input::Lines);
        }
        // Its colours, white text among them, do not suit every background.
        let editor = Reedline::create().use_bracketed_paste(true).with_ansi_colors(false);
        let mut editor = with_completion(editor).with_validator(Box::new(Continued));
        match open_history() {
            Ok(Some(history)) => editor = editor.with_history(history),
            Ok(None) => {}
            Err(err) => {
                report::note(false, &format!("warning: no history: {}", report::chain(&err)));
            }
        }
        let name = DefaultPromptSegment::Basic(String::from("you"));
        let prompt = DefaultPrompt::new(name, DefaultPromptSegment::Empty);
        Ok(Input::Terminal(Box::new(editor), prompt))
    }

    /// What Ctrl-C sets while an answer is made, instead of ending the program;
    /// pressed once more before that is heard, it does end it. Pipes have no
    /// such key.
    pub(super) fn interrupt(&self) -> Result<Arc<AtomicBool>> {
        let flag = Arc::new(AtomicBool::new(false));
        if io::stdin().is_terminal() {
            crate::interrupt::take_over(&[SIGINT]);
            let exit = flag::register_conditional_shutdown(SIGINT, INTERRUPTED, Arc::clone(&flag));
            let both = exit.and_then(|_| flag::register(SIGINT, Arc::clone(&flag)));
            both.context("cannot listen for Ctrl-C")?;
            #[cfg(unix)]
            leave_with_terminal()?;
        }
        Ok(flag)
    }

    /// The next message, its continued lines joined; `None` at the end.
    pub(super) fn read(&mut self) -> Result<Option<String>> {
        let mut text = String::new();
        while let Some(line) = self.read_line()? {
            // The editor keeps continued lines together.
            let line = line.replace("\\\n", "\n");
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

    /// Asks a question with yes or no; `None` where standard input is no terminal.
    pub(super) fn confirm(&mut self, question: &str) -> Result<Option<bool>> {
        let answer = match self {
            Input::Terminal(..) => {
                let question = DefaultPromptSegment::Basic(visible(question).into_owned());
                let prompt = DefaultPrompt::new(question, DefaultPromptSegment::Empty);
                // The history is of messages.
                let mut editor = Reedline::create().with_ansi_colors(false);
                match editor.read_line(&prompt)? {
                    Signal::Success(answer) => answer,
                    _ => String::new(),
                }
            }
            Input::Lines if io::stdin().is_terminal() => {
                // As in `read_line`.
                let _ = write!(io::stderr(), "{} ", visible(question));
                self.read_line()?.unwrap_or_default()
            }
            Input::Lines => return Ok(None),
        };
        Ok(Some(matches!(&*answer.trim().to_lowercase(), "y" | "yes")))
    }

    fn read_line(&mut self) -> Result<Option<String>> {
        match self {
            Input::Terminal(editor, prompt) => loop {
                match editor.read_line(prompt)? {
                    Signal::Success(line) => {
                        // Saved now: a signal may end the program at any time.
                        if let Err(err) = editor.sync_history() {
                            report::note(
                                false,
                                &format!("warning: the history is not kept: {err}"),
                            );
                        }
                        return Ok(Some(line));
                    }
                    Signal::CtrlC => report::aside(false, "Ctrl-D or /quit leaves"),
                    _ => return Ok(None),
                }
            },
            Input::Lines => {
                let mut line = String::new();
                if io::stdin().is_terminal() {
                    // There is nothing left to report to when standard error is closed.
                    let _ = write!(io::stderr(), "you> ");
                }
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
