//! What there is to know of models, plans and answers, as JSON: facts that are added need no function.

use moeflux::{Finish, Model, Plan, Summary, TokenLogprob};
use moeflux_engine::{Alternative, Inspection, PlanRow};
use serde_json::{Value, json};

/// A plan, in the words of `moeflux plan` with JSON.
pub(crate) fn of_inspection(found: &Inspection) -> Value {
    let plan = &found.plan;
    let suggestion = |other: &Alternative| {
        json!({
            "option": other.change.option.name(),
            "value": other.change.value,
            "saves_bytes": other.saves(plan),
            "fits": other.plan.fits(),
        })
    };
    let mut all = of_plan(plan);
    all["family"] = json!(found.family);
    all["device"] = json!({
        "name": found.device.device.to_string(),
        "reason": found.device.to_string(),
    });
    all["suggestions"] = found.alternatives.iter().map(suggestion).collect();
    all
}

fn of_plan(plan: &Plan) -> Value {
    let row = |row: &PlanRow| json!({ "name": row.kind.name(), "bytes": row.bytes, "too_large": row.is_too_large });
    json!({
        "fits": plan.fits(),
        "rows": plan.rows().iter().map(row).collect::<Vec<Value>>(),
        "ctx": plan.ctx,
        "sessions": plan.n_sessions,
        "session_bytes": plan.session_bytes(),
        "total_bytes": plan.total_bytes(),
        "needed_bytes": plan.needed_bytes(),
        "memory_bytes": plan.memory.total,
        "available_bytes": plan.memory.available,
        "expert_bytes": plan.expert_bytes,
        "cache_bytes": plan.cache_bytes,
        "expert_io": plan.io_mode.to_string(),
        "bytes_per_token": plan.bytes_per_token,
        "expert_bytes_per_token": plan.working_set_bytes,
    })
}

/// What does not change while a model is open.
pub(crate) fn of_model(model: &Model) -> Value {
    let (engine, tokenizer) = (model.engine(), model.tokenizer());
    let shape = engine.shape();
    let ends: Vec<u32> = tokenizer.eos_ids().iter().map(|token| token.0).collect();
    json!({
        "family": model.family(),
        "identity": engine.identity(),
        "context_length": model.context_length(),
        "vocab": shape.vocab,
        "layers": shape.n_layers,
        "experts": shape.n_experts,
        "experts_per_token": shape.top_k,
        "end_tokens": ends,
        "has_chat_template": model.text().template(false).is_ok(),
        "device": {
            "name": engine.device().device.to_string(),
            "reason": engine.device().to_string(),
        },
        "threads": engine.n_threads(),
        "plan": of_plan(engine.plan()),
        "warnings": model.warnings(),
    })
}

/// What was counted since the model was opened, or the counts were reset.
pub(crate) fn of_work(model: &Model) -> Value {
    let (experts, steps) = (model.engine().stats(), model.scheduler().stats());
    let device = model.engine().device_stats().map(|device| {
        json!({
            "hits": device.hits,
            "uploads": device.uploads,
            "uploaded_bytes": device.uploaded_bytes,
            "upload_seconds": device.upload_ns as f64 / 1e9,
        })
    });
    json!({
        "experts": {
            "hits": experts.hits,
            "misses": experts.misses,
            "hit_rate": experts.hit_rate(),
            "bytes_read": experts.bytes_read,
            "read_seconds": experts.read_ns as f64 / 1e9,
            "stall_seconds": experts.stall_ns as f64 / 1e9,
            "evictions": experts.evictions,
            "cache_bytes": experts.cache_bytes,
            "resident": experts.resident,
            "prefetch_reads": experts.prefetch_reads,
            "prefetch_used": experts.prefetch_used,
        },
        "device": device,
        "answers": {
            "running": steps.n_running,
            "waiting": steps.n_waiting,
            "ended": steps.n_ended,
            "steps": steps.n_steps,
            "rows": steps.n_rows,
            "prompt_tokens": steps.n_prompt,
            "reused_tokens": steps.n_reused,
            "generated_tokens": steps.n_generated,
            "drafted_tokens": steps.speculation.drafted,
            "accepted_tokens": steps.speculation.accepted,
            "busy_seconds": steps.busy.as_secs_f64(),
        },
    })
}

/// The figures of an answer.
pub(crate) fn of_summary(summary: &Summary) -> Value {
    json!({
        "finish": finish(summary.finish),
        "stop": summary.stop,
        "prompt_tokens": summary.prompt_tokens,
        "reused_tokens": summary.reused_tokens,
        "generated_tokens": summary.generated_tokens,
        "thought_tokens": summary.thought_tokens,
        "first_token_seconds": summary.first_token.map(|time| time.as_secs_f64()),
        "decode_seconds": summary.decode.as_secs_f64(),
        "prompt_tok_s": summary.prompt_rate(),
        "decode_tok_s": summary.decode_rate(),
        "drafted_tokens": summary.speculation.drafted,
        "accepted_tokens": summary.speculation.accepted,
    })
}

fn finish(finish: Finish) -> &'static str {
    match finish {
        Finish::EndOfText => "end_of_text",
        Finish::Stop => "stop",
        Finish::MaxTokens => "max_tokens",
        Finish::ContextFull => "context_full",
        Finish::Cancelled => "cancelled",
    }
}

/// Tokens of an answer with their probabilities.
pub(crate) fn of_logprobs(tokens: &[TokenLogprob]) -> Value {
    let of_token = |token: &TokenLogprob| {
        let top = token
            .top
            .iter()
            .map(|(token, logprob)| json!({ "token": token.0, "logprob": logprob }));
        json!({
            "token": token.token.0,
            "logprob": token.logprob,
            "top": top.collect::<Vec<Value>>(),
        })
    };
    tokens.iter().map(of_token).collect()
}
