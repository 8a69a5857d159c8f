//! What each command takes of the same model: they differ in how many answers they generate at once.

use std::fmt::Write as _;

use moeflux_engine::{EngineError, Forecast, Inspection, MemoryOptions, Plan};
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
    let all: [(&[&str], Sessions); 3] = [
        (&["run", "chat"], Sessions::Exactly(1)),
        (&["serve"], Sessions::of_server(asked, memory.ctx)),
        (&["launch"], Sessions::of_launch(asked)),
    ];
    let plan = |(commands, sessions): (&'static [&'static str], Sessions)| {
        let mut memory = memory.clone();
        sessions.set(&mut memory);
        facts.plan_with(memory).map(|plan| Use { commands, plan })
    };
    all.into_iter().map(plan).collect()
}

pub(super) fn text(uses: &[Use], forecast: Option<&Forecast>) -> String {
    let mut text = String::from("\nwith these flags:\n");
    for Use { commands, plan } in uses {
        let names = commands.join(", ");
        let _ = writeln!(text, "{names:<10} {}", in_words(plan, forecast));
    }
    text
}

fn in_words(plan: &Plan, forecast: Option<&Forecast>) -> String {
    let (n, ctx) = (plan.n_sessions, plan.ctx);
    let s = if n == 1 { "" } else { "s" };
    let sessions = plan.session_bytes().saturating_mul(n as u64);
    let sizes = format!("{n} session{s} of {ctx} in {}", show(sessions));
    if !plan.fits() {
        let (needed, usable) = (show(plan.needed_bytes()), show(plan.usable_bytes()));
        return format!("{sizes}: does not fit, needs {needed} of {usable}");
    }
    let share = 100.0 * plan.cached_share();
    let total = show(plan.total_bytes());
    let rate = forecast.and_then(|forecast| forecast.of_plan(plan).streamed);
    let rate = rate.map_or(String::new(), |rate| format!(", about {rate} tok/s"));
    format!("{sizes}, total {total} (cache: {share:.0} % of experts){rate}")
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
