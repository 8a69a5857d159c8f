//! Stop strings: what comes out is the text before the first of them, however it is cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use moeflux_text::StopMatcher;

fuzz_target!(|input: (Vec<String>, Vec<String>)| {
    let (stops, pieces) = input;
    let text = pieces.concat();
    let first = stops
        .iter()
        .filter(|stop| !stop.is_empty())
        .filter_map(|stop| text.find(stop.as_str()))
        .min();
    let mut matcher = StopMatcher::new(stops);
    let emitted: String = pieces.iter().map(|piece| matcher.push(piece).emit).collect();
    assert_eq!(emitted + &matcher.finish().emit, text[..first.unwrap_or(text.len())]);
});
