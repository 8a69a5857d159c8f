//! Checks before routes: API keys, and origins of web pages.

use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{AUTHORIZATION, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use moeflux_core::OptionId;

use crate::callers::{Caller, Callers};
use crate::error::{ApiError, ApiResult, ServerError};
use crate::options::ServerOptions;
use crate::origins::{AllowedOrigin, is_local_host, is_own_origin};
use crate::tls::Tls;
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer, ExposeHeaders};

/// How long browsers may remember that a page of another origin is allowed.
const CORS_MAX_AGE: Duration = Duration::from_secs(600);

/// What decides whether a request is answered.
#[derive(Debug)]
pub(crate) struct Gate {
    callers: Arc<Callers>,
    is_loopback: bool,
    allowed_origins: Vec<AllowedOrigin>,
}

impl ServerOptions {
    /// Refuses what could not be served safely, before a model is loaded.
    ///
    /// # Errors
    /// Where other machines could reach the server without a key, or a key or a file of keys or of
    /// a certificate is no good.
    pub fn check(&self) -> Result<(), ServerError> {
        Gate::new(self, &Arc::new(Callers::new(self)?))?;
        self.tls.as_ref().map_or(Ok(()), |files| Tls::new(files).map(drop))
    }
}

impl Gate {
    pub(crate) fn new(
        options: &ServerOptions,
        callers: &Arc<Callers>,
    ) -> Result<Gate, ServerError> {
        let is_socket = options.unix_socket.is_some();
        // Names that point here lead no page to a socket.
        let is_loopback = !is_socket && options.addr.ip().is_loopback();
        if !is_socket && !is_loopback && !callers.are_needed() {
            return Err(ServerError::Open { addr: options.addr });
        }
        Ok(Gate {
            callers: Arc::clone(callers),
            is_loopback,
            allowed_origins: options.cors_origins.clone(),
        })
    }

    /// Lets requests of this process pass: no page and no other machine sends them.
    pub(crate) fn of_process(callers: &Arc<Callers>) -> Gate {
        Gate { callers: Arc::clone(callers), is_loopback: false, allowed_origins: Vec::new() }
    }

    /// Whose key a request shows. One that shows no valid key is refused where one is needed.
    pub(crate) fn check_key(&self, headers: &HeaderMap) -> ApiResult<Option<Arc<Caller>>> {
        if !self.callers.are_needed() {
            return Ok(None);
        }
        let bearers = headers.get_all(AUTHORIZATION).iter();
        let bearers = bearers.filter_map(|value| bearer_key(value.as_bytes()));
        let plain = headers.get_all("x-api-key").iter();
        let plain = plain.map(|value| value.as_bytes().trim_ascii());
        let missing = || ApiError {
            code: Some("invalid_api_key"),
            ..ApiError::new(
                StatusCode::UNAUTHORIZED,
                "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY",
            )
        };
        self.callers.find(bearers.chain(plain)).map(Some).ok_or_else(missing)
    }

    /// Whether several keys share the server.
    pub(crate) fn is_shared(&self) -> bool {
        self.callers.all().len() > 1
    }

    /// Refuses a request that a browser sends for a page of another site: one of another origin, or
    /// one whose name an attacker's DNS points at this machine.
    pub(crate) fn check_origin(&self, headers: &HeaderMap) -> ApiResult<()> {
        let has_keys = self.callers.are_needed();
        if let Some(origin) = headers.get(ORIGIN) {
            let origin = origin.to_str().unwrap_or("?");
            if !is_own_origin(origin, headers, has_keys) && !self.is_allowed(origin) {
                let option = OptionId::CorsOrigins;
                let message = format!("pages of other origins may not use this server ({option})");
                return Err(ApiError::new(StatusCode::FORBIDDEN, message));
            }
        }
        // A rebinding page does not know the key.
        if !has_keys && self.is_loopback && !is_local_host(headers) {
            let message = format!(
                "the Host header names another machine than localhost or 127.0.0.1: to be reached \
                 by other names the server needs {}",
                OptionId::ApiKeys
            );
            return Err(ApiError::new(StatusCode::FORBIDDEN, message));
        }
        Ok(())
    }

    fn is_allowed(&self, origin: &str) -> bool {
        self.allowed_origins.iter().any(|allowed| allowed.allows(origin))
    }

    /// The headers by which browsers let pages of other origins call the server; `None` where none
    /// is allowed to.
    pub(crate) fn cors(&self) -> Option<CorsLayer> {
        let allowed = self.allowed_origins.clone();
        let allow_origin = match allowed.as_slice() {
            [] => return None,
            _ if allowed.contains(&AllowedOrigin::Any) => AllowOrigin::any(),
            _ => AllowOrigin::predicate(move |origin, _| {
                let origin = origin.to_str().unwrap_or("?");
                allowed.iter().any(|pattern| pattern.allows(origin))
            }),
        };
        let cors = CorsLayer::new()
            .allow_origin(allow_origin)
            .allow_methods(AllowMethods::mirror_request())
            // Clients send headers of their own, such as x-stainless-lang and anthropic-version.
            .allow_headers(AllowHeaders::mirror_request())
            .allow_private_network(true)
            .expose_headers(ExposeHeaders::any())
            .max_age(CORS_MAX_AGE);
        Some(cors)
    }
}

