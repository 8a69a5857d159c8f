//! `moeflux chat`: a conversation in the terminal.

use std::io::{self, BufRead, IsTerminal};

use anyhow::{Context, Result};
use moeflux_engine::text::{ChatTemplate, Message, Tokenizer};
use moeflux_engine::{Engine, Finish, GenerateOptions, Session, generate};
use reedline::{DefaultPrompt, DefaultPromptSegment, FileBackedHistory, Reedline, Signal};

use super::{Printer, chat_template, conversation, generate_options, opening};
use crate::args::{ChatArgs, UsageError};
use crate::progress::{Bar, Unit};
use crate::{model, report};

const HELP: &str = "\
/help    this text
/clear   forget the conversation
/quit    leave (so does Ctrl-D)
A line that ends with \\ goes on in the next one.";

pub(crate) fn run(args: &ChatArgs) -> Result<()> {
    let engine = model::open(&args.model, false, args.quiet)?;
    let tokenizer = engine.tokenizer()?;
    let options = generate_options(&args.sample, &tokenizer);
    let mut chat = Chat {
        engine: &engine,
        tokenizer: &tokenizer,
        template: chat_template(&tokenizer)?,
        options,
        session: engine.session(),
        messages: opening(args.system.as_deref()),
        n_opening: usize::from(args.system.is_some()),
        is_quiet: args.quiet,
    };
    let mut input = Input::open()?;
    report::note(args.quiet, "/help tells what there is");
    while let Some(text) = input.read()? {
        match text.trim() {
            "" => {}
            "/quit" | "/exit" => break,
            "/clear" => chat.clear(),
            "/help" => report::note(false, HELP),
            command if command.starts_with('/') && !command.contains(char::is_whitespace) => {
                report::note(false, &format!("{command}: no such command, /help lists them"));
            }
            _ => chat.answer(text)?,
        }
    }
    Ok(())
}

struct Chat<'a> {
    engine: &'a Engine,
    tokenizer: &'a Tokenizer,
    template: ChatTemplate,
    options: GenerateOptions,
    session: Session,
    messages: Vec<Message>,
    /// Messages that `/clear` keeps.
    n_opening: usize,
    is_quiet: bool,
}

impl Chat<'_> {
    fn clear(&mut self) {
        self.messages.truncate(self.n_opening);
        self.session.clear();
        report::note(self.is_quiet, "forgotten");
    }

    /// One turn. A turn that fails is taken back, and the conversation goes on.
    fn answer(&mut self, text: String) -> Result<()> {
        self.messages.push(Message::new("user", text));
        match self.turn() {
            Ok(answer) => {
                self.messages.push(Message::new("assistant", answer));
                Ok(())
            }
            Err(err) if err.is::<io::Error>() => Err(err),
            Err(err) => {
                self.messages.pop();
                self.session.clear();
                report::note(false, &report::chain(&err));
                Ok(())
            }
        }
    }

    fn turn(&mut self) -> Result<String> {
        let tokens = conversation(self.tokenizer, &self.template, &self.messages)?;
        // What the session holds already need not be evaluated again.
        let n_held = self.session.tokens().len();
        let continues = n_held < tokens.len() && tokens.starts_with(self.session.tokens());
        if !continues {
            self.session.clear();
        }
        let new = if continues { &tokens[n_held..] } else { &tokens[..] };
        let bar = Bar::new("reading", Unit::Tokens, self.is_quiet);
        let mut printer = Printer::new(bar, new.len());
        self.engine.reset_stats();
        let (session, options) = (&mut self.session, &self.options);
        let answer = generate(session, self.tokenizer, new, options, &mut printer)?;
        let text = printer.finish()?;
        if answer.finish == Finish::ContextFull {
            report::note(false, "the context is full: /clear begins anew, --ctx makes it larger");
        }
        if !self.is_quiet {
            report::statistics(self.engine, &answer);
        }
        Ok(text)
    }
}

/// Where the user's lines come from.
enum Input {
    Terminal(Box<Reedline>, DefaultPrompt),
    Lines,
}

/// Lines that the terminal's history keeps.
const HISTORY_LINES: usize = 1000;

impl Input {
    fn open() -> Result<Input> {
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
    fn read(&mut self) -> Result<Option<String>> {
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
