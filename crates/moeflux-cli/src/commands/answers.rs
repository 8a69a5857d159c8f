//! Answers of `run` and `chat`: from a model that is open to what is shown.

use std::ops::ControlFlow;

use anyhow::{Result, anyhow};
use moeflux::{Answer, Model, Sampling, SchedulerOptions, Settings, Summary, TokenLogprob, Update};
use moeflux_engine::Engine;
use moeflux_text::{Delta, PromptError, Tokenizer};

use crate::args::SampleArgs;
use crate::report;
use crate::turns::{explain, no_template};

/// The model of an engine, for one answer at a time.
pub(super) fn model(engine: Engine, is_quiet: bool) -> Result<Model> {
    let model = Model::of_engine(engine, SchedulerOptions { n_sessions: 1, max_waiting: 1 })?;
    for warning in model.tokenizer().warnings() {
        report::note(is_quiet, &format!("warning: {warning}"));
    }
    Ok(model)
}

/// Says once how tokens are chosen where neither flags nor the model's makers say it.
pub(super) fn note_sampling(args: &SampleArgs, tokenizer: &Tokenizer, is_quiet: bool) {
    if args.temperature.is_none()
        && let Some(note) = Sampling::note(tokenizer.generation_defaults())
    {
        report::aside(is_quiet, &format!("{note}; --temperature 0 always takes the likeliest"));
    }
}

/// Says where a limit of thoughts changes nothing.
pub(super) fn note_thinking(args: &SampleArgs, model: &Model, is_quiet: bool) {
    if args.thinking_budget.is_some() && !model.text().format().can_think() {
        report::note(is_quiet, "the model marks no thoughts: --thinking-budget changes nothing");
    }
}

/// How tokens are chosen, by flags and by what the model's makers advise.
pub(super) fn settings(args: &SampleArgs, tokenizer: &Tokenizer) -> Settings {
    Settings {
        max_tokens: args.max_tokens,
        stop: args.stop.clone(),
        sampling: args.sampler(tokenizer.generation_defaults()),
        ..Settings::default()
    }
}

/// Why a prompt is refused, in flags, with the file of the model that it comes from.
pub(super) fn refusal(tokenizer: &Tokenizer, err: PromptError) -> anyhow::Error {
    match err {
        PromptError::Text(err) => explain(tokenizer, err),
        PromptError::NoTemplate => no_template(tokenizer),
        PromptError::Constraint { option, source } => anyhow!("{option}: {source}"),
        PromptError::Vocabulary(err) => anyhow!("--schema: {err}"),
        err => err.into(),
    }
}

/// Shows an answer while it is made.
pub(super) trait View {
    /// Receives how many tokens of the prompt are done, reused ones included.
    fn prompt_progress(&mut self, n_done: usize);

    /// Receives more of the answer, and its tokens where they were asked for. Breaks where no more is
    /// wanted.
    fn add(&mut self, deltas: Vec<Delta>, tokens: &[TokenLogprob]) -> ControlFlow<()>;
}

/// Shows an answer to its end.
///
/// # Errors
/// Where a step fails.
pub(super) fn show(mut answer: Answer<'_>, view: &mut dyn View) -> Result<Summary> {
    while let Some(update) = answer.next_update() {
        match update? {
            Update::Prompt { n_done, .. } => view.prompt_progress(n_done),
            Update::Text { deltas, tokens } => {
                let next = view.add(deltas, &tokens);
                if next.is_break() {
                    answer.cancel();
                }
            }
            // There are no other kinds.
            _ => {}
        }
    }
    Ok(answer.summary().cloned().expect("an answer that ends without an error has figures"))
}

/// Waits until the prompt cache has what it keeps of the last answer, and tells what it met.
pub(super) fn keep(model: &Model) -> Result<()> {
    model.scheduler().with_session(|_| ())?;
    warnings(model.engine());
    Ok(())
}

/// Tells what the prompt cache met.
pub(super) fn warnings(engine: &Engine) {
    for warning in engine.take_warnings() {
        report::note(false, &format!("warning: {warning}"));
    }
}
