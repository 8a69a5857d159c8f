//! Stop strings: what comes out is the text before the first of them, however it is cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use moeflux_text::StopMatcher;

fuzz_target!(|input: (Vec<String>, Vec<String>)| {
    let (stops, pieces) = input;
    let text = pieces.concat();
    let first =
        stops.iter().filter(|it| !it.is_empty()).filter_map(|it| text.find(it.as_str())).min();
    let mut matcher = StopMatcher::new(stops);
    let emitted: String = pieces.iter().map(|it| matcher.push(it).emit).collect();
    assert_eq!(emitted + &matcher.finish().emit, text[..first.unwrap_or(text.len())]);
});
