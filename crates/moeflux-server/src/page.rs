//! The page for people: a few files inside the binary, which ask for nothing
//! from elsewhere.

use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, HeaderName};

use crate::reply::{self, Reply};

/// A file of the page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Asset {
    pub(crate) path: &'static str,
    mime: &'static str,
    text: &'static str,
}

pub(crate) const ASSETS: &[Asset] = &[
    Asset { path: "/", mime: "text/html; charset=utf-8", text: include_str!("page/index.html") },
    Asset {
        path: "/page/style.css",
        mime: "text/css; charset=utf-8",
        text: include_str!("page/style.css"),
    },
    Asset {
        path: "/page/markdown.js",
        mime: "text/javascript; charset=utf-8",
        text: include_str!("page/markdown.js"),
    },
    Asset {
        path: "/page/charts.js",
        mime: "text/javascript; charset=utf-8",
        text: include_str!("page/charts.js"),
    },
    Asset {
        path: "/page/chat.js",
        mime: "text/javascript; charset=utf-8",
        text: include_str!("page/chat.js"),
    },
    Asset { path: "/favicon.svg", mime: "image/svg+xml", text: include_str!("page/favicon.svg") },
];

/// What the page may do: nothing with other servers, no script of anybody's.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

impl Asset {
    pub(crate) fn reply(&self) -> Reply {
        let mut reply = reply::bytes(StatusCode::OK, self.mime, self.text);
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
