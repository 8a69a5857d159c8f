//! Requests to the Hub: redirects, the token, refusals.

use std::io::Read;
use std::time::SystemTime;

use ureq::http::{HeaderMap, Response};
use ureq::tls::TlsConfig;
use ureq::{Agent, Body};

use super::certificates::trusted;
use super::env::{HubEnv, Login, Token};
use super::error::{HubError, Missing};
use super::retry::{RetryPolicy, parse_retry_after};

const MAX_REDIRECTS: u32 = 10;

pub(super) struct Client {
    agent: Agent,
    pub(super) endpoint: String,
    pub(super) retry: RetryPolicy,
    token: Option<Token>,
    login: Option<Login>,
}

/// One request: what to ask for, and whose name errors bear.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) url: &'a str,
    /// `org/name`.
    pub(super) repo: &'a str,
    /// Repository and revision, or the file.
    pub(super) what: &'a str,
    pub(super) is_head: bool,
    pub(super) range: Option<Range<'a>>,
}

/// Which bytes of a file are wanted.
#[derive(Clone, Copy)]
pub(super) enum Range<'a> {
    /// From an offset on, if the content still has this ETag.
    From { start: u64, etag: &'a str },
    /// From `start` to before `end`.
    Part { start: u64, end: u64 },
}

/// The answer to a request, and the headers that the Hub itself sent before it redirected.
pub(super) struct Answer {
    pub(super) response: Response<Body>,
    /// The content's identity: `X-Linked-ETag` or `ETag`, without quotes.
    pub(super) etag: Option<String>,
    /// `X-Linked-Size`, in bytes.
    pub(super) linked_size: Option<u64>,
}

impl Client {
    /// A client for requests that are tried `n_attempts` times.
    ///
    /// # Errors
    /// Where the certificates that a variable names cannot be read.
    pub(super) fn new(env: &HubEnv, n_attempts: u32) -> Result<Self, HubError> {
        let tls = if env.endpoint.starts_with("https://") {
            TlsConfig::builder().root_certs(trusted(env.certificates.as_ref())?).build()
        } else {
            TlsConfig::default()
        };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Redirects are followed here, so that the token stays with the endpoint.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(Some(env.connect_timeout))
            .timeout_connect(Some(env.connect_timeout))
            .timeout_recv_response(Some(env.stall_timeout))
            .timeout_per_read(Some(env.stall_timeout))
            .tls_config(tls)
            .user_agent(concat!("moeflux/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self {
            agent: Agent::new_with_config(config),
            endpoint: env.endpoint.clone(),
            token: env.token.clone(),
            login: env.login.clone(),
            retry: RetryPolicy { n_attempts, first_wait: env.retry_wait },
        })
    }

    /// The same client with another number of attempts.
    pub(super) fn with_attempts(self, n_attempts: u32) -> Self {
        Self { retry: RetryPolicy { n_attempts, ..self.retry }, ..self }
    }

    /// One GET or HEAD with redirects followed.
    pub(super) fn request(&self, request: Request<'_>) -> Result<Answer, HubError> {
        let Request { url, range, .. } = request;
        let mut at = url.to_owned();
        let (mut etag, mut linked_size) = (None, None);
        for _ in 0..MAX_REDIRECTS {
            let response = self.send(&request, &at)?;
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
            let is_of_storage = origin(&at) != origin(url);
            return Err(if is_of_storage && status != 429 && status < 500 {
                // The time that the address was signed for is over, say: the Hub signs another.
                HubError::Storage { url: without_query(&at), status }
            } else {
                self.refusal(status, response.headers(), &request)
            });
        }
        Err(HubError::Answer { url: url.to_owned(), problem: "too many redirects".into() })
    }

