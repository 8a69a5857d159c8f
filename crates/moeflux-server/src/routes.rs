//! Which request goes where.

use std::sync::Arc;
use std::time::Instant;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode};
use moeflux_engine::json_problem;
use serde_json::{Value, json};

use crate::anthropic::messages;
use crate::app::App;
use crate::auth::Gate;
use crate::error::{ApiError, ApiResult};
use crate::markdown;
use crate::metrics;
use crate::openai::{chat, completions, models, responses};
use crate::openapi;
use crate::page::{self, Asset};
use crate::prompt;
use crate::reply::{self, Dialect, Reply};
use crate::status::status;

/// What every connection knows.
pub(crate) struct Service {
    pub(crate) app: Arc<App>,
    pub(crate) gate: Gate,
}

/// A place that requests may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Health,
    Metrics,
    Status,
    OpenApi,
    Page(&'static Asset),
    Render,
    Models,
    Model(String),
    Chat,
    Completions,
    Responses,
    Messages,
    CountTokens,
    ApplyTemplate,
    Tokenize,
    Detokenize,
}

impl Route {
    /// What the description of the API describes.
    #[cfg(test)]
    pub(crate) const DESCRIBED: [&'static str; 14] = [
        "/health",
        "/metrics",
        "/status",
        "/openapi.json",
        "/v1/models",
        "/v1/models/{model}",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/apply-template",
        "/tokenize",
        "/detokenize",
    ];

    pub(crate) fn find(path: &str) -> Option<Route> {
        Some(match path {
            "/health" => Route::Health,
            "/metrics" => Route::Metrics,
            "/status" => Route::Status,
            "/openapi.json" => Route::OpenApi,
            "/page/render" => Route::Render,
            "/v1/models" => Route::Models,
            "/v1/chat/completions" => Route::Chat,
            "/v1/completions" => Route::Completions,
            "/v1/responses" => Route::Responses,
            "/v1/messages" => Route::Messages,
            "/v1/messages/count_tokens" => Route::CountTokens,
            "/apply-template" => Route::ApplyTemplate,
            "/tokenize" => Route::Tokenize,
            "/detokenize" => Route::Detokenize,
            _ => {
                if let Some(asset) = page::find(path) {
                    return Some(Route::Page(asset));
                }
                let name = path.strip_prefix("/v1/models/").filter(|it| !it.is_empty())?;
                Route::Model(percent_decoded(name)?)
            }
        })
    }

    pub(crate) fn method(&self) -> Method {
        match self {
            Route::Chat
            | Route::Completions
            | Route::Render
            | Route::Responses
            | Route::Messages
            | Route::CountTokens
            | Route::ApplyTemplate
            | Route::Tokenize
            | Route::Detokenize => Method::POST,
            _ => Method::GET,
        }
    }

    /// Whether it tells nothing that a key protects.
    fn is_public(&self) -> bool {
        matches!(self, Route::Health | Route::Page(_))
    }

    fn dialect(&self) -> Dialect {
        match self {
            Route::Messages | Route::CountTokens => Dialect::Anthropic,
            _ => Dialect::OpenAi,
        }
    }

    /// What logs call it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Route::Health => "/health",
            Route::Metrics => "/metrics",
            Route::Status => "/status",
            Route::OpenApi => "/openapi.json",
            Route::Page(asset) => asset.path,
            Route::Render => "/page/render",
            Route::Models => "/v1/models",
            Route::Model(_) => "/v1/models/{model}",
            Route::Chat => "/v1/chat/completions",
            Route::Completions => "/v1/completions",
            Route::Responses => "/v1/responses",
            Route::Messages => "/v1/messages",
            Route::CountTokens => "/v1/messages/count_tokens",
            Route::ApplyTemplate => "/apply-template",
            Route::Tokenize => "/tokenize",
            Route::Detokenize => "/detokenize",
        }
    }
}

