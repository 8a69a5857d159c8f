//! Finding markers in text that arrives in pieces.

/// Text that has arrived and has not been taken.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending(String);

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Text that is certain to stand before any marker.
    pub(super) before: String,
    /// Which marker follows, if one does.
    pub(super) marker: Option<usize>,
}

impl Pending {
    pub(super) fn push(&mut self, piece: &str) {
        self.0.push_str(piece);
    }

    /// Takes text up to the first of `markers`, and that marker. Without one,
    /// what may be the beginning of a marker stays.
    pub(super) fn until(&mut self, markers: &[&str]) -> Found {
        let hits =
            markers.iter().enumerate().filter_map(|(i, marker)| Some((self.0.find(marker)?, i)));
        let first = hits.min_by_key(|(at, i)| (*at, usize::MAX - markers[*i].len()));
        // A longer marker may have begun before one that is complete.
        let certain = self.certain(markers);
        if let Some((at, i)) = first.filter(|(at, _)| *at <= certain) {
            let before = self.0[..at].to_owned();
            self.0.drain(..at + markers[i].len());
            return Found { before, marker: Some(i) };
        }
        Found { before: self.0.drain(..certain).collect(), marker: None }
    }

    /// As [`Pending::until`] for one marker, any white space or none standing for that in it.
    pub(super) fn until_loose(&mut self, marker: &str) -> Found {
        let starts = self.0.char_indices().map(|(at, _)| at);
        for at in starts {
            match loose_len(&self.0[at..], marker) {
                Loose::Whole(len) => {
                    let before = self.0[..at].to_owned();
                    self.0.drain(..at + len);
                    return Found { before, marker: Some(0) };
                }
                Loose::Begun => {
                    return Found { before: self.0.drain(..at).collect(), marker: None };
                }
                Loose::Other => {}
            }
        }
        Found { before: self.take(), marker: None }
    }

    /// Takes all.
    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.0)
    }

    /// The first character, which stays.
    pub(super) fn first_char(&self) -> Option<char> {
        self.0.chars().next()
    }

    /// Takes the first character.
    pub(super) fn next_char(&mut self) -> Option<char> {
        let c = self.0.chars().next()?;
        self.0.drain(..c.len_utf8());
        Some(c)
    }

    /// Bytes before what may be the beginning of a marker.
    fn certain(&self, markers: &[&str]) -> usize {
        let longest = markers.iter().map(|marker| marker.len()).max().unwrap_or(0);
        let mut from = self.0.len().saturating_sub(longest);
        while !self.0.is_char_boundary(from) {
            from += 1;
        }
        let begins = |at: &usize| {
            let tail = &self.0.as_bytes()[*at..];
            markers.iter().any(|marker| marker.as_bytes().starts_with(tail))
        };
        (from..self.0.len()).find(begins).unwrap_or(self.0.len())
    }
}

/// How a text begins.
enum Loose {
    /// With a marker; its length in bytes.
    Whole(usize),
    /// With a part of a marker; the text ends there.
    Begun,
    /// With something else.
    Other,
}

/// Compares the beginning of a text with a marker, white space aside.
fn loose_len(text: &str, marker: &str) -> Loose {
    let mut wanted = marker.chars().filter(|c| !c.is_whitespace()).peekable();
    for (at, c) in text.char_indices() {
        match wanted.peek() {
            None => return Loose::Whole(at),
            Some(next) if *next == c => {
                wanted.next();
            }
            Some(_) if c.is_whitespace() => {}
            Some(_) => return Loose::Other,
        }
    }
    if wanted.peek().is_none() { Loose::Whole(text.len()) } else { Loose::Begun }
}

/// A text without the marker that it begins with, white space aside.
pub(super) fn strip_loose<'t>(text: &'t str, marker: &str) -> &'t str {
    match loose_len(text, marker) {
        Loose::Whole(len) => &text[len..],
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_found_wherever_pieces_end() {
        let text = "say <a> é </a";
        for first in (0..=text.len()).filter(|at| text.is_char_boundary(*at)) {
            let mut pending = Pending::default();
            let mut before = String::new();
            let mut markers = Vec::new();
            for piece in [&text[..first], &text[first..]] {
                pending.push(piece);
                loop {
                    let found = pending.until(&["<a>", "</a>"]);
                    before.push_str(&found.before);
                    let Some(marker) = found.marker else { break };
                    markers.push((before.clone(), marker));
                }
            }
            assert_eq!(markers, [("say ".to_owned(), 0)]);
            assert_eq!(before, "say  é ");
            assert_eq!(pending.take(), "</a");
        }
    }

    #[test]
    fn white_space_of_a_marker_may_be_left_out_or_added() {
        for text in ["a\",\"b\":1", "a\", \"b\": 1", "a\" ,\n\"b\"  :1"] {
            let mut pending = Pending::default();
            let mut found = Found { before: String::new(), marker: None };
            for c in text.chars() {
                pending.push(&c.to_string());
                let next = pending.until_loose("\", \"b\": ");
                found.before += &next.before;
                found.marker = next.marker;
                if found.marker.is_some() {
                    break;
                }
            }
            assert_eq!((&*found.before, found.marker), ("a", Some(0)), "{text}");
        }
        assert_eq!(strip_loose("{\"name\":\"x", "\n{\"name\": \""), "x");
        assert_eq!(strip_loose("name", "{"), "name");
    }

    #[test]
    fn of_two_markers_at_one_place_the_longer_counts() {
        let mut pending = Pending::default();
        pending.push("<ab>");
        assert_eq!(pending.until(&["<a", "<ab"]).marker, Some(1));
        assert_eq!(pending.take(), ">");
    }

    #[test]
    fn a_marker_inside_one_that_has_begun_waits_for_it() {
        let mut pending = Pending::default();
        pending.push("a<|\"");
        let markers = ["<|\"|>", "\""];
        assert_eq!(pending.until(&markers), Found { before: String::from("a"), marker: None });
        pending.push("|>b");
        assert_eq!(pending.until(&markers).marker, Some(0));
        pending.push("<|\"x");
        assert_eq!(pending.until(&markers), Found { before: String::from("b<|"), marker: Some(1) });
        assert_eq!(pending.take(), "x");
    }
}
