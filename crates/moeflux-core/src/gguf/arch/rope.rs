//! Rotary embeddings: which columns are rotated, and how positions are stretched.

use serde_json::{Map, Value, json};

use super::keys::Keys;
use crate::checkpoint::{Dtype, FileReader, FormatError};
use crate::gguf::set::GgufSet;
use crate::quant::Float;

/// The object of the config that holds the keys of rotary embeddings.
pub const ROPE: &str = "rope_parameters";

/// The type of layers that see all positions, where each type has rotary embeddings of its own.
pub const FULL: &str = "full_attention";

/// The type of layers that see through a window.
pub const SLIDING: &str = "sliding_attention";

/// The tensor with what the frequency of each pair is divided by (Llama 3's stretching).
pub const DIVISORS: &str = "rope_freqs.weight";

/// The most rotated columns of a head.
const MAX_COLUMNS: usize = 1 << 14;

/// What an architecture does with YaRN.
#[derive(Clone, Copy)]
pub struct Yarn {
    /// Whether the ramp begins and ends at whole pairs.
    pub truncates: bool,
    /// Whether scores grow with the stretched context (latent attention).
    pub scales_scores: bool,
    /// Whether files with a factor need not say that it is YaRN's.
    pub is_usual: bool,
}

impl Yarn {
    /// YaRN as most models have it.
    pub const USUAL: Yarn = Yarn { truncates: true, scales_scores: false, is_usual: false };
}

/// Writes the part of a head that is rotated.
pub fn rotated_part(keys: &mut Keys<'_>, head_dim: usize) -> Result<(), FormatError> {
    let columns = rotated_columns(keys, head_dim)?;
    let mut factor = columns as f64 / head_dim as f64;
    // Families round the product down.
    if ((head_dim as f64 * factor) as usize) < columns {
        factor = factor.next_up();
    }
    keys.put("partial_rotary_factor", json!(factor));
    Ok(())
}

/// Refuses files in which a part of a head is not rotated.
pub fn rotates_whole(keys: &mut Keys<'_>, head_dim: usize) -> Result<(), FormatError> {
    if rotated_columns(keys, head_dim)? == head_dim {
        Ok(())
    } else {
        Err(keys.refuse(COUNT, &format!("be the columns of a head, {head_dim}")))
    }
}

const COUNT: &str = "rope.dimension_count";

fn rotated_columns(keys: &Keys<'_>, head_dim: usize) -> Result<usize, FormatError> {
    let columns = keys.number(COUNT)?.unwrap_or(head_dim);
    if columns > 0 && columns <= head_dim && columns.is_multiple_of(2) {
        Ok(columns)
    } else {
        Err(keys.refuse(COUNT, &format!("be an even number from 2 to {head_dim}")))
    }
}

/// Checks the pairs that take time, height and width of a picture as their position. A text has
/// one position for all of them.
pub fn check_sections(keys: &Keys<'_>, head_dim: usize) -> Result<(), FormatError> {
    let key = "rope.dimension_sections";
    let Some(sections) = keys.list(key)? else { return Ok(()) };
    let pairs = rotated_columns(keys, head_dim)? / 2;
    let is_good = |section: &i64| (0..=MAX_COLUMNS as i64).contains(section);
    let is_split = sections.len() <= 4
        && sections.iter().all(is_good)
        && sections.iter().sum::<i64>() == pairs as i64;
    if is_split {
        Ok(())
    } else {
        Err(keys.refuse(key, &format!("be up to 4 numbers whose sum is {pairs}")))
    }
}

/// Writes the sections, those of time, height and width, for families that take embeddings of pictures.
pub fn three_sections(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    let Some(all) = keys.list("rope.dimension_sections")? else { return Ok(()) };
    let sections: Vec<i64> = all.iter().copied().chain([0; 3]).take(3).collect();
    if all.iter().skip(3).any(|section| *section != 0) {
        return Err(keys.refuse("rope.dimension_sections", "have no fourth section"));
    }
    let mut rope = keys.written(ROPE).cloned().unwrap_or_default();
    rope["mrope_section"] = json!(sections);
    keys.put(ROPE, rope);
    Ok(())
}

/// Writes how positions are stretched.
pub fn scaling(keys: &mut Keys<'_>, yarn: Yarn) -> Result<(), FormatError> {
    let rope = stretching(keys, yarn)?;
    keys.put(ROPE, rope);
    Ok(())
}

