//! Who may ask: keys, and what browsers say of where a request comes from.

use std::time::Duration;

use axum::http::header::{AUTHORIZATION, HOST, HeaderValue, ORIGIN};
use axum::http::{HeaderMap, Method, StatusCode};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};
use tower_http::cors::{AllowHeaders, CorsLayer};

use crate::error::{ApiError, ApiResult, ServerError};
use crate::options::ServerOptions;

/// What decides whether a request is heard.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Hashes, so that comparing tells nothing of a key's length.
    keys: Vec<[u8; 32]>,
    is_loopback: bool,
    cors_origin: Option<String>,
}

/// Keys that are shorter can be guessed.
const SHORTEST_KEY: usize = 8;

impl Gate {
    pub(crate) fn new(options: &ServerOptions) -> Result<Gate, ServerError> {
        let is_loopback = options.addr.ip().is_loopback();
        if !is_loopback && options.api_keys.is_empty() {
            return Err(ServerError::Open { addr: options.addr });
        }
        for key in &options.api_keys {
            let n_bytes = key.len();
            if n_bytes < SHORTEST_KEY {
                return Err(ServerError::Key { n_bytes, want: "8 bytes or more" });
            }
            if !key.bytes().all(|it| it.is_ascii_graphic()) {
                return Err(ServerError::Key { n_bytes, want: "printable ASCII without spaces" });
            }
        }
        Ok(Gate {
            keys: options.api_keys.iter().map(|it| hash(it.as_bytes())).collect(),
            is_loopback,
            cors_origin: options.cors_origin.clone(),
        })
    }

    /// Whether a request shows a key, where one is needed.
    pub(crate) fn check_key(&self, headers: &HeaderMap) -> ApiResult<()> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let bearer = headers.get(AUTHORIZATION).map(|it| it.as_bytes());
        let bearer = bearer.and_then(|it| it.strip_prefix(b"Bearer "));
        let shown = bearer.or_else(|| headers.get("x-api-key").map(|it| it.as_bytes()));
        let shown = hash(shown.unwrap_or_default());
        let is_known = self.keys.iter().fold(Choice::from(0), |any, key| any | key.ct_eq(&shown));
        match bool::from(is_known) {
            true => Ok(()),
            false => Err(ApiError {
                code: Some("invalid_api_key"),
                ..ApiError::new(
                    StatusCode::UNAUTHORIZED,
                    "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY",
                )
            }),
        }
    }

    /// Whether a page of somebody else's asks, by way of the user's browser:
    /// another origin, or a name of its own for this machine.
    pub(crate) fn check_origin(&self, headers: &HeaderMap) -> ApiResult<()> {
        let text = |name| headers.get(name).map(|it| it.to_str().unwrap_or("?"));
        let host = text(HOST);
        if let Some(origin) = text(ORIGIN) {
            let own = host.map(|it| format!("http://{it}"));
            let is_own = own.as_deref() == Some(origin);
            if !is_own && self.cors_origin.as_deref() != Some(origin) {
                let message = "pages of other origins may not use this server (--cors-origin)";
                return Err(ApiError::new(StatusCode::FORBIDDEN, message));
            }
        }
        // With a key, a foreign page knows none.
        if self.keys.is_empty() && self.is_loopback && host.is_some_and(|it| !self.is_own(it)) {
            let message =
                "this server is called 127.0.0.1 or localhost; others need --api-key-file";
            return Err(ApiError::new(StatusCode::FORBIDDEN, message));
        }
        Ok(())
    }

    fn is_own(&self, host: &str) -> bool {
        let name = host.rsplit_once(':').map_or(host, |(name, port)| match port.parse::<u16>() {
            Ok(_) => name,
            Err(_) => host,
        });
        let name = name.trim_start_matches('[').trim_end_matches(']');
        name.eq_ignore_ascii_case("localhost")
            || name.parse().is_ok_and(|it: std::net::IpAddr| it.is_loopback())
    }

    /// Lets pages of another origin call the server, where one is allowed to.
    pub(crate) fn cors(&self) -> Option<CorsLayer> {
        let origin = HeaderValue::from_str(self.cors_origin.as_deref()?).ok()?;
        let cors = CorsLayer::new()
            .allow_origin([origin])
            .allow_methods([Method::GET, Method::POST])
            .allow_headers(AllowHeaders::mirror_request())
            .allow_private_network(true)
            .max_age(Duration::from_secs(600));
        Some(cors)
    }
}

fn hash(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(addr: &str, keys: &[&str]) -> Result<Gate, ServerError> {
        let mut options = ServerOptions::new(addr.parse().unwrap(), String::from("m"));
        options.api_keys = keys.iter().map(|it| it.to_string()).collect();
        Gate::new(&options)
    }

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        all.iter()
            .map(|(name, it)| (name.parse().unwrap(), HeaderValue::from_str(it).unwrap()))
            .collect()
    }

    #[test]
    fn an_open_address_needs_a_key() {
        assert!(matches!(gate("0.0.0.0:1", &[]), Err(ServerError::Open { .. })));
        assert!(matches!(gate("0.0.0.0:1", &["short"]), Err(ServerError::Key { .. })));
        assert!(matches!(gate("0.0.0.0:1", &["with a space"]), Err(ServerError::Key { .. })));
        assert!(gate("0.0.0.0:1", &["long-enough"]).is_ok() && gate("[::1]:1", &[]).is_ok());
    }

    #[test]
    fn only_a_known_key_opens() {
        let gate = gate("127.0.0.1:1", &["first-key", "second-key"]).unwrap();
        let check = |all: &[(&'static str, &str)]| gate.check_key(&headers(all)).is_ok();
        assert!(check(&[("authorization", "Bearer first-key")]));
        assert!(check(&[("x-api-key", "second-key")]));
        for wrong in ["", "Bearer ", "Bearer first-ke", "Bearer first-keyy", "first-key"] {
            assert!(!check(&[("authorization", wrong)]), "{wrong:?}");
        }
        assert!(!check(&[]));
    }

    #[test]
    fn pages_of_others_are_not_heard() {
        let gate = gate("127.0.0.1:8080", &[]).unwrap();
        let check = |all: &[(&'static str, &str)]| gate.check_origin(&headers(all)).is_ok();
        assert!(check(&[]) && check(&[("host", "127.0.0.1:8080")]));
        assert!(check(&[("host", "localhost:8080"), ("origin", "http://localhost:8080")]));
        assert!(check(&[("host", "[::1]:8080")]));
        assert!(!check(&[("host", "evil.example:8080")]));
        assert!(!check(&[("host", "127.0.0.1:8080"), ("origin", "http://evil.example")]));
        assert!(!check(&[("host", "127.0.0.1:8080"), ("origin", "null")]));
    }
}
