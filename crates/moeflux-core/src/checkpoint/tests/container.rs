//! The container format: what it writes and reads, and every contradiction that it refuses.

use proptest::prelude::*;

use super::*;

fn good() -> Value {
    let quant = json!({"bits": 4, "group_size": 64, "params": "bf16"});
    let sum = "0123456789abcdef0123456789ABCDEF";
    json!({
        "format": "moeflux", "version": 1, "family": "x", "config": {},
        "source": {"files": [["model.safetensors", 7]], "fingerprint": ""},
        "tensors": {"lm_head": quant, "norm": {"float": "f32"}},
        "layers": [null, {"file": "packed_experts/layer_01.bin", "n_experts": 2, "hidden": 64,
            "intermediate": 128, "gate": quant, "up": quant, "down": quant,
            "record_bytes": 13824, "stride_bytes": 16384}],
        "files": [
            {"path": "resident.safetensors", "bytes": 9, "xxh3_128": sum},
            {"path": "packed_experts/layer_01.bin", "bytes": 32768, "xxh3_128": sum}],
    })
}

fn parse(value: &Value) -> Result<Container, FormatError> {
    Container::from_slice(Path::new("moeflux.json"), value.to_string().as_bytes())
}

#[test]
fn reads_what_it_writes() {
    let container = parse(&good()).unwrap();
    let again = serde_json::to_value(&container).unwrap();
    assert_eq!(again, good());
}

#[test]
fn experts_may_have_no_gate() {
    let mut value = good();
    let layer = value["layers"][1].as_object_mut().unwrap();
    layer.remove("gate");
    layer["record_bytes"] = json!(9216);
    layer["stride_bytes"] = json!(12288);
    value["files"][1]["bytes"] = json!(24576);
    let container = parse(&value).unwrap();
    assert_eq!(serde_json::to_value(&container).unwrap(), value);
    let formats = container.layers[1].as_ref().unwrap().formats();
    assert!(formats.gate.is_none() && formats.up == formats.down);

    let with = |matrices| ExpertsDecl {
        layer: LayerIdx(1),
        prefix: "layers.1.mlp".into(),
        matrices,
        n_experts: 2,
        hidden: 64,
        intermediate: 128,
    };
    let two = ExpertMatrices::Two { parts: ["up", "down"] };
    assert!(container.layer(Path::new(""), &with(two)).is_ok());
    let (parts, fused) = (["gate", "up", "down"], FusedOrder::GateThenUp);
    let three = ExpertMatrices::Three { parts, fused };
    let refused = |container: &Container, matrices| {
        let err = container.layer(Path::new(""), &with(matrices)).err();
        err.expect("another number of matrices").to_string()
    };
    let got = refused(&container, three);
    assert!(got.contains("without a gate, the config asks for them with one"), "{got}");
    let got = refused(&parse(&good()).unwrap(), two);
    assert!(got.contains("with a gate, the config asks for them without one"), "{got}");
}

#[test]
fn refuses_every_contradiction() {
    let changes = [
        ("/format", json!("gguf")),
        ("/version", json!(2)),
        ("/version", json!(null)),
        ("/layers/1/n_experts", json!(0)),
        ("/layers/1/n_experts", json!(3)),
        ("/layers/1/n_experts", json!(1u64 << 60)),
        ("/layers/1/hidden", json!(128)),
        ("/layers/1/hidden", json!(65)),
        ("/layers/1/intermediate", json!(1u64 << 40)),
        ("/layers/1/record_bytes", json!(1)),
        ("/layers/1/stride_bytes", json!(13824)),
        ("/layers/1/gate", json!(null)),
        ("/layers/1/gate/bits", json!(7)),
        ("/layers/1/gate", json!({"mode": "mxfp5"})),
        ("/layers/1/gate", json!({"mode": "mxfp4"})),
        ("/layers/1/gate", json!({"block": [0, 128], "scales": "f32"})),
        ("/layers/1/gate", json!({"block": [128, 1u64 << 40], "scales": "f32"})),
        ("/tensors/lm_head", json!({"block": [128, 0], "scales": "f32"})),
        ("/layers/1/down/group_size", json!(0)),
        ("/layers/1/file", json!("layer_01.bin")),
        ("/tensors/lm_head/group_size", json!(0)),
        ("/tensors/lm_head/bits", json!(256)),
        ("/files/0/path", json!("../resident.safetensors")),
        ("/files/1/path", json!("/etc/passwd")),
        ("/files/1/path", json!("resident.safetensors")),
        ("/files/1/bytes", json!(32767)),
        ("/files/1/xxh3_128", json!("zz")),
    ];
    for (pointer, value) in changes {
        let mut container = good();
        *container.pointer_mut(pointer).unwrap() = value.clone();
        assert!(parse(&container).is_err(), "{pointer} = {value}");
    }
}

#[test]
fn a_format_of_no_kind_is_told_the_kinds() {
    for value in [json!(3), json!({"mode": "mxfp5"}), json!({})] {
        let mut container = good();
        container["layers"][1]["gate"] = value.clone();
        let got = parse(&container).unwrap_err().to_string();
        assert!(got.contains("a matrix format is an object with `bits`"), "{value}: {got}");
    }
}

proptest! {
    #[test]
    fn never_panics_on_mutated_text(at in 0..600usize, byte in any::<u8>()) {
        let mut bytes = good().to_string().into_bytes();
        let at = at % bytes.len();
        bytes[at] = byte;
        let _ = Container::from_slice(Path::new("x"), &bytes);
        let _ = parse_model_weights(Path::new("x"), &bytes, 100);
    }

    #[test]
    fn never_panics_on_random_numbers(number in any::<u64>(), which in 0..8usize) {
        let pointers = ["/layers/1/n_experts", "/layers/1/hidden", "/layers/1/intermediate",
            "/layers/1/record_bytes", "/layers/1/stride_bytes", "/files/1/bytes",
            "/tensors/lm_head/group_size", "/layers/1/down/group_size"];
        let mut container = good();
        *container.pointer_mut(pointers[which]).unwrap() = json!(number);
        let _ = parse(&container);
    }
}
