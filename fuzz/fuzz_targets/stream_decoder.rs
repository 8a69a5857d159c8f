//! Decoding token by token: the pieces are what decoding all at once gives.
#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use moeflux_core::TokenId;
use moeflux_engine::dialects;
use moeflux_text::{Special, Tokenizer};

const MODEL: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/moeflux-engine/tests/golden/hf-bf16");
static TOKENIZER: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::from_dir(Path::new(MODEL), dialects()).expect("the model has a tokenizer"));

fuzz_target!(|ids: Vec<u8>| {
    let ids: Vec<TokenId> = ids.into_iter().map(|id| TokenId(id.into())).collect();
    let mut stream = TOKENIZER.stream(Special::Show);
    let pieces: String = ids.iter().map(|id| stream.push(*id)).collect();
    assert_eq!(pieces + &stream.finish(), TOKENIZER.decode(&ids));
});
