//! Conversations that `chat` saved: what is accepted is the same after it was written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use moeflux_engine::Conversation;

fuzz_target!(|json: &[u8]| {
    let Ok(conversation) = Conversation::from_slice(json) else { return };
    let again = Conversation::from_slice(conversation.to_json().as_bytes());
    assert_eq!(again.expect("what was written can be read"), conversation);
});
