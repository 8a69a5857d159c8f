//! The routes, and the layers around them.

use std::any::Any;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{MatchedPath, Path, Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::{MethodFilter, MethodRouter, get, on, post};
use serde_json::Value;
use tower_http::catch_panic::CatchPanicLayer;

use crate::access::{self, AccessLine};
use crate::anthropic::messages;
use crate::app::App;
use crate::auth::Gate;
use crate::body::JsonBody;
use crate::early::{self, Style};
use crate::error::{ApiError, ApiResult};
use crate::guarded::Guarded;
use crate::kept::Owner;
#[cfg(feature = "markdown")]
use crate::markdown;
use crate::ollama::keep_alive;
use crate::ollama::reply::Shape;
use crate::openai::responses::{self, kept};
use crate::openai::{chat, completions, models};
use crate::reply::{self, Dialect, Reply};
use crate::site::Site;
use crate::{exposition, infill, llama_server, ollama, openapi, page, prompt, status};

/// A path with the handlers of its methods.
type Route = (&'static str, MethodRouter<Arc<Site>>);

/// The routes that `/openapi.json` describes. All but `/health` need a key where there are keys.
pub(crate) fn described() -> Vec<Route> {
    vec![
        ("/health", get(health)),
        ("/metrics", read(|site| Ok(exposition::reply(&site)))),
        ("/status", read(|site| Ok(reply::json(StatusCode::OK, &status::status(&site))))),
        ("/openapi.json", read(|site| Ok(reply::json(StatusCode::OK, &openapi::describe(&site))))),
        ("/v1/models", read(|site| Ok(reply::json(StatusCode::OK, &models::list(&site.fleet))))),
        ("/v1/models/{*model}", get(model)),
        ("/v1/chat/completions", post_streaming(Dialect::OpenAi, chat::handle)),
        ("/v1/completions", post_streaming(Dialect::OpenAi, completions::handle)),
        ("/v1/responses", post(respond)),
        ("/v1/responses/{id}", get(kept_response).delete(delete_response)),
        ("/v1/responses/{id}/input_items", get(kept_input)),
        ("/v1/messages", post_streaming(Dialect::Anthropic, messages::handle)),
        ("/v1/messages/count_tokens", post_json(messages::count_tokens)),
        ("/infill", post_streaming(Dialect::OpenAi, infill::handle)),
        ("/apply-template", post_json(prompt::apply_template)),
        ("/tokenize", post_json(prompt::tokenize)),
        ("/detokenize", post_json(async |app, body| prompt::detokenize(&app, body))),
    ]
}

/// Paths of OpenAI's API, and of clients of it, for what no model here makes.
const NOT_MADE: [&str; 7] = [
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/moderations",
    "/v1/images/generations",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
];

/// Routes that need a key as well: those that clients of llama-server probe, and the page's own.
fn undescribed() -> Vec<Route> {
    let not_made = NOT_MADE.map(|path| (path, post(not_made)));
    let mut routes = vec![
        ("/props", get(llama_server::props)),
        ("/slots", get(llama_server::slots)),
        // Clients of llama-server write these without `/v1`, which is added.
        ("/v1/models/load", to_site(MethodFilter::POST, llama_server::load)),
        ("/v1/models/unload", to_site(MethodFilter::POST, llama_server::unload)),
        #[cfg(feature = "markdown")]
        ("/page/render", to_site(MethodFilter::POST, async |_, body| markdown::handle(body).await)),
    ];
    routes.extend(not_made);
    routes
}

/// Ollama's API. Its requests are as Ollama describes them.
fn ollama_routes() -> Vec<Route> {
    use ollama::manage::{fixed, no_embeddings};
    vec![
        ("/api/version", read(|_| Ok(ollama::models::version()))),
        ("/api/tags", read(|site| Ok(ollama::models::tags(&site.fleet)))),
        ("/api/ps", read(|site| Ok(ollama::models::running(&site.fleet)))),
        ("/api/show", to_site(MethodFilter::POST, ollama::show::handle)),
        ("/api/chat", post_ollama(Shape::Chat, ollama::chat::handle)),
        ("/api/generate", post_ollama(Shape::Text { prompt: None }, ollama::generate::handle)),
        ("/api/pull", to_site(MethodFilter::POST, ollama::manage::pull)),
        ("/api/embed", post(no_embeddings)),
        ("/api/embeddings", post(no_embeddings)),
        ("/api/create", post(fixed)),
        ("/api/copy", post(fixed)),
        ("/api/push", post(fixed)),
        ("/api/delete", to_site(MethodFilter::DELETE, ollama::manage::delete)),
        ("/api/blobs/{digest}", post(fixed).head(ollama::manage::no_blob)),
    ]
}

/// What the path `/` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// The web UI.
    Page,
    /// The text by which clients recognise Ollama.
    Ollama,
}

/// All routes, with the checks that requests pass before them.
pub(crate) fn router(site: Arc<Site>, gate: Gate, root: Root) -> Router {
    let gate = Arc::new(gate);
    let (mut public, mut private) = (Router::new(), Router::new());
    let undescribed = undescribed().into_iter().chain(ollama_routes());
    for (path, methods) in described().into_iter().chain(undescribed) {
        match path {
            "/health" => public = public.route(path, methods),
            _ => private = private.route(path, methods),
        }
    }
    for asset in page::ASSETS {
        let route = match root {
            Root::Ollama if asset.path == "/" => get("Ollama is running"),
            _ => get(async |headers: HeaderMap| asset.reply(&headers)),
        };
        public = public.route(asset.path, route);
    }
    // Without a key a client does not learn which paths there are.
    let private = private
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&gate), check_key));
    let router = public.method_not_allowed_fallback(wrong_method).merge(private);
    let router = router.layer(CatchPanicLayer::custom(after_panic));
    let router = match gate.cors() {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router
        .layer(from_fn_with_state(gate, check_origin))
        .layer(from_fn(write_errors))
        .layer(from_fn_with_state(Arc::clone(&site), observe))
        .with_state(site)
}

