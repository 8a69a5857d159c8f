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
        let hits = markers.iter().enumerate().filter_map(|(i, it)| Some((self.0.find(it)?, i)));
        if let Some((at, i)) = hits.min_by_key(|(at, i)| (*at, usize::MAX - markers[*i].len())) {
            let before = self.0[..at].to_owned();
            self.0.drain(..at + markers[i].len());
            return Found { before, marker: Some(i) };
        }
        let certain = self.certain(markers);
        Found { before: self.0.drain(..certain).collect(), marker: None }
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
        let longest = markers.iter().map(|it| it.len()).max().unwrap_or(0);
        let mut from = self.0.len().saturating_sub(longest);
        while !self.0.is_char_boundary(from) {
            from += 1;
        }
        let begins = |at: &usize| {
            let tail = &self.0.as_bytes()[*at..];
            markers.iter().any(|it| it.as_bytes().starts_with(tail))
        };
        (from..self.0.len()).find(begins).unwrap_or(self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_found_wherever_pieces_end() {
        let text = "say <a> é </a";
        for first in (0..=text.len()).filter(|it| text.is_char_boundary(*it)) {
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
    fn of_two_markers_at_one_place_the_longer_counts() {
        let mut pending = Pending::default();
        pending.push("<ab>");
        assert_eq!(pending.until(&["<a", "<ab"]).marker, Some(1));
        assert_eq!(pending.take(), ">");
    }
}
