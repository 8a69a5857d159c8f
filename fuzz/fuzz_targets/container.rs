//! `moeflux.json`: whatever is accepted has layouts that can be computed.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use moeflux_core::checkpoint::Container;

fuzz_target!(|json: &[u8]| {
    let Ok(container) = Container::from_slice(Path::new(Container::FILE), json) else { return };
    for layer in container.layers.iter().flatten() {
        assert!(layer.layout().record_bytes() as u64 <= layer.stride_bytes);
    }
});
