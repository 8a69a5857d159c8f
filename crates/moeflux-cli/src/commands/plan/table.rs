//! Where memory goes, row by row.

use std::fmt::Write as _;

use moeflux_engine::{Alternative, Plan, RowKind};

use crate::bytes::show;

/// The rows of a plan, and what there is for them.
pub(super) fn table(plan: &Plan) -> String {
    let mut text = String::new();
    let mut line = |name: &str, bytes: u64, note: &str| {
        let line = format!("{name:<22} {:>12}  {note}", show(bytes));
        let _ = writeln!(text, "{}", line.trim_end());
    };
    for row in plan.rows() {
        let note = if row.is_too_large {
            format!("TOO LARGE; {}", note(plan, row.kind))
        } else {
            note(plan, row.kind)
        };
        line(row.kind.name(), row.bytes, note.trim_end_matches("; "));
    }
    line("total", plan.total_bytes(), "");
    if plan.headroom_bytes > 0 {
        line("headroom", plan.headroom_bytes, "free for others: the cache shrinks in time");
    }
    let free = format!("{} are free", show(plan.memory.available));
    line("usable memory", plan.memory.total, &free);
    text
}

fn note(plan: &Plan, kind: RowKind) -> String {
    match kind {
        RowKind::Weights => String::new(),
        RowKind::Sessions => {
            let per_position = show(plan.kv_bytes_per_position);
            let sessions = if plan.n_sessions == 1 { "session" } else { "sessions" };
            let windows = match plan.window_bytes {
                0 => String::new(),
                bytes => format!(", windows {}", show(bytes)),
            };
            let (n, ctx) = (plan.n_sessions, plan.ctx);
            format!("{n} {sessions} of {ctx}, {per_position} a position{windows}")
        }
        RowKind::Checkpoints => String::from("copies of recurrent states, at most"),
        RowKind::Activations => format!("prefill in chunks of {} rows", plan.chunk),
        RowKind::Program => String::from("with the tokenizer and the list of tensors"),
        RowKind::Cache => {
            let share = 100.0 * plan.cached_share();
            let mode = plan.io_mode.to_string();
            let mode = if plan.are_experts_derived { "converted when read" } else { &mode };
            format!("{share:.0} % of experts' {}, {mode}", show(plan.expert_bytes))
        }
        RowKind::Copies => String::from(match plan.device_expert_bytes {
            None | Some(0) => "none: the GPU reads the expert cache",
            Some(bytes) if bytes == plan.expert_bytes => "all experts: the cache only loads them",
            Some(_) => "beside the cache: the GPU shares the memory",
        }),
        RowKind::Prompts => String::from("evaluated ones whose sessions others have"),
        RowKind::Tower => String::from("with pictures; the expert cache has it without"),
        RowKind::Rows => {
            let share = 100.0 * plan.row_cache_bytes as f64 / plan.table_bytes.max(1) as f64;
            let share = if share < 1.0 { 0.0 } else { share.min(100.0) };
            format!(
                "{share:.0} % of tables' {}, rows read as tokens need them",
                show(plan.table_bytes)
            )
        }
    }
}

/// What each change saves, and whether it is enough.
pub(super) fn savings(plan: &Plan, alternatives: &[Alternative]) -> String {
    let mut text = String::from("\n");
    let saving = alternatives.iter().filter(|other| other.saves(plan) > 0);
    let mut n_shown = 0;
    for other in saving {
        let enough = if other.plan.fits() { ": enough" } else { "" };
        let saved = show(other.saves(plan));
        let _ = writeln!(text, "{:<26} saves {saved}{enough}", other.change.to_string());
        n_shown += 1;
    }
    if n_shown == 0 {
        text.push_str("no flag makes it fit: choose a smaller model, or fewer bits\n");
    }
    text
}