/// The key of `Bearer KEY`, in any case and with any white space.
fn bearer_key(value: &[u8]) -> Option<&[u8]> {
    let value = value.trim_ascii();
    let end = value.iter().position(u8::is_ascii_whitespace)?;
    let (scheme, key) = value.split_at(end);
    scheme.eq_ignore_ascii_case(b"bearer").then(|| key.trim_ascii())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn gate(addr: &str, keys: &[&str], origins: &[&str]) -> Result<Gate, ServerError> {
        let mut options = ServerOptions::new(addr.parse().unwrap(), String::from("m"));
        options.api_keys = keys.iter().map(|key| key.to_string()).collect();
        options.cors_origins = origins.iter().map(|origin| origin.parse().unwrap()).collect();
        Gate::new(&options, &Arc::new(Callers::new(&options)?))
    }

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (name.parse().unwrap(), HeaderValue::from_str(value).unwrap())
        };
        let mut headers = HeaderMap::new();
        for (name, value) in all.iter().map(pair) {
            let name: axum::http::HeaderName = name;
            headers.append(name, value);
        }
        headers
    }

    #[test]
    fn an_open_address_needs_a_key() {
        assert!(matches!(gate("0.0.0.0:1", &[], &[]), Err(ServerError::Open { .. })));
        assert!(matches!(gate("0.0.0.0:1", &["short"], &[]), Err(ServerError::Key { .. })));
        assert!(matches!(gate("0.0.0.0:1", &["with a space"], &[]), Err(ServerError::Key { .. })));
        assert!(gate("0.0.0.0:1", &["long-enough"], &[]).is_ok());
        assert!(gate("[::1]:1", &[], &[]).is_ok());
    }

    #[test]
    fn only_a_known_key_opens() {
        let gate = gate("127.0.0.1:1", &["first-key", "second-key"], &[]).unwrap();
        let check = |all: &[(&'static str, &str)]| gate.check_key(&headers(all)).is_ok();
        for right in
            ["Bearer first-key", "bearer first-key", "BEARER   second-key", "bearer\tfirst-key"]
        {
            assert!(check(&[("authorization", right)]), "{right:?}");
        }
        assert!(check(&[("x-api-key", "second-key")]));
        // Clients send a placeholder in one of the two.
        assert!(check(&[("authorization", "Bearer none"), ("x-api-key", "second-key")]));
        assert!(check(&[("authorization", "Bearer first-key"), ("x-api-key", "none")]));
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer first-ke",
            "Bearer first-keyy",
            "first-key",
            "Basic first-key",
            "Bearerfirst-key",
            "Bearer first-key second-key",
        ] {
            assert!(!check(&[("authorization", wrong)]), "{wrong:?}");
        }
        assert!(!check(&[]) && !check(&[("x-api-key", "Bearer first-key")]));
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let check =
            |gate: &Gate, all: &[(&'static str, &str)]| gate.check_origin(&headers(all)).is_ok();
        let open = gate("127.0.0.1:8080", &[], &[]).unwrap();
        assert!(check(&open, &[]) && check(&open, &[("host", "127.0.0.1:8080")]));
        assert!(check(&open, &[("host", "localhost:9999"), ("origin", "http://localhost:9999")]));
        assert!(!check(&open, &[("host", "evil.example:8080")]));
        assert!(!check(&open, &[("host", "127.0.0.1:8080"), ("origin", "http://evil.example")]));
        assert!(!check(&open, &[("host", "127.0.0.1:8080"), ("origin", "null")]));
        // A rebinding page, which may add any header.
        let rebinding = [("host", "evil.example"), ("origin", "http://evil.example")];
        assert!(!check(&open, &rebinding));
        for forged in [
            ("x-forwarded-host", "localhost"),
            ("forwarded", "host=localhost"),
            ("x-forwarded-host", "evil.example"),
        ] {
            assert!(!check(&open, &[rebinding[0], rebinding[1], forged]), "{forged:?}");
        }
        let closed = gate("127.0.0.1:8080", &["long-enough"], &[]).unwrap();
        assert!(check(&closed, &[("host", "llm.example"), ("origin", "https://llm.example")]));
        assert!(!check(&closed, &[("host", "llm.example"), ("origin", "https://evil.example")]));

        let lists = gate("127.0.0.1:8080", &[], &["app://", "http://a.example:3000"]).unwrap();
        for (origin, is_allowed) in [
            ("app://obsidian.md", true),
            ("http://a.example:3000", true),
            ("http://a.example", false),
            ("null", false),
        ] {
            let sent = [("host", "127.0.0.1:8080"), ("origin", origin)];
            assert_eq!(check(&lists, &sent), is_allowed, "{origin}");
        }
        assert!(!check(&lists, &[("host", "evil.example"), ("origin", "app://obsidian.md")]));
    }
}
