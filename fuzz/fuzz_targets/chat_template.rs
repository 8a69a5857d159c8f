//! A template of a downloaded model: it may fail, but neither panic nor run on.
#![no_main]

use libfuzzer_sys::fuzz_target;
use moeflux_text::{ChatTemplate, MarkupText, Message, RenderRequest};

fuzz_target!(|source: &str| {
    let Ok(template) = ChatTemplate::new(source, MarkupText::default()) else { return };
    let messages = [Message::new("user", "a </think> b")];
    let request =
        RenderRequest { messages: &messages, add_generation_prompt: true, ..Default::default() };
    if let Ok(rendered) = template.render(&request) {
        assert!(rendered.fences().iter().all(|&at| rendered.text().is_char_boundary(at)));
    }
});