    fn send(&self, request: &Request<'_>, at: &str) -> Result<Response<Body>, HubError> {
        let is_of_hub = origin(at) == origin(request.url);
        let login = self.login.as_ref().filter(|_| is_of_hub && self.token.is_none());
        let address = login.map(|login| login.join(at));
        let address = address.as_deref().unwrap_or(at);
        let mut builder =
            if request.is_head { self.agent.head(address) } else { self.agent.get(address) };
        builder = builder.header("accept-encoding", "identity");
        if let Some(token) = self.token.as_ref().filter(|_| is_of_hub) {
            if !token.secret.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(HubError::Token { source_name: token.source.clone() });
            }
            builder = builder.header("authorization", format!("Bearer {}", token.secret));
        }
        match request.range {
            Some(Range::From { start, etag }) => {
                builder = builder.header("range", format!("bytes={start}-"));
                // The Hub's own answer knows this ETag; the storage it redirects to has another.
                if at == request.url && !etag.is_empty() {
                    builder = builder.header("if-range", format!("\"{etag}\""));
                }
            }
            Some(Range::Part { start, end }) => {
                builder = builder.header("range", format!("bytes={start}-{}", end - 1));
            }
            None => {}
        }
        builder.call().map_err(|source| HubError::network(request.url, source))
    }

    /// What a status other than success means. The Hub says more in `X-Error-Code`; it answers 401
    /// where a repository does not exist and no token was sent, so that private names stay secret.
    fn refusal(&self, status: u16, headers: &HeaderMap, request: &Request<'_>) -> HubError {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let (repo, what) = (request.repo.to_owned(), request.what.to_owned());
        let host = self.endpoint.clone();
        let message = header("x-error-message").unwrap_or_default().to_owned();
        let token = self.token.as_ref().map(|token| token.source.clone());
        match (status, header("x-error-code").unwrap_or_default()) {
            (401 | 403, "GatedRepo") => HubError::Gated { repo, host, token },
            (401 | 403 | 404, "RepoNotFound") => {
                HubError::NotFound(Missing::Repo { repo, host, token })
            }
            (404, "RevisionNotFound") => HubError::NotFound(Missing::Revision { what, host }),
            (404, "EntryNotFound") => HubError::NotFound(Missing::File { what, repo, host }),
            (401, _) => match token {
                Some(source_name) => HubError::Token { source_name },
                None => HubError::NotFound(Missing::Repo { repo, host, token: None }),
            },
            (403 | 451, _) => HubError::Denied { what, status, message },
            (404 | 410, _) => HubError::NotFound(Missing::Repo { repo, host, token }),
            _ => {
                let now = SystemTime::now();
                let retry_after =
                    header("retry-after").and_then(|value| parse_retry_after(value, now));
                HubError::Status { url: request.url.to_owned(), status, retry_after }
            }
        }
    }

    /// The whole content of a file or of an answer of the interface, of up to `limit` bytes.
    pub(super) fn read_all(&self, request: Request<'_>, limit: u64) -> Result<Vec<u8>, HubError> {
        let response = self.request(request)?.response;
        let expected = content_length(&response);
        let mut bytes = Vec::new();
        let mut body = response.into_body().into_reader().take(limit + 1);
        body.read_to_end(&mut bytes).map_err(|source| HubError::network(request.url, source))?;
        if bytes.len() as u64 > limit {
            let problem = format!("more than {limit} bytes");
            return Err(HubError::Answer { url: request.url.to_owned(), problem });
        }
        if expected.is_some_and(|expected| expected > bytes.len() as u64) {
            return Err(HubError::cut_off(request.url));
        }
        Ok(bytes)
    }

    /// Bytes `start..end` of a file. A server without ranges sends the file from its start, of
    /// which nothing after `end` is read.
    pub(super) fn read_part(
        &self,
        request: Request<'_>,
        start: u64,
        end: u64,
    ) -> Result<Vec<u8>, HubError> {
        let request = Request { range: Some(Range::Part { start, end }), ..request };
        let response = self.request(request)?.response;
        let n_before = match response.status().as_u16() {
            206 if starts_at(&response, start, None) => 0,
            200 => start,
            status => return Err(HubError::odd_range(request.url, status)),
        };
        refuse_web_page(&response, request.url)?;
        let mut body = response.into_body().into_reader();
        let network = |source| HubError::network(request.url, source);
        std::io::copy(&mut (&mut body).take(n_before), &mut std::io::sink()).map_err(network)?;
        let mut bytes = Vec::new();
        body.take(end - start).read_to_end(&mut bytes).map_err(network)?;
        if (bytes.len() as u64) < end - start {
            return Err(HubError::cut_off(request.url));
        }
        Ok(bytes)
    }
}

