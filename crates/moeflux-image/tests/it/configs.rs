//! Published JSON files, and files that say something else.

use moeflux_image::{Levels, Processor, SizeRule};
use serde_json::{Value, json};

fn refusal(file: Value) -> String {
    let error = Processor::from_json(&file).expect_err("a refusal").to_string();
    assert!(error.lines().count() == 1 && error.len() < 400, "{error}");
    error
}

fn read(file: Value) -> Processor {
    Processor::from_json(&file).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn what_a_file_leaves_out_has_published_values() {
    let tokens = |file: Value| {
        let layout = read(file).layout(1920, 1080).expect("a size");
        (layout.grid().rows, layout.grid().columns, layout.n_tokens())
    };
    let class = |name: &str| json!({ "image_processor_type": name });
    assert_eq!(tokens(class("Qwen2VLImageProcessorFast")), (68, 120, 2040));
    assert_eq!(tokens(class("Glm4vImageProcessor")), (78, 138, 2691));
    assert_eq!(tokens(class("Gemma4ImageProcessor")), (36, 66, 264));
    assert_eq!(tokens(json!({ "media_proc_cfg": {} })), (78, 138, 2691));
    assert_eq!(tokens(json!({ "processor_class": "Qwen3VLProcessor" })), (68, 120, 2040));
    let glm = read(class("Glm4vImageProcessor"));
    let Levels::Standardised { mean, .. } = glm.parameters().levels else { panic!("{glm:?}") };
    assert_eq!(mean[0], 0.481_454_66);
    assert_eq!(
        read(class("Glm5NextImageProcessor")).layout(512, 512).expect("a size").n_tokens(),
        361
    );
}

#[test]
fn newer_files_have_the_processor_inside() {
    let inner = json!({ "image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": 1120,
        "do_normalize": false, "size": { "height": 224, "width": 224 } });
    let file = json!({ "image_processor": inner, "processor_class": "Gemma4Processor" });
    let layout = read(file).layout(1920, 1080).expect("a size");
    assert_eq!(layout.n_tokens(), 1100);
    let file =
        json!({ "image_processor": { "patch_size": 16 }, "processor_class": "Qwen3VLProcessor" });
    assert_eq!(read(file).parameters().patch_size, 16);
}

#[test]
fn pixels_of_their_own_names_win_over_the_size() {
    let file = json!({ "image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 1024,
        "max_pixels": 4096.0, "size": { "shortest_edge": 7, "longest_edge": 8 } });
    let SizeRule::Area { min_pixels, max_pixels, .. } = read(file).parameters().rule else {
        panic!("another rule")
    };
    assert_eq!((min_pixels, max_pixels), (1024, 4096));
}

#[test]
fn both_spellings_of_patch_limits_are_read() {
    let published = json!({ "media_proc_cfg": { "in_patch_limit": 120, "patch_limit_on_one_side": 40,
        "patch_size": 7, "merge_kernel_size": [2, 2], "fixed_output_tokens": null } });
    let native = json!({ "image_processor_type": "KimiK25ImageProcessor", "max_patches": 120,
        "patch_size": 7, "merge_size": 2, "size": { "max_height": 40, "max_width": 40 } });
    assert_eq!(read(published), read(native));
}

#[test]
fn wrong_values_are_named() {
    let with = |key: &str, value: Value| {
        let mut file = json!({ "image_processor_type": "Qwen2VLImageProcessorFast" });
        file[key] = value;
        refusal(file)
    };
    for (key, value) in [
        ("patch_size", json!(0)),
        ("patch_size", json!("16")),
        ("patch_size", json!(16.5)),
        ("merge_size", json!(-2)),
        ("merge_size", json!(1e30)),
        ("image_mean", json!([0.5, 0.5])),
        ("image_mean", json!("half")),
        ("size", json!(224)),
        ("do_resize", json!(false)),
        ("do_normalize", json!(false)),
        ("rescale_factor", json!(1.0)),
        ("resample", json!(2)),
        ("max_pixels", json!(1_u64 << 40)),
        ("min_pixels", json!(1 << 25)),
    ] {
        let error = with(key, value.clone());
        assert!(error.contains(key), "{key} = {value}: {error}");
    }
    assert!(with("image_std", json!([0.5, 0.0, 0.5])).contains("deviation"));
    assert!(refusal(json!({})).contains("image_processor_type is missing: known are Qwen2VL"));
    assert!(refusal(json!([1])).contains("write an object"));
    assert!(refusal(json!({ "image_processor_type": "CLIPImageProcessor" })).contains("CLIPImage"));
    let nested = json!({ "image_processor": { "image_processor_type": "Glm4vImageProcessor", "patch_size": [] } });
    assert!(refusal(nested).starts_with("image_processor.patch_size is []"));
    let fixed = json!({ "media_proc_cfg": { "fixed_output_tokens": 64 } });
    assert!(refusal(fixed).starts_with("media_proc_cfg.fixed_output_tokens is 64"));
    let long = refusal(json!({ "image_processor_type": "x\n".repeat(1000) }));
    assert!(long.len() < 400);
}
