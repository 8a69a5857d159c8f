//! Answers to HTTP requests.

use axum::body::{Body, Bytes};
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use moeflux_core::OptionId;
use schemars::JsonSchema;
use serde::Serialize;

use crate::encoding::{ENCODINGS, UNKNOWN_ENCODING};
use crate::error::{ApiError, Overflow};

pub(crate) type Reply = Response;

/// The API whose error format a client reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    Anthropic,
    Ollama,
}

impl Dialect {
    /// The dialect of a request, also of one to a path that has no route.
    pub(crate) fn of(path: &str, headers: &HeaderMap) -> Dialect {
        let is_below = |prefix: &str| {
            path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if is_below("/v1/messages") {
            Dialect::Anthropic
        } else if is_below("/api") {
            Dialect::Ollama
        } else if is_below("/v1/chat") || is_below("/v1/completions") || is_below("/v1/responses") {
            Dialect::OpenAi
        } else if headers.contains_key("anthropic-version") {
            Dialect::Anthropic
        } else {
            Dialect::OpenAi
        }
    }
}

/// Bytes of some type.
pub(crate) fn bytes(status: StatusCode, mime: &'static str, bytes: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Body::from(bytes.into()));
    *reply.status_mut() = status;
    set(&mut reply, CONTENT_TYPE, mime);
    set(&mut reply, HeaderName::from_static("x-content-type-options"), "nosniff");
    reply
}

pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    let mut reply = bytes(status, "application/json", text(value));
    set(&mut reply, CACHE_CONTROL, "no-store");
    reply
}

/// A reply that is sent as it is made.
pub(crate) fn stream(mime: &'static str, body: Body) -> Reply {
    let mut reply = Response::new(body);
    set(&mut reply, CONTENT_TYPE, mime);
    set(&mut reply, CACHE_CONTROL, "no-store");
    // Proxies that collect answers would hold them back.
    set(&mut reply, HeaderName::from_static("x-accel-buffering"), "no");
    reply
}

/// A reply as JSON in one line.
pub(crate) fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("replies are plain data with texts for keys")
}

/// The type of lines of JSON.
pub(crate) const NDJSON: &str = "application/x-ndjson";

/// An error becomes a reply without a body, which [`with_error_body`] completes.
impl IntoResponse for ApiError {
    fn into_response(self) -> Reply {
        let mut reply = self.status.into_response();
        reply.extensions_mut().insert(self);
        reply
    }
}

/// Writes a reply's error in the client's dialect, where it has one.
pub(crate) fn with_error_body(mut reply: Reply, dialect: Dialect) -> Reply {
    match reply.extensions_mut().remove::<ApiError>() {
        None => reply,
        Some(error) => {
            let mut refusal = refusal(&error, dialect);
            refusal.headers_mut().extend(std::mem::take(reply.headers_mut()));
            refusal
        }
    }
}

fn refusal(error: &ApiError, dialect: Dialect) -> Reply {
    let mut reply = json(error.status, &ErrorReply::new(error, dialect));
    if let Some(after) = error.retry_after {
        let seconds = HeaderValue::from(after.as_secs().max(1));
        reply.headers_mut().insert(RETRY_AFTER, seconds);
    }
    if error.code == Some(UNKNOWN_ENCODING) {
        set(&mut reply, ACCEPT_ENCODING, ENCODINGS);
    }
    if error.status == StatusCode::UNAUTHORIZED {
        set(&mut reply, WWW_AUTHENTICATE, "Bearer");
    }
    reply
}

/// Why a request is refused, as the API's clients read it.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum ErrorReply<'a> {
    OpenAi(OpenAiError<'a>),
    Anthropic(AnthropicError),
    Ollama(OllamaError),
}

/// Why a request is refused.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Error", deny_unknown_fields)]
pub(crate) struct OpenAiError<'a> {
    /// The problem.
    error: Problem<'a>,
}

/// The problem with a request.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Problem<'a> {
    /// In words.
    message: String,
    /// Its kind.
    r#type: &'static str,
    /// The field at fault.
    param: Option<&'a str>,
    /// A word for programs.
    code: Option<&'static str>,
}

/// Why a request is refused, for Anthropic's clients.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct AnthropicError {
    /// `error`.
    r#type: &'static str,
    /// The problem.
    error: AnthropicProblem,
}

/// The problem with a request, for Anthropic's clients.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct AnthropicProblem {
    /// Its kind.
    r#type: &'static str,
    /// In words.
    message: String,
}

/// Why a request is refused, for Ollama's clients.
#[derive(Debug, Serialize)]
pub(crate) struct OllamaError {
    error: String,
}

