//! A conversation as a client sends it, rendered by a template that looks at all of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use moeflux_text::{ChatTemplate, MarkupText, Message, RenderRequest};

const TEMPLATE: &str = include_str!("../chat.jinja");

fuzz_target!(|json: &[u8]| {
    let Ok(mut messages) = serde_json::from_slice::<Vec<Message>>(json) else { return };
    messages.iter_mut().for_each(Message::parse_arguments);
    let tokens = ["<|im_start|>", "<|im_end|>", "</think>"]
        .map(|text| (text.into(), text.starts_with("<|")));
    let markup = MarkupText::new(tokens.into(), Default::default());
    let template = ChatTemplate::new(TEMPLATE, markup).expect("the template is valid");
    let _ = template.render(&RenderRequest { messages: &messages, ..Default::default() });
});