/// A route for GET that needs nothing but what all requests share.
fn read(handle: fn(Arc<Site>) -> ApiResult<Reply>) -> MethodRouter<Arc<Site>> {
    get(move |State(site): State<Arc<Site>>| async move { handle(site) })
}

/// A route for POST whose body is JSON, and which a model answers: the one that the body names.
fn post_json<F, Fut>(handle: F) -> MethodRouter<Arc<Site>>
where
    F: Fn(Arc<App>, Value) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = ApiResult<Reply>> + Send + 'static,
{
    post(async move |State(site): State<Arc<Site>>, body: JsonBody| {
        let lease = lease(site, &body.value);
        let JsonBody { value, share } = body;
        early::begin(lease, move |app| share.held_by(handle(app, value)), None).await
    })
}

/// As [`post_json`], for answers that may be events as they are made.
fn post_streaming<F, Fut>(dialect: Dialect, handle: F) -> MethodRouter<Arc<Site>>
where
    F: Fn(Arc<App>, Value) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = ApiResult<Reply>> + Send + 'static,
{
    post(async move |State(site): State<Arc<Site>>, body: JsonBody| {
        let style = style_of(&body.value, dialect);
        let lease = lease(site, &body.value);
        let JsonBody { value, share } = body;
        early::begin(lease, move |app| share.held_by(handle(app, value)), style).await
    })
}

/// How a request wants its answer, where it is to be a stream.
fn style_of(body: &Value, dialect: Dialect) -> Option<Style> {
    (body.get("stream") == Some(&Value::Bool(true))).then_some(Style::Events(dialect))
}

/// As [`post_json`], for Ollama's clients, who say how long a model stays loaded.
fn post_ollama<F, Fut>(shape: Shape, handle: F) -> MethodRouter<Arc<Site>>
where
    F: Fn(Arc<App>, Value) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = ApiResult<Reply>> + Send + 'static,
{
    post(async move |State(site): State<Arc<Site>>, body: JsonBody| {
        let keep = keep_alive::of(&body.value)?;
        if keep_alive::unloads(&body.value, keep) {
            return keep_alive::unload(&site, &body.value, shape);
        }
        let name = body.value.get("model").and_then(Value::as_str).unwrap_or_default();
        let style = Style::Lines { model: name.to_owned(), shape };
        let is_stream = body.value.get("stream").and_then(Value::as_bool).unwrap_or(true);
        let lease = lease(Arc::clone(&site), &body.value);
        let JsonBody { value, share } = body;
        let answer = move |app: Arc<App>| {
            if let Some(keep) = keep {
                site.fleet.set_keep(app.model_name(), keep);
            }
            share.held_by(handle(app, value))
        };
        early::begin(lease, answer, is_stream.then_some(style)).await
    })
}

/// A route whose body is JSON, and which needs no model.
fn to_site<F, Fut>(method: MethodFilter, handle: F) -> MethodRouter<Arc<Site>>
where
    F: Fn(Arc<Site>, Value) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = ApiResult<Reply>> + Send + 'static,
{
    on(method, move |State(site): State<Arc<Site>>, body: JsonBody| {
        body.share.held_by(handle(site, body.value))
    })
}

/// The model that a request names, or the one that it means if it names none. Other kinds of names are
/// refused by those who read the request.
fn lease(
    site: Arc<Site>,
    body: &Value,
) -> impl Future<Output = ApiResult<Arc<App>>> + Send + 'static {
    let name = body.get("model").and_then(Value::as_str).map(str::to_owned);
    async move { Ok(App::new(site.fleet.lease(name.as_deref()).await?)) }
}

/// `/v1/responses`, whose requests refer to earlier ones of the same key.
async fn respond(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
    body: JsonBody,
) -> ApiResult<Reply> {
    let owner = owner(&site, &headers);
    let style = style_of(&body.value, Dialect::OpenAi);
    let lease = lease(site, &body.value);
    let JsonBody { value, share } = body;
    let answer = move |app| share.held_by(responses::handle(app, owner, value));
    early::begin(lease, answer, style).await
}

