//! What bounds a rendering, and text as HTML.

use std::time::{Duration, Instant};

/// Time that the texts of one request may take for highlighting and formulas together.
const TIME: Duration = Duration::from_secs(1);

/// What is left of the time for work that can be left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub(super) until: Instant,
}

impl Budget {
    pub(crate) fn new() -> Budget {
        Budget { until: Instant::now() + TIME }
    }

    pub(super) fn is_spent(&self) -> bool {
        Instant::now() >= self.until
    }
}

/// Text as HTML.
pub(super) fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len() + text.len() / 8);
    for char in text.chars() {
        match char {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            // Not allowed in HTML; the page shows what took its place.
            '\0' => html.push('\u{fffd}'),
            _ => html.push(char),
        }
    }
    html
}
