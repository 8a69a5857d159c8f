//! The routed experts of moeflux's demo model: the data of the program `moeflux`.

#![forbid(unsafe_code)]

/// The model's files of routed experts: path in the model's folder and content.
pub static FILES: &[(&str, &[u8])] = &[
    ("packed_experts/layer_00.bin", include_bytes!("layer_00.bin")),
    ("packed_experts/layer_01.bin", include_bytes!("layer_01.bin")),
    ("packed_experts/layer_02.bin", include_bytes!("layer_02.bin")),
    ("packed_experts/layer_03.bin", include_bytes!("layer_03.bin")),
    ("packed_experts/layer_04.bin", include_bytes!("layer_04.bin")),
    ("packed_experts/layer_05.bin", include_bytes!("layer_05.bin")),
    ("packed_experts/layer_06.bin", include_bytes!("layer_06.bin")),
    ("packed_experts/layer_07.bin", include_bytes!("layer_07.bin")),
];
