//! Origins of web pages: the server's own, and those that `--cors-origin` allows.

use std::net::IpAddr;
use std::str::FromStr;

use axum::http::header::{FORWARDED, HOST};
use axum::http::{HeaderMap, HeaderName};

/// A value of `--cors-origin`: one origin, or a pattern of origins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedOrigin {
    /// `*`
    Any,
    /// `null`, which browsers send for files, sandboxed frames and the like.
    Null,
    /// `SCHEME://` or `SCHEME://*`
    Scheme(String),
    /// `SCHEME://HOST`, `SCHEME://HOST:PORT` or `SCHEME://HOST:*`
    Host {
        /// In lower case.
        scheme: String,
        /// In lower case; `*.` at its beginning stands for any subdomain.
        name: String,
        /// Which ports.
        port: AllowedPort,
    },
}

/// The port of an allowed origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedPort {
    /// The scheme's own.
    Default,
    /// This one.
    Number(u16),
    /// Any.
    Any,
}

/// Why a text is not a value of `--cors-origin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "write a scheme, a host and perhaps a port, such as http://localhost:3000; a scheme alone, \
     such as app://; null; or * for every page"
)]
pub struct OriginError;

impl FromStr for AllowedOrigin {
    type Err = OriginError;

    fn from_str(text: &str) -> Result<AllowedOrigin, OriginError> {
        let text = text.trim().to_ascii_lowercase();
        match text.as_str() {
            "*" => return Ok(AllowedOrigin::Any),
            "null" => return Ok(AllowedOrigin::Null),
            _ => {}
        }
        let (scheme, rest) = text.split_once("://").ok_or(OriginError)?;
        let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
        // Addresses of pages are often copied with their slash.
        let host = rest.strip_suffix('/').unwrap_or(rest);
        let scheme = scheme.to_owned();
        match host {
            _ if !is_scheme => Err(OriginError),
            "*" => Ok(AllowedOrigin::Scheme(scheme)),
            // Every page of the web is more than an empty host says.
            "" if is_web(&scheme) => Err(OriginError),
            "" => Ok(AllowedOrigin::Scheme(scheme)),
            _ => AllowedOrigin::of_host(scheme, host),
        }
    }
}

impl AllowedOrigin {
    fn of_host(scheme: String, host: &str) -> Result<AllowedOrigin, OriginError> {
        let (subdomains, host) = match host.strip_prefix("*.") {
            Some(host) => ("*.", host),
            None => ("", host),
        };
        let (host, is_any_port) = match host.strip_suffix(":*") {
            Some(host) => (host, true),
            None => (host, false),
        };
        let host = Authority::parse(host).ok_or(OriginError)?;
        let port = match (is_any_port, host.without_default_port(&scheme).port) {
            (true, None) => AllowedPort::Any,
            (true, Some(_)) => return Err(OriginError),
            (false, None) => AllowedPort::Default,
            (false, Some(port)) => AllowedPort::Number(port),
        };
        Ok(AllowedOrigin::Host { scheme, name: format!("{subdomains}{}", host.name), port })
    }

    /// Whether it allows the origin that a header names.
    pub(crate) fn allows(&self, origin: &str) -> bool {
        let origin = origin.to_ascii_lowercase();
        match self {
            AllowedOrigin::Any => true,
            AllowedOrigin::Null => origin == "null",
            AllowedOrigin::Scheme(scheme) => {
                origin.strip_prefix(scheme.as_str()).is_some_and(|rest| rest.starts_with("://"))
            }
            AllowedOrigin::Host { scheme, name, port } => {
                let Some((found, host)) = origin.split_once("://") else { return false };
                let Some(host) = Authority::parse(host) else { return false };
                let host = host.without_default_port(scheme);
                let is_name = match name.strip_prefix('*') {
                    Some(end) => host.name.strip_suffix(end).is_some_and(|sub| !sub.is_empty()),
                    None => host.name == *name,
                };
                let is_port = match port {
                    AllowedPort::Any => true,
                    AllowedPort::Default => host.port.is_none(),
                    AllowedPort::Number(port) => host.port == Some(*port),
                };
                found == scheme && is_name && is_port
            }
        }
    }
}

fn is_web(scheme: &str) -> bool {
    matches!(scheme, "http" | "https")
}

/// A host and its port, as URLs and `Host` headers have them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Authority {
    /// In lower case.
    name: String,
    port: Option<u16>,
}

