//! `moeflux chat`: a conversation in the terminal.

mod command;
mod completer;
mod input;
mod markdown;
mod recall;
mod saved;
mod screen;
mod settings;
mod shown;
mod wrap;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use moeflux::{AnswerOptions, Ask, Finish, Model, Settings, Summary};
use moeflux_engine::{Conversation as SavedConversation, ModelName, Session};
use moeflux_text::{AnswerShape, Conversation, Message};

use self::command::{COMMANDS, HELP, at_home};
use self::input::Input;
use self::saved::SessionFile;
use self::screen::{Said, Screen};
use self::shown::{Shown, pasted};
use super::answers::{self, refusal};
use super::certainty::Certainty;
use super::opening;
use super::schema::shape;
use crate::args::ChatArgs;
use crate::error::{OutputError, UsageError};
use crate::progress::{Bar, Unit};
use crate::words::{did_you_mean, one_line};
use crate::{demo, model, report};

pub(crate) fn run(args: &ChatArgs) -> Result<()> {
    let shape = shape(args.schema.as_deref())?;
    let mut first = first_message(args)?;
    // A file that cannot be used is refused before the model is loaded.
    let file = args.session.as_deref().map(SessionFile::open).transpose()?;
    let conversation = file.as_ref().map(|file| saved::read(file.path())).transpose()?.flatten();
    let engine = model::open_cached(&args.model, args.prompt_cache.kept(), 1, args.quiet)?;
    let model = args.model.model.as_deref().unwrap_or("the demo model");
    let name = ModelName::of(&engine, model);
    let loaded = answers::model(engine, args.quiet)?;
    let refuse = |err| refusal(loaded.tokenizer(), err);
    loaded.text().template(false).map_err(refuse)?;
    let wanted = Conversation { shape: shape.clone(), ..Conversation::new(Vec::new()) };
    loaded.text().constraint(&wanted).map_err(refuse)?;
    answers::note_sampling(&args.sample, loaded.tokenizer(), args.quiet);
    answers::note_thinking(&args.sample, &loaded, args.quiet);
    let mut chat = Chat {
        settings: answers::settings(&args.sample, loaded.tokenizer()),
        loaded: &loaded,
        shape,
        thinking_budget: args.sample.thinking_budget,
        messages: opening(args.system.as_deref()),
        model: name,
        file: file.as_ref(),
        is_saved: true,
        is_quiet: args.quiet,
        has_stats: args.stats,
        has_markdown: !args.plain && has_styles(),
        is_demo: args.model.model.is_none(),
        saved_as: Vec::new(),
        shown: Shown::default(),
        interrupted: Arc::default(),
        last: None,
    };
    if let (Some(file), Some(conversation)) = (&file, conversation) {
        chat.require_same_model(file.path(), &conversation)?;
        chat.resume(file.path(), conversation)?;
        if args.system.is_some() {
            chat.set_system(args.system.as_deref().unwrap_or_default());
        }
    }
    let mut input = Input::open()?;
    chat.interrupted = input.interrupt()?;
    let ctx = loaded.context_length();
    report::aside(
        args.quiet,
        &format!("{model}, context of {ctx} tokens; /help lists the commands"),
    );
    if chat.is_demo {
        demo::introduce(first.as_deref().unwrap_or(""), false, args.quiet);
    }
    while let Some(text) = first.take().map_or_else(|| input.read(), |text| Ok(Some(text)))? {
        let (command, argument) = match text.trim().split_once(char::is_whitespace) {
            Some((command, argument)) => (command, argument.trim()),
            None => (text.trim(), ""),
        };
        let done = match (command, argument) {
            ("", _) => Ok(()),
            ("/quit" | "/exit", "") => break,
            ("/clear", "") => chat.clear(),
            ("/help", "") => {
                // When standard error is closed there is no place to report that.
                let _ = writeln!(io::stderr(), "{HELP}");
                Ok(())
            }
            ("/stats", "") => chat.statistics(),
            ("/undo", "") => chat.undo(),
            ("/regenerate", "") => chat.regenerate(),
            ("/system", text) => {
                chat.set_system(text);
                Ok(())
            }
            ("/save", file) if !file.is_empty() => chat.save_as(&at_home(file), &mut input),
            ("/load", file) if !file.is_empty() => chat.load(&at_home(file)),
            ("/image", file) if !file.is_empty() => chat.show(&at_home(file)),
            ("/save" | "/load" | "/image", _) => Err(anyhow::anyhow!("{command} needs a FILE")),
            ("/set", argument) => chat.set(argument),
            (command, _) if command.starts_with("//") => {
                chat.answer(text.trim_start()[1..].to_owned())
            }
            (command, _) if is_command(command) => Err(unknown(command)),
            _ => match pasted(&text).filter(|_| chat.loaded.engine().vision().is_some()) {
                Some(file) => chat.show(&file),
                None => chat.answer(text),
            },
        };
        match done {
            Err(err) if err.is::<OutputError>() => return Err(err),
            Err(err) if err.is::<Guess>() => demo::decline(),
            Err(err) => report::note(false, &one_line(&report::chain(&err))),
            Ok(()) => {}
        }
        // The last attempt tells whether the conversation is kept.
        if let Err(err) = chat.keep() {
            report::note(false, &format!("warning: {}", report::chain(&err)));
        }
    }
    chat.keep()
}

