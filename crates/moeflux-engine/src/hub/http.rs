//! Requests to the hub: redirects, the token, repetition.

use std::time::Duration;

use ureq::http::Response;
use ureq::{Agent, Body};

use super::HubEnv;
use super::error::HubError;

/// Attempts at one request, the first included, where nothing else can serve.
pub(super) const N_ATTEMPTS: u32 = 5;
const MAX_REDIRECTS: u32 = 10;
/// The longest wait between two attempts.
const MAX_WAIT: Duration = Duration::from_secs(30);

pub(super) struct Client {
    agent: Agent,
    pub(super) endpoint: String,
    token: Option<String>,
    retry_wait: Duration,
    n_attempts: u32,
}

/// The answer to a request, and the headers that the hub itself sent before it redirected.
pub(super) struct Answer {
    pub(super) response: Response<Body>,
    /// The content's identity: `X-Linked-ETag` or `ETag`, without quotes.
    pub(super) etag: Option<String>,
    /// `X-Linked-Size`, in bytes.
    pub(super) linked_size: Option<u64>,
}

impl Client {
    pub(super) fn new(env: &HubEnv, n_attempts: u32) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Redirects are followed here, so that the token stays with the endpoint.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(Duration::from_secs(15)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .timeout_per_read(Some(Duration::from_secs(60)))
            .user_agent(concat!("moeflux/", env!("CARGO_PKG_VERSION")))
            .build();
        Self {
            agent: Agent::new_with_config(config),
            endpoint: env.endpoint.clone(),
            token: env.token.clone(),
            retry_wait: env.retry_wait,
            n_attempts,
        }
    }

    /// Calls `attempt` until it succeeds, fails for good, or has failed too often. An attempt
    /// that got somewhere, told by a change of `progress`, starts the count anew.
    pub(super) fn with_retries<T>(
        &self,
        progress: impl Fn() -> u64,
        mut attempt: impl FnMut() -> Result<T, HubError>,
    ) -> Result<T, HubError> {
        let mut n_failed = 0;
        let mut before = progress();
        loop {
            match attempt() {
                Err(error) if error.is_transient() => {
                    if progress() > before {
                        n_failed = 0;
                    }
                    before = progress();
                    n_failed += 1;
                    if n_failed == self.n_attempts {
                        return Err(error);
                    }
                    std::thread::sleep((self.retry_wait * (1 << (n_failed - 1))).min(MAX_WAIT));
                }
                result => return result,
            }
        }
    }

    /// One GET or HEAD with redirects followed. `what` names the thing in errors; `range` asks for
    /// the bytes from an offset on if the content is still `etag`.
    pub(super) fn request(
        &self,
        method: &str,
        url: &str,
        what: &str,
        range: Option<(u64, &str)>,
    ) -> Result<Answer, HubError> {
        let network = |source: ureq::Error| HubError::Network {
            url: url.to_owned(),
            source: Box::new(source),
        };
        let mut at = url.to_owned();
        let (mut etag, mut linked_size) = (None, None);
        for _ in 0..MAX_REDIRECTS {
            let mut request = match method {
                "HEAD" => self.agent.head(&at),
                _ => self.agent.get(&at),
            };
            request = request.header("accept-encoding", "identity");
            if let Some(token) = self.token.as_ref().filter(|_| origin(&at) == origin(url)) {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            if let Some((from, etag)) = range {
                request = request.header("range", format!("bytes={from}-"));
                // The hub's own answer knows this ETag; the storage behind it has another.
                if at == url && !etag.is_empty() {
                    request = request.header("if-range", format!("\"{etag}\""));
                }
            }
            let response = request.call().map_err(network)?;
            let header = |name: &str| response.headers().get(name)?.to_str().ok();
            let own_etag = header("x-linked-etag").or(header("etag"));
            etag = etag.or(own_etag.map(bare_etag));
            linked_size = linked_size.or(header("x-linked-size").and_then(|n| n.parse().ok()));
            let status = response.status().as_u16();
            if matches!(status, 301 | 302 | 303 | 307 | 308) {
                at = redirected(&at, header("location").unwrap_or_default()).ok_or_else(|| {
                    HubError::Answer { url: at.clone(), problem: "a broken redirect".into() }
                })?;
                continue;
            }
            // A 416 is for the caller: what it holds already is at least as long as the file.
            if response.status().is_success() || (status == 416 && range.is_some()) {
                return Ok(Answer { response, etag, linked_size });
            }
            return Err(refusal(status, what, at));
        }
        Err(HubError::Answer { url: url.to_owned(), problem: "too many redirects".into() })
    }
}

fn refusal(status: u16, what: &str, url: String) -> HubError {
    match status {
        404 => HubError::NotFound { what: what.to_owned() },
        401 | 403 => HubError::Denied { what: what.to_owned(), status },
        _ => HubError::Status { url, status },
    }
}

/// Scheme, host and port of an address.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find(['/', '?', '#']).map_or(url.len(), |at| host + at);
    &url[..end]
}

fn redirected(from: &str, location: &str) -> Option<String> {
    if location.starts_with("http://") || location.starts_with("https://") {
        return Some(location.to_owned());
    }
    let is_path = location.starts_with('/') && !location.starts_with("//");
    is_path.then(|| format!("{}{location}", origin(from)))
}

fn bare_etag(etag: &str) -> String {
    etag.trim().trim_start_matches("W/").trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_stay_within_http() {
        for (location, want) in [
            ("/x/y", Some("https://h:1/x/y")),
            ("http://cdn/z", Some("http://cdn/z")),
            ("//cdn/z", None),
            ("file:///etc/passwd", None),
            ("", None),
        ] {
            let got = redirected("https://h:1/a?b=/c", location);
            assert_eq!(got.as_deref(), want, "{location}");
        }
        assert_ne!(origin("https://h"), origin("https://h.evil"));
        assert_ne!(origin("https://h"), origin("https://h@evil/"));
    }

    #[test]
    fn etags_lose_their_quotes() {
        assert_eq!(bare_etag("W/\"ab\""), "ab");
        assert_eq!(bare_etag("\"ab\""), "ab");
    }
}
