//! Answers to HTTP requests.

use std::convert::Infallible;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
    VARY, WWW_AUTHENTICATE,
};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::events::EventStream;

pub(crate) type Body = BoxBody<Bytes, Infallible>;
pub(crate) type Reply = Response<Body>;

/// Whose shape errors have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    Anthropic,
}

/// Bytes of some type.
pub(crate) fn bytes(status: StatusCode, mime: &'static str, bytes: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(bytes.into()).boxed());
    *reply.status_mut() = status;
    set(&mut reply, CONTENT_TYPE, mime);
    set(&mut reply, HeaderName::from_static("x-content-type-options"), "nosniff");
    reply
}

pub(crate) fn json(status: StatusCode, value: &Value) -> Reply {
    let mut reply = bytes(status, "application/json", value.to_string());
    set(&mut reply, CACHE_CONTROL, "no-store");
    reply
}

pub(crate) fn stream(events: EventStream) -> Reply {
    let mut reply = Response::new(events.boxed());
    set(&mut reply, CONTENT_TYPE, "text/event-stream");
    set(&mut reply, CACHE_CONTROL, "no-store");
    // Proxies that collect answers would hold them back.
    set(&mut reply, HeaderName::from_static("x-accel-buffering"), "no");
    reply
}

pub(crate) fn refusal(error: &ApiError, dialect: Dialect) -> Reply {
    let mut reply = json(error.status, &error_value(error, dialect));
    if let Some(after) = error.retry_after {
        let seconds = HeaderValue::from(after.as_secs().max(1));
        reply.headers_mut().insert(RETRY_AFTER, seconds);
    }
    if error.status == StatusCode::UNAUTHORIZED {
        set(&mut reply, WWW_AUTHENTICATE, "Bearer");
    }
    reply
}

/// An error as the API's clients read it.
pub(crate) fn error_value(error: &ApiError, dialect: Dialect) -> Value {
    let ApiError { status, message, param, code, .. } = error;
    let kind = match (dialect, status.as_u16()) {
        (_, 401) => "authentication_error",
        (_, 403) => "permission_error",
        (Dialect::Anthropic, 404) => "not_found_error",
        (Dialect::Anthropic, 413) => "request_too_large",
        (_, 429) => "rate_limit_error",
        (Dialect::Anthropic, 503) => "overloaded_error",
        (Dialect::Anthropic, 500..) => "api_error",
        (Dialect::OpenAi, 500..) => "server_error",
        _ => "invalid_request_error",
    };
    match dialect {
        Dialect::OpenAi => {
            json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
        }
        Dialect::Anthropic => {
            json!({"type": "error", "error": {"type": kind, "message": message}})
        }
    }
}

/// Lets pages of one other origin read the reply.
pub(crate) fn allow_origin(reply: &mut Reply, origin: &str) {
    if let Ok(origin) = HeaderValue::from_str(origin) {
        reply.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        set(reply, VARY, "Origin");
    }
}

pub(crate) fn set(reply: &mut Reply, name: HeaderName, value: &'static str) {
    reply.headers_mut().insert(name, HeaderValue::from_static(value));
}