impl Authority {
    fn parse(text: &str) -> Option<Authority> {
        let (name, port) = match text.rsplit_once(':') {
            // A colon inside brackets belongs to an IPv6 address.
            Some((name, port)) if !port.ends_with(']') => (name, Some(port.parse().ok()?)),
            _ => (text, None),
        };
        let is_name = match name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(address) => matches!(address.parse(), Ok(IpAddr::V6(_))),
            None => {
                !name.is_empty()
                    && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
            }
        };
        is_name.then(|| Authority { name: name.to_ascii_lowercase(), port })
    }

    fn without_default_port(&self, scheme: &str) -> Authority {
        let default = match scheme {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        };
        let port = self.port.filter(|port| Some(*port) != default);
        Authority { name: self.name.clone(), port }
    }

    /// Whether it names this machine, whatever DNS says.
    fn is_loopback(&self) -> bool {
        let name = self.name.trim_start_matches('[').trim_end_matches(']');
        let name = name.strip_suffix('.').unwrap_or(name);
        if let Ok(address) = name.parse::<IpAddr>() {
            return address.to_canonical().is_loopback();
        }
        // Containers reach the machine that runs them by names such as host.docker.internal; no
        // public DNS has names below `internal`.
        let is_container_host = name.starts_with("host.")
            && name.ends_with(".internal")
            && name.split('.').count() == 3;
        name == "localhost" || name.ends_with(".localhost") || is_container_host
    }
}

/// Whether a request has no `Host` header, or one that names this machine.
///
/// A page whose name an attacker's DNS points at this machine (DNS rebinding) has the attacker's
/// name in `Host`; the port does not matter, so forwarded ports work.
pub(crate) fn is_local_host(headers: &HeaderMap) -> bool {
    match headers.get(HOST) {
        None => true,
        Some(host) => {
            let host = host.to_str().ok().and_then(Authority::parse);
            host.is_some_and(|host| host.is_loopback())
        }
    }
}

/// Whether a page of this server itself asks.
///
/// A page of `http://HOST` or `https://HOST` is the server's own where `Host` is the same: a
/// browser takes `Host` from the address that the page asks, so that another site's page has
/// another one. [`is_local_host`] refuses rebinding pages, whose two are the same.
///
/// Where there are keys, what a proxy forwards counts as well: a `Host` whose port it left out, and
/// `Forwarded` or `X-Forwarded-Host`. A page could only make these up to reach a server whose key
/// it does not know; without keys they are ignored.
pub(crate) fn is_own_origin(origin: &str, headers: &HeaderMap, has_keys: bool) -> bool {
    let Some((scheme, page)) = origin.split_once("://") else { return false };
    let Some(page) = Authority::parse(page).filter(|_| is_web(scheme)) else { return false };
    let page = page.without_default_port(scheme);
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).and_then(Authority::parse);
    if let Some(host) = host {
        let host = host.without_default_port(scheme);
        if host == page || (has_keys && host.port.is_none() && host.name == page.name) {
            return true;
        }
    }
    has_keys
        && forwarded_hosts(headers, scheme).any(|host| host.without_default_port(scheme) == page)
}

