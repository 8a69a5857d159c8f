//! The web page: a few files inside the binary, which ask nothing of other servers.

use std::sync::LazyLock;

use hyper::header::{CACHE_CONTROL, ETAG, HeaderName, HeaderValue, IF_NONE_MATCH};
use hyper::{HeaderMap, StatusCode};
use moeflux_core::hex;
use sha2::{Digest, Sha256};

use crate::reply::{self, Reply};

/// A file of the page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Asset {
    pub(crate) path: &'static str,
    mime: &'static str,
    text: &'static str,
}

/// Files of `page/` with the type that their names stand for.
macro_rules! assets {
    ($($mime:literal: $($name:literal),+;)+) => {
        &[
            Asset { path: "/", mime: "text/html; charset=utf-8", text: include_str!("page/index.html") },
            Asset { path: "/favicon.svg", mime: "image/svg+xml", text: include_str!("page/favicon.svg") },
            $($(Asset {
                path: concat!("/page/", $name),
                mime: $mime,
                text: include_str!(concat!("page/", $name)),
            },)+)+
        ]
    };
}

pub(crate) const ASSETS: &[Asset] = assets! {
    "text/css; charset=utf-8": "base.css", "chat.css", "content.css", "panels.css";
    "text/javascript; charset=utf-8":
        "answer.js", "api.js", "charts.js", "chats.js", "composer.js", "dom.js", "facts.js",
        "files.js", "introduction.js", "keys.js", "main.js", "markdown.js", "message.js", "models.js", "options.js",
        "pictures.js", "search.js", "settings.js", "sidebar.js", "storage.js", "theme.js", "thread.js", "transfer.js",
        "tree.js";
};

/// What the page may do: nothing with other servers, and no script or style of other files. Pictures of
/// questions are data URLs.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// A name for the version of all files together.
static VERSION: LazyLock<HeaderValue> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    for asset in ASSETS {
        hash.update(asset.path);
        hash.update(asset.text);
    }
    let version = hex(&hash.finalize()[..8]);
    HeaderValue::try_from(format!("\"{version}\"")).expect("hexadecimal digits in quotes")
});

impl Asset {
    /// The file, or 304 where the browser has this version of it.
    pub(crate) fn reply(&self, headers: &HeaderMap) -> Reply {
        let known = headers.get(IF_NONE_MATCH).map_or(&b""[..], HeaderValue::as_bytes);
        let version = VERSION.as_bytes();
        let mut reply = if known.windows(version.len()).any(|part| part == version) {
            reply::bytes(StatusCode::NOT_MODIFIED, self.mime, "")
        } else {
            reply::bytes(StatusCode::OK, self.mime, self.text)
        };
        reply.headers_mut().insert(ETAG, VERSION.clone());
        reply::set(&mut reply, CACHE_CONTROL, "no-cache");
        for (name, value) in [
            ("content-security-policy", POLICY),
            ("referrer-policy", "no-referrer"),
            ("x-frame-options", "DENY"),
        ] {
            reply::set(&mut reply, HeaderName::from_static(name), value);
        }
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_browser_has_is_not_sent_again() {
        let first = ASSETS[0].reply(&HeaderMap::new());
        assert_eq!(first.status(), StatusCode::OK);
        let mut headers = HeaderMap::new();
        headers.insert(IF_NONE_MATCH, first.headers()[ETAG].clone());
        assert_eq!(ASSETS[0].reply(&headers).status(), StatusCode::NOT_MODIFIED);
        headers.insert(IF_NONE_MATCH, HeaderValue::from_static("\"another\""));
        assert_eq!(ASSETS[0].reply(&headers).status(), StatusCode::OK);
    }

    /// The page works below any path of a proxy, and without anything from elsewhere.
    #[test]
    fn addresses_are_relative_and_there() {
        for asset in ASSETS {
            for mark in ["src=\"", "href=\"", "from \"", "fetch(\"", "send(\""] {
                for part in asset.text.split(mark).skip(1) {
                    let address = part.split('"').next().unwrap_or_default();
                    let is_other = address.starts_with('/') || address.contains("://");
                    assert!(!is_other, "{address} of {}", asset.path);
                    let is_file = address.ends_with(".js") || address.ends_with(".css");
                    let name = address.trim_start_matches("./").trim_start_matches("page/");
                    let is_there =
                        ASSETS.iter().any(|asset| asset.path.ends_with(&format!("/{name}")));
                    assert!(!is_file || is_there, "{address} of {}", asset.path);
                }
            }
            assert!(
                !asset.text.contains("style=\""),
                "{}: the policy allows no styles",
                asset.path
            );
        }
    }
}
