//! What each command takes of the same model: they differ in how many answers they generate at once.

use moeflux_engine::{EngineError, Forecast, Inspection, MemoryOptions, Plan, PromptMemory};
use serde_json::{Map, Value, json};

use crate::bytes::show;
use crate::values::Sessions;

/// Commands that plan alike, and their plan.
pub(super) struct Use {
    commands: &'static [&'static str],
    plan: Plan,
}

/// The plans of commands with these options and the number of sessions that was asked for.
pub(super) fn of(
    facts: &Inspection,
    memory: &MemoryOptions,
    asked: Option<Sessions>,
) -> Result<Vec<Use>, EngineError> {
    let plan = |commands, sessions: Sessions, prompts| {
        let mut memory = memory.clone();
        memory.prompts = prompts;
        sessions.set(&mut memory);
        facts.plan_with(memory).map(|plan| Use { commands, plan })
    };
    let of_server = Sessions::of_server(asked, memory.ctx);
    Ok(vec![
        plan(&["run", "chat"], Sessions::Exactly(1), PromptMemory::Off)?,
        plan(&["serve"], of_server, PromptMemory::Planned)?,
        plan(&["launch"], Sessions::of_launch(asked), PromptMemory::Planned)?,
    ])
}

/// A table of what commands take.
pub(super) fn text(uses: &[Use], forecast: Option<&Forecast>) -> String {
    let heads = ["their memory", "total", "cached"];
    let rate_head = forecast.map_or("", |_| "tok/s");
    let mut text = line("with these flags", "sessions", heads, rate_head);
    for Use { commands, plan } in uses {
        let sessions = format!("{} of {}", plan.n_sessions, plan.ctx);
        let held = show(plan.session_bytes().saturating_mul(plan.n_sessions as u64));
        let name = commands.join(", ");
        text.push_str(&if plan.fits() {
            let rate = forecast.and_then(|forecast| forecast.of_plan(plan).streamed);
            let rate = rate.map_or(String::new(), |rate| rate.to_string());
            let share = format!("{:.0} %", 100.0 * plan.cached_share());
            line(&name, &sessions, [&held, &show(plan.total_bytes()), &share], &rate)
        } else {
            let needed = show(plan.needed_bytes());
            line(&name, &sessions, [&held, &needed, "-"], "does not fit")
        });
    }
    text + &prompts_text(uses)
}

/// What servers keep of evaluated prompts whose sessions others have.
fn prompts_text(uses: &[Use]) -> String {
    let mut text = String::new();
    for Use { commands, plan } in uses.iter().filter(|one| one.plan.prompt_cache_bytes > 0) {
        let (name, bytes) = (commands.join(", "), show(plan.prompt_cache_bytes));
        text.push_str(&format!(
            "{name}: {bytes} of its total for evaluated prompts without a session\n"
        ));
    }
    text
}

fn line(name: &str, sessions: &str, [held, total, share]: [&str; 3], rate: &str) -> String {
    format!("{name:<17} {sessions:<13} {held:>12} {total:>11} {share:>7}  {rate}")
        .trim_end()
        .to_owned()
        + "\n"
}

pub(super) fn to_json(uses: &[Use], forecast: Option<&Forecast>) -> Value {
    let of = |plan: &Plan| {
        let rate = forecast.and_then(|forecast| forecast.of_plan(plan).streamed);
        let rate = rate.filter(|_| plan.fits());
        json!({
            "sessions": plan.n_sessions,
            "ctx": plan.ctx,
            "session_bytes": plan.session_bytes(),
            "cache_bytes": plan.cache_bytes,
            "prompt_cache_bytes": plan.prompt_cache_bytes,
            "total_bytes": plan.total_bytes(),
            "needed_bytes": plan.needed_bytes(),
            "fits": plan.fits(),
            "tok_s_low": rate.map(|rate| rate.low),
            "tok_s_high": rate.map(|rate| rate.high),
        })
    };
    let all = uses
        .iter()
        .flat_map(|one| one.commands.iter().map(|name| ((*name).to_owned(), of(&one.plan))));
    Value::Object(all.collect::<Map<String, Value>>())
}
