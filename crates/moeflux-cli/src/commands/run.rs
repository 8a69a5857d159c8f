//! `moeflux run`: one prompt, one answer.

use std::io::Read;

use anyhow::{Context, Result};
use moeflux_engine::{Prompt, generate};
use moeflux_text::{Markup, Message, OutputFormat, OutputParser, Special, Turn};

use super::turns::{explain, store, turn};
use super::{Printer, chat_template, generate_options, opening};
use crate::args::RunArgs;
use crate::error::UsageError;
use crate::progress::{Bar, Unit};
use crate::{demo, model, report};

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let prompt = prompt(args)?;
    let shown = prompt.clone();
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
        turn(&tokenizer, &chat_template(&tokenizer)?, &messages, engine.plan().ctx)?
    };
    let Turn { tokens, checkpoints } = &prompt;
    let bar = Bar::new("reading the prompt", Unit::Tokens, args.quiet);
    let channels = has_channels.then(|| OutputParser::new(&format, None, false));
    let mut printer = Printer::new(bar, tokens.len(), channels);
    let mut session = engine.session();
    let prompt = Prompt { tokens, checkpoints };
    let answer = generate(&mut session, &tokenizer, prompt, &options, &mut printer)?;
    printer.finish()?;
    // After the answer: a run that fails prints its error alone.
    demo::introduce(args.model.model.as_deref(), &shown, args.quiet);
    report::device_aside(args.quiet, engine.device());
    match () {
        () if args.quiet => {}
        () if args.stats => report::statistics(&engine, &answer),
        () => report::statistics_line(&answer),
    }
    store(&engine, &mut session, checkpoints, false);
    Ok(())
}

fn prompt(args: &RunArgs) -> Result<String> {
    let text = match &args.prompt {
        Some(prompt) => match prompt.to_str() {
            Some(text) => text.to_owned(),
            None => return Err(UsageError(String::from("the prompt is not UTF-8")).into()),
        },
        None => {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).context("cannot read standard input")?;
            String::from_utf8(bytes).map_err(|err| {
                let at = err.utf8_error().valid_up_to();
                UsageError(format!("standard input is not UTF-8 at byte {at}"))
            })?
        }
    };
    if text.trim().is_empty() {
        let message = "the prompt is empty: give it as an argument or on standard input";
        return Err(UsageError(String::from(message)).into());
    }
    Ok(text)
}