/// The message of the command line.
fn first_message(args: &ChatArgs) -> Result<Option<String>> {
    let Some(message) = &args.message else { return Ok(None) };
    let text = message.to_str().map(str::to_owned);
    let wrong = |what| UsageError(format!("the message is {what}: write it in quotes, in UTF-8"));
    let text = text.ok_or_else(|| wrong("not UTF-8"))?;
    if text.trim().is_empty() {
        return Err(wrong("empty").into());
    }
    Ok(Some(text))
}

/// Whether standard output is a terminal that shows styles, and the user wants them
/// (`NO_COLOR`, `CLICOLOR`, `TERM`).
fn has_styles() -> bool {
    io::stdout().is_terminal() && console::colors_enabled()
}

/// Whether a word is meant as a command: `/word`, not a path.
fn is_command(word: &str) -> bool {
    let name = word.strip_prefix('/').unwrap_or_default();
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphabetic())
}

fn unknown(command: &str) -> anyhow::Error {
    match did_you_mean(command, COMMANDS.into_iter()) {
        Some(near) => anyhow::anyhow!("{command}: no such command, did you mean {near}?"),
        None => anyhow::anyhow!("{command}: no such command, /help lists them"),
    }
}

struct Chat<'a> {
    loaded: &'a Model,
    settings: Settings,
    /// The form of answers.
    shape: AnswerShape,
    /// Tokens of thoughts at most.
    thinking_budget: Option<usize>,
    messages: Vec<Message>,
    model: ModelName,
    /// Where the conversation is kept.
    file: Option<&'a SessionFile>,
    /// Whether what is there is how things are.
    is_saved: bool,
    is_quiet: bool,
    /// Whether all statistics follow every answer.
    has_stats: bool,
    /// Whether Markdown is rendered.
    has_markdown: bool,
    /// Whether the model is the demo, whose guesses are withheld.
    is_demo: bool,
    /// Pictures of the messages, and of the next one.
    shown: Shown,
    /// Files that `/save` has written.
    saved_as: Vec<PathBuf>,
    /// Set by Ctrl-C.
    interrupted: Arc<AtomicBool>,
    /// How the last answer was made.
    last: Option<Summary>,
}