/// Whose responses a request may have.
fn owner(site: &Site, headers: &HeaderMap) -> Owner {
    if site.common.callers.are_needed() { Owner::of(headers) } else { Owner::everyone() }
}

async fn kept_response(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
    id: Result<Path<String>, PathRejection>,
    query: kept::Asked<kept::ResponseQuery>,
) -> ApiResult<Reply> {
    // Where the id is not UTF-8.
    let Ok(Path(id)) = id else { return Err(no_route().await) };
    let owner = owner(&site, &headers);
    kept::get(Arc::clone(&site.common), owner, id, query).await
}

async fn delete_response(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
    id: Result<Path<String>, PathRejection>,
) -> ApiResult<Reply> {
    let Ok(Path(id)) = id else { return Err(no_route().await) };
    let owner = owner(&site, &headers);
    kept::delete(Arc::clone(&site.common), owner, id).await
}

async fn kept_input(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
    id: Result<Path<String>, PathRejection>,
    query: kept::Asked<kept::ItemsQuery>,
) -> ApiResult<Reply> {
    let Ok(Path(id)) = id else { return Err(no_route().await) };
    let owner = owner(&site, &headers);
    kept::input_items(Arc::clone(&site.common), owner, id, query).await
}

async fn health(State(site): State<Arc<Site>>) -> ApiResult<Reply> {
    if site.fleet.roster.is_device_lost() {
        return Err(ApiError::device_lost());
    }
    if site.fleet.roster.is_running() {
        Ok(reply::json(StatusCode::OK, &status::health()))
    } else {
        Err(ApiError::shutting_down())
    }
}

async fn model(
    State(site): State<Arc<Site>>,
    name: Result<Path<String>, PathRejection>,
) -> ApiResult<Reply> {
    // Where the name is not UTF-8.
    let Ok(Path(name)) = name else { return Err(no_route().await) };
    let found = site.fleet.model(&name)?;
    // What cannot be found out is left out.
    let _ = site.fleet.catalog.about(found.name()).await;
    Ok(reply::json(StatusCode::OK, &models::one(&site.fleet, &found, &name)))
}

async fn no_route() -> ApiError {
    ApiError::not_found("there is nothing at this path: /openapi.json lists all paths")
}

/// The reply to requests for what no model here makes. The body is read, so that the connection can be
/// used again.
async fn not_made(path: MatchedPath, _body: Result<Bytes, BytesRejection>) -> ApiError {
    let what = path.as_str().trim_start_matches("/v1/");
    let message = format!(
        "this server has no {what}: its model writes text, by /v1/chat/completions and /v1/responses"
    );
    ApiError { code: Some("not_supported"), ..ApiError::new(StatusCode::NOT_IMPLEMENTED, message) }
}

async fn wrong_method(method: Method) -> ApiError {
    let message = format!("this path does not take {method}: the header Allow has what it takes");
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message)
}

async fn check_key(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Reply {
    match gate.check_key(request.headers()) {
        Ok(caller) => {
            if let (Some(caller), Some(record)) = (caller, access::current()) {
                record.set_caller(caller, gate.is_shared());
            }
            next.run(request).await
        }
        Err(error) => error.into_response(),
    }
}

async fn check_origin(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Reply {
    match gate.check_origin(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// The reply to a request whose handler panicked; the panic itself is on standard error.
fn after_panic(_: Box<dyn Any + Send>) -> Reply {
    ApiError::internal("the server failed at this request: its log has more").into_response()
}

/// Writes errors in the form that the client of a path reads.
async fn write_errors(request: Request, next: Next) -> Reply {
    let dialect = Dialect::of(request.uri().path(), request.headers());
    reply::with_error_body(next.run(request).await, dialect)
}

/// Gives a request its id, counts its reply, and logs it when the reply has ended.
async fn observe(State(site): State<Arc<Site>>, request: Request, next: Next) -> Reply {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let dialect = Dialect::of(request.uri().path(), request.headers());
    let mut line = AccessLine::new(&site.common, request.method(), route, request.headers());
    let record = Arc::clone(line.record());
    let mut reply = record.held_by(next.run(request)).await;
    site.common.metrics.replied(reply.status().as_u16());
    record.set_headers(&mut reply, dialect);
    line.replied(reply.status().as_u16());
    reply.map(|body| Body::new(Guarded::new(body, line)))
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn a_panic_fails_one_request() {
        let router: Router = Router::new()
            .route("/panic", get(|| async { panic!("on purpose") as StatusCode }))
            .route("/other", get(|| async { StatusCode::OK }))
            .layer(CatchPanicLayer::custom(after_panic))
            .layer(from_fn(write_errors));
        for (path, status) in [("/panic", 500), ("/other", 200), ("/panic", 500)] {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            let reply = router.clone().oneshot(request).await.unwrap();
            assert_eq!(reply.status().as_u16(), status);
            let body = to_bytes(reply.into_body(), 1000).await.unwrap();
            assert_eq!(status == 500, body.starts_with(b"{\"error\""), "{body:?}");
        }
    }
}
