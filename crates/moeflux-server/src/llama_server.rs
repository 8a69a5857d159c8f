//! `/props` and `/slots`, by which clients of llama-server learn about a model and its load.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{ApiError, ApiResult};
use crate::reply::{self, Reply};
use crate::request::{Body, Request, object, read};
use crate::served::Served;
use crate::settings::Settings;
use crate::site::Site;

/// What llama-server says of itself.
#[derive(Debug, Serialize)]
struct Props<'a> {
    default_generation_settings: Defaults,
    total_slots: usize,
    model_alias: &'a str,
    model_path: String,
    chat_template: &'a str,
    chat_template_tool_use: &'a str,
    chat_template_caps: Caps,
    modalities: Modalities,
    bos_token: String,
    eos_token: String,
    build_info: &'static str,
    endpoint_slots: bool,
    endpoint_props: bool,
    endpoint_metrics: bool,
    webui: bool,
    is_sleeping: bool,
}

/// A session that is not at work.
#[derive(Debug, Serialize)]
struct Defaults {
    #[serde(flatten)]
    head: SlotHead,
    params: Params,
    prompt: &'static str,
    next_token: NextToken,
}

/// A session.
#[derive(Debug, Serialize)]
struct Slot {
    #[serde(flatten)]
    head: SlotHead,
    params: Params,
    next_token: NextToken,
}

#[derive(Debug, Serialize)]
struct SlotHead {
    id: usize,
    id_task: i64,
    n_ctx: usize,
    speculative: bool,
    is_processing: bool,
}

/// What a template can do.
#[derive(Debug, Serialize)]
struct Caps {
    supports_tools: bool,
    supports_tool_calls: bool,
    supports_parallel_tool_calls: bool,
}

/// What a model reads in addition to text.
#[derive(Debug, Serialize)]
struct Modalities {
    vision: bool,
    audio: bool,
}

/// Settings of a request that names none; -1 stands for no limit.
#[derive(Debug, Serialize)]
struct Params {
    n_predict: i64,
    max_tokens: i64,
    seed: u32,
    temperature: f64,
    top_k: usize,
    top_p: f64,
    min_p: f64,
    repeat_penalty: f64,
    repeat_last_n: i64,
    presence_penalty: f64,
    frequency_penalty: f64,
    stop: [String; 0],
    ignore_eos: bool,
    stream: bool,
    n_probs: usize,
}

#[derive(Debug, Serialize)]
struct NextToken {
    has_next_token: bool,
    has_new_line: bool,
    n_remain: i64,
    n_decoded: usize,
    stopping_word: &'static str,
}

/// The model that a request means, where it is loaded.
fn loaded(site: &Site, name: Option<&str>) -> ApiResult<Arc<Served>> {
    let Some(name) = name else {
        return site.fleet.roster.current().ok_or_else(|| unloaded("no model is loaded"));
    };
    let name = site.fleet.find(Some(name))?;
    let mut loaded = site.fleet.roster.loaded().into_iter().map(|loaded| loaded.served);
    loaded
        .find(|served| *served.model_name() == *name)
        .ok_or_else(|| unloaded("this model is not loaded"))
}

fn unloaded(what: &str) -> ApiError {
    let message = format!("{what}: the first request for an answer loads one");
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
}

/// The query of `/props`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct PropsQuery {
    model: Option<String>,
}

/// `/props`
pub(crate) async fn props(
    State(site): State<Arc<Site>>,
    query: Result<Query<PropsQuery>, QueryRejection>,
) -> ApiResult<Reply> {
    let name = query.ok().and_then(|Query(query)| query.model);
    Ok(props_of(&*loaded(&site, name.as_deref())?))
}

fn props_of(app: &Served) -> Reply {
    let token = |id| id_text(app, id);
    let (engine, tokenizer) = (app.loaded.engine(), app.text.tokenizer());
    let calls_tools = app.text.format().syntax().is_some();
    let props = Props {
        default_generation_settings: Defaults {
            head: SlotHead::new(app, 0, false),
            params: Params::of(app),
            prompt: "",
            next_token: NextToken::new(false),
        },
        total_slots: app.n_sessions,
        model_alias: app.model_name(),
        model_path: engine.root().display().to_string(),
        chat_template: tokenizer.chat_template_source(false).unwrap_or_default(),
        chat_template_tool_use: tokenizer.chat_template_source(true).unwrap_or_default(),
        chat_template_caps: Caps {
            supports_tools: calls_tools,
            supports_tool_calls: calls_tools,
            supports_parallel_tool_calls: calls_tools,
        },
        modalities: Modalities { vision: app.facts.sees, audio: false },
        bos_token: tokenizer.bos_id().map(token).unwrap_or_default(),
        eos_token: tokenizer.eos_id().map(token).unwrap_or_default(),
        build_info: concat!("moeflux-", env!("CARGO_PKG_VERSION")),
        endpoint_slots: true,
        endpoint_props: false,
        endpoint_metrics: true,
        webui: true,
        is_sleeping: false,
    };
    reply::json(StatusCode::OK, &props)
}

