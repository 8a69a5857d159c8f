//! Stop strings, wherever the token boundaries fall.

/// Finds the first stop string in text that arrives in pieces.
///
/// Text that might be the beginning of a stop string is held back until it is decided, so that
/// no part of a stop string is ever emitted.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    stopped: bool,
    matched: Option<usize>,
}

/// What a piece of text released.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Text that is certain not to belong to a stop string.
    pub emit: String,
    /// Whether a stop string was completed: nothing is emitted from now on.
    pub stopped: bool,
}

impl StopMatcher {
    /// Empty stop strings are ignored: they would match everywhere.
    pub fn new(mut stops: Vec<String>) -> Self {
        stops.retain(|stop| !stop.is_empty());
        Self { stops, held: String::new(), stopped: false, matched: None }
    }

    /// Takes the next piece. Of several stop strings the one that begins first ends the text; its
    /// beginning is decided even where a later one is complete already.
    pub fn push(&mut self, piece: &str) -> Pushed {
        if self.stopped {
            return Pushed { emit: String::new(), stopped: true };
        }
        self.held.push_str(piece);
        let found = first_of(&self.stops, &self.held);
        let undecided = self.undecided_from();
        match found {
            Some((at, stop)) if at <= undecided => {
                self.stopped = true;
                self.matched = Some(stop);
                let emit = self.held[..at].to_owned();
                self.held.clear();
                Pushed { emit, stopped: true }
            }
            _ => Pushed { emit: self.held.drain(..undecided).collect(), stopped: false },
        }
    }

    /// Ends the text: what was held back comes out, up to a stop string that is complete in it.
    pub fn finish(&mut self) -> Pushed {
        let held = std::mem::take(&mut self.held);
        let found = first_of(&self.stops, &held);
        let emit = held[..found.map_or(held.len(), |(at, _)| at)].to_owned();
        self.stopped |= found.is_some();
        self.matched = self.matched.or(found.map(|(_, stop)| stop));
        Pushed { emit, stopped: self.stopped }
    }

    /// The stop string that ended the text.
    pub fn matched(&self) -> Option<&str> {
        self.matched.map(|idx| self.stops[idx].as_str())
    }

    /// The first byte of the held text where a stop string may have begun that is still
    /// incomplete; the length of the text if there is none.
    fn undecided_from(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest);
        (from..self.held.len())
            .find(|&at| {
                self.held.get(at..).is_some_and(|tail| {
                    self.stops.iter().any(|stop| stop.len() > tail.len() && stop.starts_with(tail))
                })
            })
            .unwrap_or(self.held.len())
    }
}

/// Where the first of the stop strings begins, and which it is.
fn first_of(stops: &[String], text: &str) -> Option<(usize, usize)> {
    stops.iter().enumerate().filter_map(|(i, stop)| Some((text.find(stop.as_str())?, i))).min()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn naive(text: &str, stops: &[String]) -> Pushed {
        let at = stops.iter().filter(|s| !s.is_empty()).filter_map(|s| text.find(s.as_str())).min();
        Pushed { emit: text[..at.unwrap_or(text.len())].to_owned(), stopped: at.is_some() }
    }

    #[track_caller]
    fn check(pieces: &[&str], stops: &[&str]) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut matcher = StopMatcher::new(stops.clone());
        let mut emit = String::new();
        for piece in pieces {
            emit.push_str(&matcher.push(piece).emit);
            let so_far = naive(&pieces.concat(), &stops).emit;
            assert!(so_far.starts_with(&emit), "{emit:?} is emitted, the text is {so_far:?}");
        }
        let end = matcher.finish();
        let got = Pushed { emit: emit + &end.emit, stopped: end.stopped };
        assert_eq!(got, naive(&pieces.concat(), &stops), "{pieces:?} {stops:?}");
    }

    #[test]
    fn finds_stops_across_pieces() {
        check(&["one ", "tw", "o three"], &["two"]);
        check(&["a", "a", "b"], &["aab"]);
        check(&["aaab"], &["aab"]);
        check(&["EN", "E", "ND"], &["END"]);
        check(&["nothing here"], &["", "zzz"]);
        check(&["é", "è"], &["éè"]);
        check(&["abc"], &[]);
    }

    #[test]
    fn an_earlier_longer_stop_wins_over_one_that_is_complete_first() {
        check(&["xabc", "d"], &["abcd", "bc"]);
        check(&["xabc", "e"], &["abcd", "bc"]);
        check(&["xabc"], &["abcd", "bc"]);
    }

    #[test]
    fn emits_nothing_after_a_stop() {
        let mut matcher = StopMatcher::new(vec!["\n".into()]);
        assert_eq!(matcher.push("a\nb"), Pushed { emit: "a".into(), stopped: true });
        assert_eq!(matcher.matched(), Some("\n"));
        assert_eq!(matcher.push("c"), Pushed { emit: String::new(), stopped: true });
        assert_eq!(matcher.finish(), Pushed { emit: String::new(), stopped: true });
    }

    proptest! {
        #[test]
        fn agrees_with_a_search_of_the_whole_text(
            pieces in prop::collection::vec("[abé]{0,4}", 0..12),
            stops in prop::collection::vec("[abé]{0,4}", 0..4),
        ) {
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            check(&pieces, &stops);
        }
    }
}
