//! Spellings of paths that clients use, and the one that routes have.

use axum::http::uri::PathAndQuery;
use axum::http::{Request, Uri};

/// First segments of paths that are below `/v1`, which clients leave out where their base URL has
/// no `/v1`.
const BELOW_V1: [&str; 5] = ["chat", "completions", "messages", "models", "responses"];

/// Gives a request the path that routes have.
pub(crate) fn normalize<B>(mut request: Request<B>) -> Request<B> {
    if let Some(path) = canonical(request.uri().path()) {
        let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
        let mut parts = request.uri().clone().into_parts();
        // It is made of parts of a path that was valid.
        if let Ok(path_and_query) = PathAndQuery::try_from(format!("{path}{query}")) {
            parts.path_and_query = Some(path_and_query);
        }
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
    request
}

/// The path without repeated and trailing slashes, and with one `/v1` where it belongs; `None`
/// where it is the same already.
fn canonical(path: &str) -> Option<String> {
    let mut segments: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    while let ["v1", "v1", ..] = segments[..] {
        segments.remove(0);
    }
    match segments[..] {
        [first, ..] if BELOW_V1.contains(&first) => segments.insert(0, "v1"),
        ["v1", "health" | "props" | "slots" | "metrics"] => drop(segments.remove(0)),
        _ => {}
    }
    let found = format!("/{}", segments.join("/"));
    (found != path).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_path_mean_one_route() {
        for (path, want) in [
            ("/v1/chat/completions", None),
            ("/", None),
            ("/health", None),
            ("/nothing/v1", None),
            ("/v1/models/a%2Fb", None),
            ("//", Some("/")),
            ("/v1/models/", Some("/v1/models")),
            ("/v1//chat/completions//", Some("/v1/chat/completions")),
            ("/v1/v1/chat/completions", Some("/v1/chat/completions")),
            ("/chat/completions", Some("/v1/chat/completions")),
            ("/messages/count_tokens", Some("/v1/messages/count_tokens")),
            ("/models/org/name", Some("/v1/models/org/name")),
            ("/v1/health", Some("/health")),
            ("/api/tags/", Some("/api/tags")),
        ] {
            assert_eq!(canonical(path).as_deref(), want, "{path}");
        }
    }

    #[test]
    fn the_query_is_kept() {
        let request = Request::builder().uri("/models/?limit=1").body(()).unwrap();
        assert_eq!(normalize(request).uri(), "/v1/models?limit=1");
    }
}