/// Refuses what a network's page for signing in, or an error page, sends in place of a file.
pub(super) fn refuse_web_page(response: &Response<Body>, url: &str) -> Result<(), HubError> {
    let content_type = response.headers().get("content-type").and_then(|v| v.to_str().ok());
    if content_type.is_some_and(|kind| kind.trim().to_lowercase().starts_with("text/html")) {
        Err(HubError::WebPage { url: url.to_owned() })
    } else {
        Ok(())
    }
}

pub(super) fn content_length(response: &Response<Body>) -> Option<u64> {
    response.headers().get("content-length")?.to_str().ok()?.parse().ok()
}

/// Whether a partial answer begins at byte `from` of a file of `size` bytes, where it says how many.
pub(super) fn starts_at(response: &Response<Body>, from: u64, size: Option<u64>) -> bool {
    let range = response.headers().get("content-range").and_then(|v| v.to_str().ok());
    range.is_some_and(|range| is_range_from(range, from, size))
}

/// The same for the value of `Content-Range`: `bytes 7-99/100` or `bytes 7-99/*`.
fn is_range_from(range: &str, from: u64, size: Option<u64>) -> bool {
    let Some(range) = range.trim().strip_prefix("bytes ") else { return false };
    let (span, total) = range.split_once('/').unwrap_or((range, "*"));
    let start = span.split('-').next().unwrap_or_default();
    let is_of_size = size.is_none_or(|size| match total.trim() {
        "*" => true,
        total => total.parse() == Ok(size),
    });
    start.trim().parse() == Ok(from) && is_of_size
}

/// Scheme, host and port of an address.
pub(super) fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find(['/', '?', '#']).map_or(url.len(), |at| host + at);
    &url[..end]
}

/// Signatures in queries are secrets.
fn without_query(url: &str) -> String {
    url.split(['?', '#']).next().unwrap_or_default().to_owned()
}

fn redirected(from: &str, location: &str) -> Option<String> {
    let is_secure = from.starts_with("https://");
    if location.starts_with("https://") || (location.starts_with("http://") && !is_secure) {
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
    fn redirects_stay_within_http_and_never_lose_encryption() {
        for (location, want) in [
            ("/x/y", Some("https://h:1/x/y")),
            ("https://cdn/z", Some("https://cdn/z")),
            ("http://cdn/z", None),
            ("//cdn/z", None),
            ("file:///etc/passwd", None),
            ("", None),
        ] {
            let got = redirected("https://h:1/a?b=/c", location);
            assert_eq!(got.as_deref(), want, "{location}");
        }
        assert_eq!(redirected("http://h/a", "http://cdn/z").as_deref(), Some("http://cdn/z"));
        assert_ne!(origin("https://h"), origin("https://h.evil"));
        assert_ne!(origin("https://h"), origin("https://h@evil/"));
    }

    #[test]
    fn a_range_is_the_rest_of_the_file_that_was_asked_for() {
        for (range, want) in [
            ("bytes 7-99/100", true),
            ("bytes 7-99/*", true),
            (" bytes  7 - 99 / 100 ", true),
            ("bytes 7-", true),
            ("bytes 7-98/99", false),
            ("bytes 8-99/100", false),
            ("bytes 07x-99/100", false),
            ("bytes */100", false),
            ("bytes 7-99/100, 7-99/100", false),
            ("bytes 7-99/18446744073709551716", false),
            ("7-99/100", false),
            ("", false),
        ] {
            assert_eq!(is_range_from(range, 7, Some(100)), want, "{range:?}");
        }
    }

    #[test]
    fn etags_lose_their_quotes() {
        assert_eq!(bare_etag("W/\"ab\""), "ab");
        assert_eq!(bare_etag("\"ab\""), "ab");
    }
}