impl Chat<'_> {
    /// Removes all messages but the opening ones, such as the system prompt.
    fn clear(&mut self) -> Result<()> {
        self.messages.truncate(self.n_opening());
        self.shown.forget_next();
        self.loaded.scheduler().with_session(Session::clear)?;
        self.is_saved = false;
        report::aside(self.is_quiet, "forgotten");
        Ok(())
    }

    fn n_opening(&self) -> usize {
        self.messages.iter().take_while(|message| message.role == "system").count()
    }

    fn set_system(&mut self, text: &str) {
        let conversation = self.messages.split_off(self.n_opening());
        self.messages = opening(Some(text).filter(|text| !text.is_empty()));
        self.messages.extend(conversation);
        self.is_saved = false;
        let told = if text.is_empty() { "nothing beforehand" } else { "this" };
        let note = format!("the model is told {told}, from the next question on");
        report::aside(self.is_quiet, &note);
    }

    fn set(&mut self, argument: &str) -> Result<()> {
        let text = settings::set(&mut self.settings, &mut self.thinking_budget, argument)?;
        text.lines().for_each(|line| report::aside(false, line));
        if text.starts_with("thinking_budget") && !self.loaded.text().format().can_think() {
            report::note(
                self.is_quiet,
                "the model marks no thoughts: thinking_budget changes nothing",
            );
        }
        Ok(())
    }

    fn statistics(&self) -> Result<()> {
        let Some(last) = &self.last else { bail!("there is no answer yet") };
        report::statistics(self.loaded.engine(), last);
        Ok(())
    }

    fn undo(&mut self) -> Result<()> {
        let question = self.messages.iter().rposition(|message| message.role == "user");
        let Some(question) = question else { bail!("there is nothing to take back") };
        self.messages.truncate(question);
        self.is_saved = false;
        report::aside(self.is_quiet, "taken back");
        Ok(())
    }

    fn regenerate(&mut self) -> Result<()> {
        let Some(answer) = self.messages.pop_if(|message| message.role == "assistant") else {
            bail!("there is no answer to make again");
        };
        let sampler = &mut self.settings.sampling;
        sampler.seed = sampler.seed.wrapping_add(1);
        if sampler.temperature == 0.0 {
            let note = "temperature is 0, the answer stays the same: /set temperature 0.7";
            report::aside(self.is_quiet, note);
        }
        let done = self.turn();
        if done.is_err() {
            self.messages.push(answer);
        }
        done
    }

    /// Shows a picture with the next question.
    fn show(&mut self, file: &Path) -> Result<()> {
        let is_next = self.shown.show(self.loaded.engine(), file, &self.messages)?;
        let place = if is_next { "is shown with your next question" } else { "is known again" };
        let note = format!("{} {place}", file.display());
        report::aside(self.is_quiet, &note);
        Ok(())
    }

    /// One turn. A turn that fails is taken back, and the conversation goes on.
    fn answer(&mut self, text: String) -> Result<()> {
        let question = self.shown.question(text);
        self.messages.push(question);
        let done = self.turn();
        if done.is_ok() {
            self.shown.asked();
        } else {
            self.messages.pop();
        }
        done
    }

    /// Answers the last message.
    fn turn(&mut self) -> Result<()> {
        self.interrupted.store(false, Ordering::Relaxed);
        let pictures = self.shown.of(&self.messages)?;
        let conversation = Conversation {
            pictures: pictures.iter().map(|seen| seen.rows()).collect(),
            shape: self.shape.clone(),
            thinking_budget: self.thinking_budget,
            ..Conversation::new(self.messages.clone())
        };
        let conversation = conversation.within(self.settings.max_tokens);
        let prepared = self.loaded.text().prepare(&conversation);
        let prepared = prepared.map_err(|err| refusal(self.loaded.tokenizer(), err))?;
        let mut settings = self.settings.clone();
        let may_guess = !self.is_demo
            || self.is_quiet
            || settings.sampling.temperature > 0.0
            || self.shape != AnswerShape::Text;
        let bar = Bar::new("reading", Unit::Tokens, self.is_quiet);
        let n_prompt = prepared.turn.tokens.len();
        let mut screen = Screen::new(bar, n_prompt, self.is_quiet, self.has_markdown);
        if !may_guess {
            settings.top_logprobs = Some(0);
            screen = screen.without_guesses(Certainty::new());
        }
        let engine = self.loaded.engine();
        engine.reset_stats();
        let cancelled = Arc::clone(&self.interrupted);
        let options = AnswerOptions { cancelled, ..AnswerOptions::default() };
        let asks = vec![Ask { prepared, pictures, settings, options }];
        let answer = self.loaded.answer_all(asks)?.remove(0);
        let answer = answers::show(answer, &mut screen);
        let said = screen.finish()?;
        let answer = answer?;
        self.last = Some(answer.clone());
        let Some(Said { thought, text }) = said else {
            // The guess was stopped, not the user's patience at its end.
            self.interrupted.store(false, Ordering::Relaxed);
            if self.has_stats {
                report::statistics(engine, &answer);
            }
            return Err(Guess.into());
        };
        if answer.finish == Finish::Cancelled && text.is_empty() && thought.is_empty() {
            bail!("stopped before it said anything: the question is taken back");
        }
        let thought = (!thought.is_empty()).then(|| thought.into());
        self.messages
            .push(Message { reasoning_content: thought, ..Message::new("assistant", text) });
        self.is_saved = false;
        if answer.finish == Finish::ContextFull {
            report::note(false, "the context is full: /clear begins anew, --ctx makes it larger");
        }
        match () {
            () if self.is_quiet => {}
            () if self.has_stats => report::statistics(engine, &answer),
            () => report::statistics_line(&answer),
        }
        answers::keep(self.loaded)
    }

    /// Keeps the conversation where `--session` says.
    fn keep(&mut self) -> Result<()> {
        match self.file {
            Some(file) if !self.is_saved => {
                self.save(file.path())?;
                self.is_saved = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn save_as(&mut self, file: &Path, input: &mut Input) -> Result<()> {
        match self.file.filter(|own| own.is(file)) {
            Some(own) => self.save(own.path())?,
            None => {
                let target = SessionFile::lock(file)?;
                let is_known = self.saved_as.iter().any(|known| known == target.path());
                if target.is_there() && !is_known {
                    confirm_overwriting(file, input)?;
                }
                target.clear_up();
                self.save(target.path())?;
                if !is_known {
                    self.saved_as.push(target.path().to_path_buf());
                }
            }
        }
        report::aside(self.is_quiet, &format!("kept in {}", file.display()));
        Ok(())
    }

    fn save(&mut self, file: &Path) -> Result<()> {
        let (messages, model) = (self.messages.clone(), Some(self.model.clone()));
        saved::write(file, &SavedConversation { messages, model })?;
        let snapshot = saved::snapshot_path(file);
        let saved = self.loaded.scheduler().with_session(move |session| session.save(&snapshot));
        Ok(saved??)
    }

    fn load(&mut self, file: &Path) -> Result<()> {
        let Some(saved) = saved::read(file)? else { bail!("{}: no such file", file.display()) };
        self.resume(file, saved)?;
        self.is_saved = false;
        Ok(())
    }

    /// Refuses to go on with another model's conversation in its own file, which
    /// would then be this one's.
    fn require_same_model(&self, file: &Path, saved: &SavedConversation) -> Result<()> {
        let other = match &saved.model {
            Some(model) if model.is_same(&self.model) => return Ok(()),
            Some(model) => format!("{} ({})", model.name, model.family),
            // The snapshot knows, if there is one.
            None => match Session::model_of(&saved::snapshot_path(file)) {
                Ok((family, identity)) if !self.is_identity(&identity) => family,
                _ => return Ok(()),
            },
        };
        bail!(
            "{}: a conversation with another model, {other}: open that one, \
             or begin another --session and /load this file there",
            file.display()
        );
    }

    /// Whether a snapshot with this identity is of this model, however many
    /// experts a token gets.
    fn is_identity(&self, identity: &str) -> bool {
        let engine = self.loaded.engine();
        [engine.identity(), engine.model_identity()].contains(&identity)
    }

    /// Goes on with a conversation. Without a snapshot that fits, the next turn
    /// reads it all again.
    fn resume(&mut self, file: &Path, saved: SavedConversation) -> Result<()> {
        self.messages = saved.messages;
        let snapshot = saved::snapshot_path(file);
        let load =
            move |session: &mut Session| session.load(&snapshot).map(|()| session.position());
        match self.loaded.scheduler().with_session(load)? {
            Ok(known) => {
                let n = self.messages.len();
                report::aside(self.is_quiet, &format!("{n} messages, {known} tokens are known"));
            }
            Err(err) => {
                let err = report::chain(&err.into());
                report::note(false, &format!("warning: the conversation is read again: {err}"));
            }
        }
        answers::warnings(self.loaded.engine());
        recall::show(&self.messages, self.is_quiet);
        Ok(())
    }
}

/// The model would have guessed; its question is taken back.
#[derive(Debug, thiserror::Error)]
#[error("the answer would be a guess")]
struct Guess;

/// Asks whether a file that this chat has not written may be overwritten; a pipe cannot be asked.
fn confirm_overwriting(file: &Path, input: &mut Input) -> Result<()> {
    let file = file.display();
    match input.confirm(&format!("{file} is there already: overwrite it? (y/n)"))? {
        Some(true) => Ok(()),
        Some(false) => bail!("nothing was saved"),
        None => bail!("{file} is there already: give another name, or remove it first"),
    }
}
