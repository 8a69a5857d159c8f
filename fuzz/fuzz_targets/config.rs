//! `config.json`, and every way of asking it for a value.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use moeflux_core::checkpoint::Config;

fuzz_target!(|input: (&str, &[u8])| {
    let (key, json) = input;
    let Ok(config) = Config::from_slice(Path::new("config.json"), json) else { return };
    let _ =
        (config.usize_in(key, 1..=9), config.f32(key), config.bool_or(key, true), config.str(key));
    let _ =
        (config.str_list(key), config.usize_list(key), config.rope_f32(key), config.rope_str(key));
});
