//! `moeflux run`: one prompt, one answer.

use std::ffi::OsStr;

use anyhow::Result;
use moeflux_engine::{Prompt, generate};
use moeflux_text::{Markup, Message, OutputFormat, OutputParser, Special, Turn};

use super::certainty::Certainty;
use super::piped::{self, Form};
use super::turns::{explain, store, turn};
use super::{Printer, chat_template, generate_options, opening};
use crate::args::RunArgs;
use crate::error::UsageError;
use crate::progress::{Bar, Unit};
use crate::{demo, model, report};

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let prompt = prompt(args)?;
    let engine = model::open_cached(&args.model, &args.prompt_cache, 1, args.quiet)?;
    let tokenizer = engine.tokenizer()?;
    let mut options = generate_options(&args.sample, &tokenizer);
    let format = if args.raw { OutputFormat::plain() } else { OutputFormat::of(&tokenizer) };
    let has_channels = !format.can_call_behind_text();
    if has_channels {
        options.special = Special::Show;
    }
    let prompt = if args.raw {
        let tokens = tokenizer.encode_prompt(&prompt, Markup::Parse, engine.plan().ctx);
        let tokens = tokens.map_err(|err| explain(&tokenizer, err))?;
        if tokens.is_empty() {
            let file = tokenizer.file().display();
            let message = format!("{file} has no tokens for this prompt: give another one");
            return Err(UsageError(message).into());
        }
        Turn::raw(tokens)
    } else {
        let mut messages = opening(args.system.as_deref());
        messages.push(Message::new("user", prompt));
        let turn = turn(&tokenizer, &chat_template(&tokenizer)?, &messages, engine.plan().ctx)?;
        options.no_calls = format.no_calls(&messages, &turn.tokens);
        turn
    };
    let Turn { tokens, checkpoints } = &prompt;
    let bar = Bar::new("reading the prompt", Unit::Tokens, args.quiet);
    let channels = has_channels.then(|| OutputParser::new(&format, None, false));
    let is_demo = args.model.model.is_none();
    // Who asks for the answer alone, or for a draw, gets what the model says.
    let may_guess = !is_demo || args.quiet || args.raw || options.sampler.temperature > 0.0;
    let certainty = (!may_guess).then(Certainty::new);
    let mut printer = Printer::new(bar, tokens.len(), channels, certainty);
    let mut session = engine.session();
    let prompt = Prompt { tokens, checkpoints };
    let answer = generate(&mut session, &tokenizer, prompt, &options, &mut printer)?;
    let is_withheld = printer.finish()?;
    // After the answer: a run that fails prints its error alone.
    if is_demo {
        let shown = args.prompt.as_deref().and_then(OsStr::to_str).unwrap_or_default();
        demo::introduce(shown, is_withheld, args.quiet);
    }
    match () {
        () if args.quiet => {}
        () if args.stats => report::statistics(&engine, &answer),
        () if is_withheld => {}
        () => report::statistics_line(&answer),
    }
    store(&engine, &mut session, checkpoints, false);
    Ok(())
}

/// The prompt of the command line and what standard input brings to it; `-`, or no prompt, is
/// standard input alone.
fn prompt(args: &RunArgs) -> Result<String> {
    let form = if args.raw { Form::Raw } else { Form::Text };
    let text = match args.prompt.as_deref().filter(|prompt| *prompt != "-") {
        Some(prompt) => {
            let Some(prompt) = prompt.to_str() else {
                return Err(UsageError(String::from("the prompt is not UTF-8")).into());
            };
            match piped::beside_a_prompt(form, args.quiet)? {
                Some(input) => piped::joined(prompt, &input),
                None => prompt.to_owned(),
            }
        }
        None => piped::whole(form, args.quiet)?,
    };
    if text.trim().is_empty() {
        let message = "the prompt is empty: give it as an argument or on standard input";
        return Err(UsageError(String::from(message)).into());
    }
    Ok(text)
}
