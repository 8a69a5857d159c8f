//! What the GGUF file of a tower holds: the way back of `mmproj`, for files that are made up.

use moeflux_backend::GatedActivation;
use moeflux_core::checkpoint::Config;
use moeflux_core::gguf::{Array, Value};
use moeflux_core::manifest::Manifest;

use super::end::{EndPlan, MergerPlan};
use super::family::TowerFamily;
use super::tower::TowerPlan;

/// The keys and tensors of a vision tower's GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct MmprojShape {
    /// Keys and their values.
    pub keys: Vec<(String, Value)>,
    /// Names of tensors in the file, and dimensions, outermost first.
    pub tensors: Vec<(String, Vec<usize>)>,
}

/// The product of patches.
const STEM: &str = "v.patch_embd.weight";

impl MmprojShape {
    /// The file of a tower whose weights are declared by `manifest`.
    pub(crate) fn of(
        family: &TowerFamily,
        plan: &TowerPlan,
        manifest: &Manifest,
        config: &Config,
    ) -> MmprojShape {
        let matrices = manifest
            .matrices
            .iter()
            .map(|decl| (format!("{}.weight", decl.name), vec![decl.rows, decl.cols]));
        let vectors = manifest
            .vectors
            .iter()
            .map(|decl| (decl.name.clone(), decl.shapes.first().cloned().unwrap_or_default()));
        let mut tensors = Vec::new();
        for (name, shape) in matrices.chain(vectors) {
            let stored = family.mmproj.stored(&name).or_else(|| of_deepstack(plan, &name));
            match (stored.unwrap_or(name), &shape[..]) {
                (stored, [rows, channels, _, height, width]) if stored == STEM => {
                    let frame = vec![*rows, *channels, *height, *width];
                    tensors.push((stored, frame.clone()));
                    tensors.push((format!("{STEM}.1"), frame));
                }
                (stored, [rows, numbers]) if stored == STEM => {
                    let side = (numbers / 3).isqrt();
                    tensors.push((stored, vec![*rows, 3, side, side]));
                }
                (stored, _) => tensors.push((stored, shape)),
            }
        }
        MmprojShape { keys: keys(family, plan, config), tensors }
    }
}

/// The name of a tensor of a merger behind a block.
fn of_deepstack(plan: &TowerPlan, name: &str) -> Option<String> {
    let EndPlan::Merged(MergerPlan { deepstack: Some(deepstack), .. }) = &plan.end else {
        return None;
    };
    let rest = name.strip_prefix(deepstack.list)?.strip_prefix('.')?;
    let (nth, part) = rest.split_once('.')?;
    let block = deepstack.blocks.get(nth.parse::<usize>().ok()?)?;
    Some(format!("v.deepstack.{block}.{}", part.replace("linear_", "")))
}

fn keys(family: &TowerFamily, plan: &TowerPlan, config: &Config) -> Vec<(String, Value)> {
    let text = |value: &str| Value::Text(value.to_owned());
    let mut keys = vec![
        ("general.architecture".to_owned(), text("clip")),
        ("general.type".to_owned(), text("mmproj")),
        ("clip.has_vision_encoder".to_owned(), Value::Bool(true)),
        ("clip.projector_type".to_owned(), text(family.mmproj.projector)),
    ];
    let activation = match plan.block.mlp.gate {
        None => Some("clip.use_gelu"),
        Some((_, GatedActivation::Swiglu)) => Some("clip.use_silu"),
        Some(_) => None,
    };
    let activation = activation.map(|key| (key.to_owned(), Value::Bool(true)));
    keys.extend(activation);
    let mut vision = |key: &str, value: Value| keys.push((format!("clip.vision.{key}"), value));
    // llama.cpp opens no file without them.
    for key in ["image_mean", "image_std"] {
        vision(key, Value::Array(Array::Floats(vec![0.5; 3])));
    }
    let side = config.usize("patch_size").unwrap_or(14);
    let numbers = [
        ("patch_size", side),
        ("image_size", plan.table.map_or(224, |table| table.sides[0] * side)),
        ("embedding_length", plan.block.width),
        ("feed_forward_length", plan.block.mlp.width),
        ("projection_dim", plan.end.hidden()),
        ("block_count", plan.n_blocks),
        ("attention.head_count", plan.block.attention.n_heads),
        (family.mmproj.merge_key, plan.end.merge()),
    ];
    for (key, number) in numbers {
        vision(key, number.into());
    }
    vision("attention.layer_norm_epsilon", Value::Float(plan.block.norms.eps.into()));
    let EndPlan::Merged(merger) = &plan.end else { return keys };
    if let Some(deepstack) = &merger.deepstack {
        let is_merged = |block| deepstack.blocks.contains(&block);
        let blocks = (0..plan.n_blocks).map(is_merged).collect();
        vision("is_deepstack_layers", Value::Array(Array::Bools(blocks)));
    }
    keys
}