impl ErrorReply<'_> {
    pub(crate) fn new(error: &ApiError, dialect: Dialect) -> ErrorReply<'_> {
        let message = error_message(error, dialect);
        let kind = match (dialect, error.status.as_u16()) {
            (_, 401) => "authentication_error",
            (_, 403) => "permission_error",
            (Dialect::Anthropic, 404) => "not_found_error",
            (Dialect::Anthropic, 413) => "request_too_large",
            (_, 429) => "rate_limit_error",
            (Dialect::Anthropic, 503) => "overloaded_error",
            (Dialect::Anthropic, 500..) => "api_error",
            (_, 500..) => "server_error",
            _ => "invalid_request_error",
        };
        match dialect {
            Dialect::OpenAi => {
                let (param, code) = (error.param.as_deref(), error.code);
                let error = Problem { message, r#type: kind, param, code };
                ErrorReply::OpenAi(OpenAiError { error })
            }
            Dialect::Anthropic => {
                let error = AnthropicProblem { r#type: kind, message };
                ErrorReply::Anthropic(AnthropicError { r#type: "error", error })
            }
            Dialect::Ollama => ErrorReply::Ollama(OllamaError { error: message }),
        }
    }
}

/// An error in the words of a dialect.
pub(crate) fn error_message(error: &ApiError, dialect: Dialect) -> String {
    match error.overflow {
        Some(overflow) => overflow_message(overflow, dialect),
        None => error.message.clone(),
    }
}

/// Says that a prompt does not fit, in the words by which clients of a dialect recognise it: they
/// shorten the conversation and try again.
fn overflow_message(overflow: Overflow, dialect: Dialect) -> String {
    let (Overflow { n_prompt, ctx, .. }, prompt) = (overflow, overflow.prompt());
    match dialect {
        Dialect::Anthropic => {
            // One token is kept for the answer.
            let most = if n_prompt == ctx { ctx.saturating_sub(1) } else { ctx };
            format!("prompt is too long: {prompt} tokens > {most} maximum ({})", OptionId::Ctx)
        }
        Dialect::OpenAi => format!(
            "This model's maximum context length is {ctx} tokens, and the prompt has {prompt} \
             tokens: shorten it, or start the server with a larger {}",
            OptionId::Ctx
        ),
        Dialect::Ollama => format!(
            "the input length exceeds the context length: the prompt has {prompt} tokens, the \
             context has room for {ctx} ({})",
            OptionId::Ctx
        ),
    }
}

pub(crate) fn set(reply: &mut Reply, name: HeaderName, value: &'static str) {
    reply.headers_mut().insert(name, HeaderValue::from_static(value));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_a_dialect_and_other_paths_have_it_from_a_header() {
        let plain = HeaderMap::new();
        let versioned: HeaderMap =
            [("anthropic-version".parse().unwrap(), "2023-06-01".parse().unwrap())]
                .into_iter()
                .collect();
        for (path, without, with) in [
            ("/v1/messages/batches", Dialect::Anthropic, Dialect::Anthropic),
            ("/v1/messagesx", Dialect::OpenAi, Dialect::Anthropic),
            ("/v1/chat/completions", Dialect::OpenAi, Dialect::OpenAi),
            ("/v1/models", Dialect::OpenAi, Dialect::Anthropic),
            ("/v1/files", Dialect::OpenAi, Dialect::Anthropic),
            ("/api/chat", Dialect::Ollama, Dialect::Ollama),
            ("/", Dialect::OpenAi, Dialect::Anthropic),
        ] {
            assert_eq!(Dialect::of(path, &plain), without, "{path}");
            assert_eq!(Dialect::of(path, &versioned), with, "{path}");
        }
    }

    #[test]
    fn a_prompt_that_does_not_fit_is_refused_in_words_that_clients_parse() {
        let said = |n_prompt, dialect| {
            let overflow = Overflow { n_prompt, is_exact: true, ctx: 4096 };
            error_message(&ApiError::too_long(overflow), dialect)
        };
        let openai = said(22518, Dialect::OpenAi);
        assert!(openai.starts_with("This model's maximum context length is 4096 tokens"));
        assert!(openai.contains("22518 tokens"), "{openai}");
        let anthropic = said(22518, Dialect::Anthropic);
        assert!(anthropic.starts_with("prompt is too long: 22518 tokens > 4096 maximum"));
        // What is said is true for a prompt that only leaves no room for an answer.
        assert!(said(4096, Dialect::Anthropic).contains("4096 tokens > 4095 maximum"));
        let overflow = Overflow { n_prompt: 9, is_exact: false, ctx: 8 };
        let error = ApiError::too_long(overflow);
        assert_eq!(error.code, Some("context_length_exceeded"));
        assert!(error_message(&error, Dialect::OpenAi).contains("at least 9 tokens"));
    }
}
