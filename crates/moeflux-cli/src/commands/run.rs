//! `moeflux run`: one prompt, one answer.

use std::ffi::OsStr;

use anyhow::Result;
use moeflux::{AnswerOptions, Ask, Model, picture_message};
use moeflux_text::{AnswerShape, Conversation, Prepared};

use super::answers::{self, refusal};
use super::certainty::Certainty;
use super::piped::{self, Form};
use super::schema::shape;
use super::{Printer, opening, probabilities};
use crate::args::RunArgs;
use crate::error::UsageError;
use crate::pictures::see_files;
use crate::progress::{Bar, Unit};
use crate::{demo, model, report};

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let shape = shape(args.schema.as_deref())?;
    if args.raw && args.sample.thinking_budget.is_some() {
        let message = "--thinking-budget does not go with --raw: a raw prompt has no thoughts";
        return Err(UsageError(String::from(message)).into());
    }
    if args.raw && !args.image.is_empty() {
        let message = "--image does not go with --raw: images are shown in conversations";
        return Err(UsageError(String::from(message)).into());
    }
    let prompt = prompt(args)?;
    let engine = model::open_cached(&args.model, args.prompt_cache.kept(), 1, args.quiet)?;
    let model = answers::model(engine, args.quiet)?;
    let mut settings = answers::settings(&args.sample, model.tokenizer());
    let pictures = see_files(model.engine(), &args.image, "--image", args.quiet)?;
    let prepared = if args.raw {
        prepare_raw(&model, &prompt, &shape)?
    } else {
        let mut messages = opening(args.system.as_deref());
        messages.push(picture_message("user", &pictures, prompt));
        let asked = Conversation {
            pictures: pictures.iter().map(|seen| seen.rows()).collect(),
            shape,
            thinking_budget: args.sample.thinking_budget,
            ..Conversation::new(messages)
        };
        prepare(&model, asked.within(settings.max_tokens))?
    };
    let bar = Bar::new("reading the prompt", Unit::Tokens, args.quiet);
    let is_demo = args.model.model.is_none();
    // Who asks for the answer alone, for a draw, for a form or for probabilities gets what the model says.
    let may_guess = !is_demo
        || args.quiet
        || args.raw
        || settings.sampling.temperature > 0.0
        || args.schema.is_some()
        || args.logprobs.is_some();
    settings.top_logprobs = args.logprobs.or((!may_guess).then_some(0));
    let certainty = (!may_guess).then(Certainty::new);
    let mut printer = Printer::new(bar, prepared.turn.tokens.len(), certainty);
    let options = AnswerOptions { is_last: true, ..AnswerOptions::default() };
    let answer = model.answer_all(vec![Ask { prepared, pictures, settings, options }])?.remove(0);
    let summary = answers::show(answer, &mut printer)?;
    let tokens = std::mem::take(&mut printer.tokens);
    let is_withheld = printer.finish()?;
    // After the answer: a run that fails prints its error alone.
    answers::note_sampling(&args.sample, model.tokenizer(), args.quiet);
    answers::note_thinking(&args.sample, &model, args.quiet);
    if is_demo {
        let shown = args.prompt.as_deref().and_then(OsStr::to_str).unwrap_or_default();
        demo::introduce(shown, is_withheld, args.quiet);
    }
    let engine = model.engine();
    if args.logprobs.is_some() {
        for line in probabilities::lines(model.tokenizer(), &tokens) {
            report::aside(false, &line);
        }
    }
    report::device_aside(args.quiet, engine.device());
    match () {
        () if args.quiet => {}
        () if args.stats => report::statistics(engine, &summary),
        () if is_withheld => {}
        () => report::statistics_line(&summary),
    }
    answers::keep(&model)
}

/// A question by the model's template. Where the model does not write in channels and the answer may
/// be any text, its thoughts are part of what is printed.
fn prepare(model: &Model, conversation: Conversation) -> Result<Prepared> {
    let is_text = conversation.shape == AnswerShape::Text;
    let prepared = model.text().prepare(&conversation);
    let prepared = prepared.map_err(|err| refusal(model.tokenizer(), err))?;
    if is_text && model.text().format().can_call_behind_text() {
        Ok(prepared.read_as_text())
    } else {
        Ok(prepared)
    }
}

/// A prompt that goes to the model as it is.
fn prepare_raw(model: &Model, prompt: &str, shape: &AnswerShape) -> Result<Prepared> {
    let prepared = model.text().prepare_text(prompt, shape);
    let prepared = prepared.map_err(|err| refusal(model.tokenizer(), err))?;
    if prepared.turn.tokens.is_empty() {
        let file = model.tokenizer().file().display();
        let message = format!("{file} has no tokens for this prompt: give another one");
        return Err(UsageError(message).into());
    }
    Ok(prepared)
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
