//! Files of pictures, through decoding, sizes and patches; objects of JSON, as processors.
#![no_main]

use libfuzzer_sys::fuzz_target;
use moeflux_image::{DecodeLimits, Frames, Picture, Processor, picture_size};
use serde_json::json;

fn processors() -> Vec<Processor> {
    let files = [
        json!({ "image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 1024, "max_pixels": 65_536 }),
        json!({ "image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": 70 }),
        json!({ "media_proc_cfg": { "in_patch_limit": 400 } }),
    ];
    files.iter().map(|file| Processor::from_json(file).expect("a published file")).collect()
}

fuzz_target!(|bytes: &[u8]| {
    if bytes.starts_with(b"{") {
        let Ok(json) = serde_json::from_slice(bytes) else { return };
        let Ok(processor) = Processor::from_json(&json) else { return };
        let _ = (processor.layout(1920, 1080), processor.layout(1, 7), processor.layout(9000, 3));
        return;
    }
    let limits =
        DecodeLimits { pixels: 1 << 18, memory_bytes: 64 << 20, ..DecodeLimits::default() };
    let size = picture_size(bytes, &limits);
    let Ok(picture) = Picture::decode(bytes, &limits) else { return };
    assert_eq!(size, Ok(picture.size()));
    for processor in processors() {
        let Ok(layout) = processor.layout(picture.width(), picture.height()) else { continue };
        let prepared = processor.prepare(&picture, &layout).expect("memory for a small picture");
        let mut last = vec![f32::NAN; processor.patch_values()];
        prepared.write(prepared.n_patches() - 1..prepared.n_patches(), Frames::All, &mut last);
        assert!(last.iter().all(|value| value.is_finite()));
    }
});