/// Hosts of the address that the client asked, as proxies forward them for this scheme.
fn forwarded_hosts<'a>(
    headers: &'a HeaderMap,
    scheme: &'a str,
) -> impl Iterator<Item = Authority> + 'a {
    // The first element is that of the proxy nearest to the client.
    let first = |name: HeaderName| {
        let text = headers.get(name).and_then(|value| value.to_str().ok());
        text.and_then(|text| text.split(',').next()).map(str::trim)
    };
    let parameter = move |name: &str| {
        let parts = first(FORWARDED)?.split(';');
        let mut pairs = parts.filter_map(|part| part.split_once('='));
        let (_, value) = pairs.find(|(found, _)| found.trim().eq_ignore_ascii_case(name))?;
        Some(value.trim().trim_matches('"'))
    };
    let is_scheme =
        move |proto: Option<&str>| proto.is_none_or(|proto| proto.eq_ignore_ascii_case(scheme));
    let standard = parameter("host").filter(|_| is_scheme(parameter("proto")));
    let usual = first(HeaderName::from_static("x-forwarded-host"))
        .filter(|_| is_scheme(first(HeaderName::from_static("x-forwarded-proto"))));
    [standard, usual].into_iter().flatten().filter_map(Authority::parse)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        all.iter().map(pair).collect()
    }

    #[test]
    fn values_of_cors_origin_allow_what_they_say() {
        for (value, allowed, others) in [
            ("*", &["http://a.example", "null", "app://x"][..], &[][..]),
            ("null", &["null"], &["http://null", "file://"]),
            ("app://", &["app://obsidian.md", "app://"], &["apps://x", "http://app"]),
            ("vscode-webview://*", &["vscode-webview://0a-1b"], &["vscode-file://x"]),
            ("file://", &["file://"], &["null"]),
            ("tauri://localhost", &["tauri://localhost"], &["tauri://other"]),
            ("app://obsidian.md", &["app://obsidian.md", "APP://Obsidian.md"], &["app://x"]),
            (
                "http://localhost:3000",
                &["http://localhost:3000"],
                &["http://localhost:3001", "https://localhost:3000", "http://localhost", "null"],
            ),
            ("http://localhost:3000/", &["http://localhost:3000"], &["http://localhost"]),
            ("http://LOCALHOST:*", &["http://localhost:1", "http://localhost"], &["http://a:1"]),
            ("https://a.example:443", &["https://a.example"], &["https://a.example:444"]),
            (
                "https://*.a.example",
                &["https://b.a.example", "https://c.b.a.example"],
                &["https://a.example", "https://ba.example", "https://evil.example"],
            ),
            ("http://[::1]:80", &["http://[::1]"], &["http://[::1]:81"]),
            ("https://*", &["https://a.example:1"], &["http://a.example"]),
        ] {
            let parsed: AllowedOrigin = value.parse().unwrap_or_else(|_| panic!("{value}"));
            for origin in allowed {
                assert!(parsed.allows(origin), "{value} {origin}");
            }
            for origin in others {
                assert!(!parsed.allows(origin), "{value} {origin}");
            }
        }
        for value in [
            "",
            "here",
            "http://",
            "https:///",
            "://a",
            "1a://b",
            "http://a/b",
            "http://a b",
            "http://a:99999",
            "http://a:",
            "http://*.*",
            "http://a,b",
            "http://[::1",
            "http://u@a",
            "http://*a",
            "http://a?b",
            "http://a:*:*",
            "http://é",
        ] {
            assert_eq!(value.parse::<AllowedOrigin>(), Err(OriginError), "{value}");
        }
    }

    #[test]
    fn names_of_this_machine_are_known_whatever_the_port() {
        for host in [
            "localhost",
            "LOCALHOST:1",
            "localhost.",
            "localhost.:9999",
            "app.localhost:9999",
            "127.0.0.1:9999",
            "127.1.2.3",
            "[::1]",
            "[::1]:9999",
            "[::ffff:127.0.0.1]:8080",
            "host.docker.internal:8080",
            "host.containers.internal",
        ] {
            assert!(is_local_host(&headers(&[("host", host)])), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "notlocalhost",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "0.0.0.0",
            "[::]",
            "10.0.0.1",
            "[::ffff:10.0.0.1]",
            "localhost:",
            "localhost:x",
            "localhost:1:2",
            "::1",
            "internal",
            "host.evil.example.internal",
            "host.internal",
        ] {
            assert!(!is_local_host(&headers(&[("host", host)])), "{host}");
        }
        assert!(is_local_host(&headers(&[])));
    }

    #[test]
    fn a_page_is_own_where_it_came_from_the_host_that_it_asks() {
        let is_own = |origin: &str, all: &[(&'static str, &str)], has_keys| {
            is_own_origin(origin, &headers(all), has_keys)
        };
        for (origin, host) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080"),
            ("https://llm.example", "llm.example"),
            ("https://llm.example", "LLM.example:443"),
            ("https://llm.example:8443", "llm.example:8443"),
            ("http://[::1]:8080", "[::1]:8080"),
        ] {
            for has_keys in [false, true] {
                assert!(is_own(origin, &[("host", host)], has_keys), "{origin} {host}");
            }
        }
        for (origin, host) in [
            ("http://evil.example", "llm.example"),
            ("http://localhost:3000", "localhost:8080"),
            ("http://localhost", "localhost:8080"),
            ("app://llm.example", "llm.example"),
            ("null", "llm.example"),
            ("https://llm.example.evil.example", "llm.example"),
            ("https://evil.example/llm.example", "llm.example"),
            ("https://user@llm.example", "llm.example"),
        ] {
            for has_keys in [false, true] {
                assert!(!is_own(origin, &[("host", host)], has_keys), "{origin} {host}");
            }
        }
    }

    #[test]
    fn what_proxies_forward_counts_where_there_are_keys() {
        let origin = "https://llm.example:8443";
        let host = ("host", "127.0.0.1:8080");
        for (name, value, more) in [
            ("x-forwarded-host", "llm.example:8443", ("x-forwarded-proto", "https")),
            ("x-forwarded-host", "llm.example:8443, inner", ("x-forwarded-for", "1.2.3.4")),
            ("forwarded", "for=1.2.3.4;host=\"llm.example:8443\";proto=https, for=x", ("via", "1")),
            ("forwarded", "Host=LLM.example:8443", ("via", "1")),
        ] {
            let headers = headers(&[host, (name, value), more]);
            assert!(is_own_origin(origin, &headers, true), "{name}: {value}");
            assert!(!is_own_origin(origin, &headers, false), "{name}: {value}");
            assert!(!is_own_origin("https://evil.example", &headers, true), "{name}: {value}");
        }
        let other = [host, ("x-forwarded-host", "llm.example:8443"), ("x-forwarded-proto", "http")];
        assert!(!is_own_origin(origin, &headers(&other), true));
        // A proxy that leaves the port out of `Host`.
        assert!(is_own_origin(origin, &headers(&[("host", "llm.example")]), true));
        assert!(!is_own_origin(origin, &headers(&[("host", "llm.example")]), false));
    }
}