/// `%2F` is a slash; `None` where it is no UTF-8.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = tail.get(..2).and_then(|it| std::str::from_utf8(it).ok());
        let byte = hex.filter(|_| *first == b'%').and_then(|it| u8::from_str_radix(it, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8(bytes).ok()
}

impl Service {
    /// Answers a request, whatever it is.
    pub(crate) async fn handle(self: Arc<Service>, request: Request<Incoming>) -> Reply {
        let start = Instant::now();
        let route = Route::find(request.uri().path());
        let dialect = route.as_ref().map_or(Dialect::OpenAi, Route::dialect);
        let name = route.as_ref().map_or("unknown", Route::name);
        let method = request.method().clone();
        let reply = match self.dispatch(route, request).await {
            Ok(reply) => reply,
            Err(error) => reply::refusal(&error, dialect),
        };
        let mut reply = reply;
        if let Some(origin) = self.gate.cors_origin() {
            reply::allow_origin(&mut reply, origin);
        }
        self.app.metrics.replied(reply.status().as_u16());
        if self.app.options.log_requests {
            let (status, ms) = (reply.status().as_u16(), start.elapsed().as_millis());
            crate::log::log(&format!("{method} {name} {status} {ms} ms"));
        }
        reply
    }

    async fn dispatch(&self, route: Option<Route>, request: Request<Incoming>) -> ApiResult<Reply> {
        self.gate.check_origin(request.headers())?;
        if request.method() == Method::OPTIONS && self.gate.cors_origin().is_some() {
            return Ok(preflight());
        }
        let is_public = route.as_ref().is_some_and(Route::is_public);
        if !is_public {
            self.gate.check_key(request.headers())?;
        }
        let Some(route) = route else {
            return Err(ApiError::not_found("there is nothing at this path"));
        };
        let is_read = route.method() == Method::GET && request.method() == Method::HEAD;
        if *request.method() != route.method() && !is_read {
            let error = ApiError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                format!("this path takes {}", route.method()),
            );
            let mut reply = reply::refusal(&error, route.dialect());
            if let Ok(method) = HeaderValue::from_str(route.method().as_str()) {
                reply.headers_mut().insert(ALLOW, method);
            }
            return Ok(reply);
        }
        let app = Arc::clone(&self.app);
        match route {
            Route::Health => health(&app),
            Route::Metrics => Ok(reply::bytes(
                StatusCode::OK,
                "text/plain; version=0.0.4; charset=utf-8",
                metrics::render(&app),
            )),
            Route::Status => Ok(reply::json(StatusCode::OK, &status(&app))),
            Route::OpenApi => Ok(reply::json(StatusCode::OK, &openapi::describe(&app))),
            Route::Page(asset) => Ok(asset.reply()),
            Route::Render => markdown::handle(self.body(request).await?).await,
            Route::Models => Ok(reply::json(StatusCode::OK, &models::list(&app))),
            Route::Model(name) => Ok(reply::json(StatusCode::OK, &models::one(&app, &name)?)),
            Route::Chat => chat::handle(app, self.body(request).await?).await,
            Route::Completions => completions::handle(app, self.body(request).await?).await,
            Route::Responses => responses::handle(app, self.body(request).await?).await,
            Route::Messages => messages::handle(app, self.body(request).await?).await,
            Route::CountTokens => messages::count_tokens(app, self.body(request).await?).await,
            Route::ApplyTemplate => prompt::apply_template(app, self.body(request).await?).await,
            Route::Tokenize => prompt::tokenize(app, self.body(request).await?).await,
            Route::Detokenize => prompt::detokenize(&app, self.body(request).await?),
        }
    }

    /// A request's JSON.
    async fn body(&self, request: Request<Incoming>) -> ApiResult<Value> {
        let mime = request.headers().get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
        let mime = mime.unwrap_or_default().split(';').next().unwrap_or_default().trim();
        // Other types reach servers from foreign pages without being asked for.
        if !mime.eq_ignore_ascii_case("application/json") {
            return Err(ApiError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "the body must be JSON: Content-Type: application/json",
            ));
        }
        let options = &self.app.options;
        let too_large = || {
            ApiError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the body is larger than {} bytes (--max-body)", options.max_body),
            )
        };
        if request.body().size_hint().lower() > options.max_body as u64 {
            return Err(too_large());
        }
        let body = Limited::new(request.into_body(), options.max_body).collect();
        let bytes = match tokio::time::timeout(options.body_timeout, body).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(err)) if err.is::<LengthLimitError>() => return Err(too_large()),
            Ok(Err(_)) => return Err(ApiError::field("body", "it ended early")),
            Err(_) => {
                return Err(ApiError::new(
                    StatusCode::REQUEST_TIMEOUT,
                    "the body did not arrive in time",
                ));
            }
        };
        serde_json::from_slice(&bytes).map_err(|err| {
            ApiError::field("body", format!("it is not valid JSON: {}", json_problem(&err)))
        })
    }
}

fn health(app: &App) -> ApiResult<Reply> {
    match app.scheduler.is_running() {
        true => Ok(reply::json(StatusCode::OK, &json!({"status": "ok"}))),
        false => Err(ApiError::shutting_down()),
    }
}

fn preflight() -> Reply {
    let mut reply = reply::bytes(StatusCode::NO_CONTENT, "text/plain", "");
    for (name, value) in [
        ("access-control-allow-methods", "GET, POST"),
        ("access-control-allow-headers", "authorization, content-type, x-api-key"),
        ("access-control-max-age", "600"),
    ] {
        reply::set(&mut reply, hyper::header::HeaderName::from_static(name), value);
    }
    reply
}