/// How positions are stretched, as an object of keys of the config.
pub fn stretching(keys: &mut Keys<'_>, yarn: Yarn) -> Result<Value, FormatError> {
    let kind_key = "rope.scaling.type";
    let factor_key = "rope.scaling.factor";
    // A file without a type means linear stretching, usually by 1; 0 means 1 as well.
    let given = keys.float(factor_key)?.filter(|factor| *factor != 0.0);
    let unnamed = if yarn.is_usual && given.is_some() { "yarn" } else { "linear" };
    let kind = keys.text(kind_key)?.unwrap_or(unnamed);
    // The older key of linear stretching.
    let linear = keys.float("rope.scale_linear")?.filter(|factor| *factor != 0.0);
    let factor = given.or(linear).unwrap_or(1.0);
    let rope = match kind {
        "linear" if factor != 1.0 => json!({"rope_type": "linear", "factor": factor}),
        "none" | "linear" => json!({"rope_type": "default"}),
        "yarn" => stretched_by_yarn(keys, factor, yarn)?,
        _ => return Err(keys.refuse(kind_key, "be \"none\", \"linear\" or \"yarn\"")),
    };
    for (key, from) in [
        ("rope_type", kind_key),
        ("factor", factor_key),
        ("original_max_position_embeddings", ORIGINAL),
        ("beta_fast", BETA_FAST),
        ("beta_slow", BETA_SLOW),
    ] {
        keys.name(key, from);
    }
    Ok(rope)
}

const ORIGINAL: &str = "rope.scaling.original_context_length";
const BETA_FAST: &str = "rope.scaling.yarn_beta_fast";
const BETA_SLOW: &str = "rope.scaling.yarn_beta_slow";

fn stretched_by_yarn(keys: &Keys<'_>, factor: f64, yarn: Yarn) -> Result<Value, FormatError> {
    // Keys whose neutral value is the only one that is computed.
    for (key, neutral) in [
        ("rope.scaling.yarn_ext_factor", 1.0),
        ("rope.scaling.yarn_attn_factor", 1.0),
        ("rope.scaling.attn_factor", 1.0),
    ] {
        if keys.float(key)?.is_some_and(|value| value != neutral) {
            return Err(keys.refuse(key, &format!("be {neutral}")));
        }
    }
    let mut rope = Map::new();
    rope.insert("rope_type".to_owned(), json!("yarn"));
    rope.insert("factor".to_owned(), json!(factor));
    rope.insert("truncate".to_owned(), json!(yarn.truncates));
    let original = match keys.number(ORIGINAL)? {
        Some(original) => original,
        None => keys.required("context_length")?,
    };
    rope.insert("original_max_position_embeddings".to_owned(), json!(original));
    for (key, from) in [("beta_fast", BETA_FAST), ("beta_slow", BETA_SLOW)] {
        if let Some(value) = keys.float(from)? {
            rope.insert(key.to_owned(), json!(value));
        }
    }
    let log_multiplier = "rope.scaling.yarn_log_multiplier";
    let multiplier = keys.float(log_multiplier)?.unwrap_or(0.0);
    if multiplier != 0.0 && !yarn.scales_scores {
        return Err(keys.refuse(log_multiplier, "be 0 for this architecture"));
    }
    if multiplier > 0.0 {
        // The file holds a tenth. It has no second number for sines and cosines, which published
        // models do not scale.
        let all_dim = (multiplier * 1e7).round() / 1e6;
        rope.insert("mscale".to_owned(), json!(all_dim));
        rope.insert("mscale_all_dim".to_owned(), json!(all_dim));
    }
    Ok(Value::Object(rope))
}

/// Writes what the frequencies are divided by, if a tensor of the file says it.
pub(super) fn divisors(
    keys: &mut Keys<'_>,
    set: &GgufSet,
    reader: &FileReader,
) -> Result<(), FormatError> {
    let Some(tensor) = set.tensors.iter().find(|tensor| tensor.stored_name == DIVISORS) else {
        return Ok(());
    };
    let path = &set.files[tensor.extent.file.0 as usize].path;
    let fail = |what: String| Err(FormatError::malformed(path, format!("{DIVISORS}: {what}")));
    if tensor.dtype != Dtype::Float(Float::F32)
        || tensor.shape.iter().product::<usize>() > MAX_COLUMNS
    {
        let (dtype, shape) = (tensor.dtype.name(), &tensor.shape);
        return fail(format!("{dtype} {shape:?} are not the divisors of a head's frequencies"));
    }
    let bytes = reader.read(tensor.extent)?;
    let all: Vec<f32> = (0..bytes.len() / 4).map(|i| Float::F32.read(&bytes, i)).collect();
    if let Some(odd) = all.iter().find(|divisor| !(**divisor > 0.0 && divisor.is_finite())) {
        return fail(format!("{odd} is no divisor of a frequency"));
    }
    // Sliding layers turn all pairs as they are.
    if let Some(full) = keys.written(ROPE).and_then(|rope| rope.get(FULL)) {
        let (mut full, mut rope) = (full.clone(), keys.written(ROPE).cloned().unwrap_or_default());
        full["rope_type"] = json!("divided");
        full["divisors"] = json!(all);
        rope[FULL] = full;
        keys.put(ROPE, rope);
        return Ok(());
    }
    let is_stretched = keys
        .written(ROPE)
        .and_then(|rope| rope.get("rope_type"))
        .is_some_and(|kind| kind != "default");
    if is_stretched {
        return Err(keys.refuse("rope.scaling.type", &format!("be \"none\" with {DIVISORS}")));
    }
    keys.put(ROPE, json!({"rope_type": "divided", "divisors": all}));
    Ok(())
}
