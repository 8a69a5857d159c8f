//! What the page shows of the model and of what goes on.

use moeflux_core::system::resident_memory_bytes;
use serde_json::{Value, json};

use crate::app::App;
use crate::settings::Settings;

/// What does not change, and what does.
pub(crate) fn status(app: &App) -> Value {
    let (shape, plan) = (app.loaded.engine().shape(), app.loaded.engine().plan());
    let (load, store) = (app.loaded.scheduler().stats(), app.loaded.engine().stats());
    let sampler = Settings::of(app).sampler;
    let introduction = app.options.introduction.as_ref();
    let introduction =
        introduction.map(|demo| json!({"about": demo.about, "questions": demo.questions}));
    json!({
        "model": {
            "name": app.model_name(),
            "introduction": introduction,
            "family": app.loaded.engine().family(),
            "layers": shape.n_layers,
            "experts": shape.n_experts,
            "experts_per_token": shape.top_k,
            "context": plan.ctx,
            "thinks": app.text.format().can_think(),
            "calls_tools": app.text.format().syntax().is_some(),
            "sampling": {
                "temperature": sampler.temperature,
                "top_k": sampler.top_k,
                "top_p": sampler.top_p,
                "min_p": sampler.min_p,
                "repetition_penalty": sampler.repeat_penalty,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
            },
        },
        "memory": {
            "resident_bytes": resident_memory_bytes(),
            "planned_bytes": plan.total_bytes(),
            "weights_bytes": plan.resident_bytes,
            "experts_bytes": plan.expert_bytes,
            "cache_bytes": store.cache_bytes,
            "session_bytes": plan.session_bytes(),
            "expert_io": plan.io_mode.to_string(),
        },
        "now": {
            "uptime_seconds": app.started.elapsed().as_secs_f64(),
            "running": load.n_running,
            "waiting": load.n_waiting,
            "sessions": app.options.n_sessions,
            "prompt_tokens": load.n_prompt,
            "reused_tokens": load.n_reused,
            "generated_tokens": load.n_generated,
            "draft_tokens": load.speculation.drafted,
            "accepted_tokens": load.speculation.accepted,
            "rows": load.n_rows,
            "expert_hits": store.hits,
            "expert_misses": store.misses,
            "bytes_read": store.bytes_read,
        },
    })
}