fn id_text(app: &Served, id: moeflux_engine::TokenId) -> String {
    String::from_utf8_lossy(app.text.tokenizer().token_bytes(id)).into_owned()
}

/// The query of `/slots`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct SlotsQuery {
    fail_on_no_slot: Option<String>,
    model: Option<String>,
}

/// `/slots`: an entry for each session. Sessions are alike, so the first ones stand for those that
/// are at work.
pub(crate) async fn slots(
    State(site): State<Arc<Site>>,
    query: Result<Query<SlotsQuery>, QueryRejection>,
) -> ApiResult<Reply> {
    let query = query.map(|Query(query)| query).unwrap_or_default();
    let app = loaded(&site, query.model.as_deref())?;
    let n_running = app.loaded.scheduler().stats().n_running;
    let fails = query.fail_on_no_slot;
    if fails.is_some_and(|value| value != "0") && n_running >= app.n_sessions {
        let message = "all sessions are at work";
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message));
    }
    let slot = |id: usize| {
        let is_processing = id < n_running;
        Slot {
            head: SlotHead::new(&app, id, is_processing),
            params: Params::of(&app),
            next_token: NextToken::new(is_processing),
        }
    };
    let slots: Vec<Slot> = (0..app.n_sessions).map(slot).collect();
    Ok(reply::json(StatusCode::OK, &slots))
}

impl SlotHead {
    fn new(app: &Served, id: usize, is_processing: bool) -> SlotHead {
        let n_ctx = app.loaded.engine().plan().ctx;
        SlotHead { id, id_task: -1, n_ctx, speculative: false, is_processing }
    }
}

impl Params {
    fn of(app: &Served) -> Params {
        let sampler = Settings::of(app).sampler;
        let max_tokens = or_no_limit(app.options().max_tokens);
        Params {
            n_predict: max_tokens,
            max_tokens,
            seed: u32::MAX,
            temperature: sampler.temperature.into(),
            top_k: sampler.top_k,
            top_p: sampler.top_p.into(),
            min_p: sampler.min_p.into(),
            repeat_penalty: sampler.repeat_penalty.into(),
            repeat_last_n: or_no_limit(sampler.repeat_window),
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            stop: [],
            ignore_eos: false,
            stream: true,
            n_probs: 0,
        }
    }
}

fn or_no_limit(limit: Option<usize>) -> i64 {
    limit.map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX))
}

impl NextToken {
    fn new(is_processing: bool) -> NextToken {
        NextToken {
            has_next_token: is_processing,
            has_new_line: false,
            n_remain: -1,
            n_decoded: 0,
            stopping_word: "",
        }
    }
}

/// A request about a model of the server.
#[derive(Clone, Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct ModelRequest {
    /// Its name.
    model: String,
}

object!(ModelRequest);

impl Body for ModelRequest {
    const HINTS: &'static [&'static [&'static str]] = &[];
}

#[derive(Debug, Serialize)]
struct Success {
    success: bool,
}

/// `/models/load`: loads a model, and answers when it is loaded.
pub(crate) async fn load(site: Arc<Site>, body: Value) -> ApiResult<Reply> {
    let Request { body, ignored } = read::<ModelRequest>(body)?;
    let found = site.fleet.model(&body.model)?;
    let ignored = ignored.accept_by(&site.common.journal)?;
    drop(site.fleet.lease(Some(found.name())).await?);
    Ok(ignored.mark(reply::json(StatusCode::OK, &Success { success: true })))
}

/// `/models/unload`: unloads a model when its last answer has ended.
pub(crate) async fn unload(site: Arc<Site>, body: Value) -> ApiResult<Reply> {
    let Request { body, ignored } = read::<ModelRequest>(body)?;
    let found = site.fleet.model(&body.model)?;
    let ignored = ignored.accept_by(&site.common.journal)?;
    site.fleet.dismiss(found.name());
    Ok(ignored.mark(reply::json(StatusCode::OK, &Success { success: true })))
}
