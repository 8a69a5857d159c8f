//! What quantisation tools other than MLX's declare: ModelOpt, compressed-tensors, GPTQ, AWQ,
//! bitsandbytes, FP8.
//!
//! The tensors say how a matrix is stored. Declarations are read for what tensors leave open, and to
//! refuse what would be computed wrongly.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::companions::DECLARATIONS;
use super::json::read_json;
use super::{Config, FormatError};
use crate::quant::ScaledBlocks;

/// What tensors of published integers leave open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IntegerRules {
    /// Bits that a code may have.
    pub(crate) bits: BitWidths,
    /// Columns that share a scale in most modules.
    pub(crate) group_cols: Option<usize>,
    /// How GPTQ stored them; `None` if nothing declares it.
    pub(crate) gptq: Option<GptqRules>,
    /// Whether words are AWQ's; `None` if only shapes tell.
    pub(crate) is_awq: Option<bool>,
    /// Whether every matrix of integers has zero points, other than in GPTQ.
    pub(crate) has_zeros: bool,
    /// Whether every matrix of integers has a tensor that names the group of each column.
    pub(crate) has_group_index: bool,
}

/// What tensors of GPTQ leave open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GptqRules {
    /// Whether all zero points are the middle of the range, whatever is stored.
    pub(crate) is_symmetric: bool,
    /// What is added to stored zero points: 1 in the first version of the format.
    pub(crate) zero_offset: u8,
    /// Whether columns are assigned to groups in another order than their own.
    pub(crate) is_reordered: bool,
}

/// A set of numbers of bits; all of them, if none is declared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BitWidths(u16);

impl BitWidths {
    fn insert(&mut self, bits: u64) {
        self.0 |= 1 << bits.min(15);
    }

    /// Whether a code may have this many bits.
    pub(crate) fn allow(self, bits: u8) -> bool {
        self.0 == 0 || self.0 >> bits.min(15) & 1 != 0
    }
}

/// A declaration, and the file that has it.
pub(super) struct Declaration {
    pub(super) path: PathBuf,
    pub(super) method: String,
    pub(super) block: Value,
}

/// Of [`DECLARATIONS`]: the key of the object, and the method if it names none.
const CONTENTS: [(Option<&str>, &str); 3] =
    [(Some("quantization"), "modelopt"), (None, "gptq"), (None, "awq")];

/// Algorithms of ModelOpt whose weights are wrong without further factors of the inputs.
const REFUSED_ALGORITHMS: [&str; 6] =
    ["NVFP4_AWQ", "NVFP4_SVD", "W4A16_AWQ", "W4A8_AWQ", "W8A8_SQ_PER_CHANNEL", "INT8_SQ"];

/// Formats of compressed-tensors that are read.
const COMPRESSED_FORMATS: [&str; 10] = [
    "dense",
    "float-quantized",
    "int-quantized",
    "mixed-precision",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "pack-quantized",
    "unknown",
];

impl Declaration {
    /// The declaration of a checkpoint that names a `quant_method`, in its config or in a file
    /// next to it.
    pub(super) fn find(config: &Config, root: &Path) -> Result<Option<Declaration>, FormatError> {
        for key in ["quantization_config", "compression_config", "quantization"] {
            let Some(block) = config.get(key).filter(|block| block.is_object()) else { continue };
            let method = match block.get("quant_method").filter(|method| !method.is_null()) {
                Some(Value::String(method)) => method.clone(),
                Some(other) => {
                    return Err(FormatError::unsupported(
                        config.path(),
                        format!("quant_method {other}"),
                    ));
                }
                None if key == "compression_config" => "compressed-tensors".to_owned(),
                None => continue,
            };
            let (path, block) = (config.path().to_path_buf(), block.clone());
            return Ok(Some(Declaration { path, method, block }));
        }
        // MLX declares itself in the config, whatever files of its source were copied.
        if config.get("quantization").is_some() {
            return Ok(None);
        }
        for (name, (key, method)) in DECLARATIONS.into_iter().zip(CONTENTS) {
            let path = root.join(name);
            if !path.is_file() {
                continue;
            }
            let json = read_json(&path)?;
            let root: Value = serde_json::from_slice(&json).map_err(FormatError::json(&path))?;
            let block = key.map_or(Some(&root), |key| root.get(key));
            let Some(block) = block.filter(|block| block.is_object()) else {
                let what = format!("{} is not an object", key.unwrap_or("the file"));
                return Err(FormatError::malformed(&path, what));
            };
            let method = block.get("quant_method").and_then(Value::as_str).unwrap_or(method);
            let (method, block) = (method.to_owned(), block.clone());
            return Ok(Some(Declaration { path, method, block }));
        }
        Ok(None)
    }

    /// Whether most weights are FP8, in which models are trained.
    pub(super) fn is_fp8(&self) -> bool {
        match self.method.as_str() {
            "fp8" | "fbgemm_fp8" => true,
            "compressed-tensors" => self.str("format") == Some("float-quantized"),
            "modelopt" => self.str("quant_algo").is_some_and(|name| name.starts_with("FP8")),
            _ => false,
        }
    }

    /// What tensors leave open.
    ///
    /// # Errors
    /// If the declaration asks for what is not computed.
    pub(super) fn integers(&self) -> Result<IntegerRules, FormatError> {
        match self.method.as_str() {
            "compressed-tensors" => self.compressed_tensors(),
            "modelopt" => self.modelopt(),
            "awq" => self.awq(),
            "gptq" | "gptqmodel" => self.gptq(),
            "bitsandbytes" => self.bitsandbytes(),
            "auto-round" | "intel/auto-round" => self.auto_round(),
            "fp8" | "fbgemm_fp8" | "mxfp4" | "mxfp8" => Ok(IntegerRules::default()),
            method => Err(self.unsupported(&format!("quant_method {method:?}"))),
        }
    }

    fn compressed_tensors(&self) -> Result<IntegerRules, FormatError> {
        if let Some(format) = self.str("format")
            && !COMPRESSED_FORMATS.contains(&format)
        {
            return Err(self.unsupported(&format!("format {format:?} of compressed-tensors")));
        }
        if self.block.get("transform_config").is_some_and(has_content) {
            return Err(self.unsupported("transform_config, which rotates the inputs of weights,"));
        }
        let sparsity = self.block.get("sparsity_config").and_then(|config| config.get("format"));
        if let Some(sparsity) = sparsity.and_then(Value::as_str).filter(|name| *name != "dense") {
            return Err(self.unsupported(&format!("sparsity_config with format {sparsity:?}")));
        }
        let is_asymmetric =
            |weights: &Value| weights.get("symmetric").and_then(Value::as_bool) == Some(false);
        Ok(IntegerRules {
            bits: self.bits_of_groups().unwrap_or_default(),
            has_zeros: self.all_integer_groups(is_asymmetric),
            has_group_index: self.all_integer_groups(stores_group_index),
            ..Default::default()
        })
    }

    /// Weights of four bits, whose tensors say the rest.
    fn bitsandbytes(&self) -> Result<IntegerRules, FormatError> {
        if self.is_true("load_in_8bit") {
            return Err(self.unsupported("load_in_8bit of bitsandbytes (only 4 bits, nf4)"));
        }
        Ok(IntegerRules::default())
    }

    /// What each group of compressed-tensors declares of weights; `None` for a group that only has
    /// the name of a preset.
    fn groups(&self) -> impl Iterator<Item = Option<&Value>> {
        let groups = self.block.get("config_groups").and_then(Value::as_object);
        groups.into_iter().flatten().map(|(_, group)| group.get("weights"))
    }

    /// The numbers of bits that groups declare for integers; `None` if one of them declares nothing.
    fn bits_of_groups(&self) -> Option<BitWidths> {
        let mut widths = BitWidths::default();
        for weights in self.groups() {
            let weights = weights?;
            if !is_float(weights) {
                widths.insert(weights.get("num_bits").and_then(Value::as_u64)?);
            }
        }
        Some(widths)
    }

    /// Whether there are groups of integers, and all of them are so. Which modules a group has is not
    /// read: where groups differ, the tensors alone say what a module has.
    fn all_integer_groups(&self, are_so: impl Fn(&Value) -> bool) -> bool {
        let mut integers =
            self.groups().filter(|weights| !weights.is_some_and(is_float)).peekable();
        integers.peek().is_some() && integers.all(|weights| weights.is_some_and(&are_so))
    }

    /// Rows and columns of the blocks that share a scale, of all groups that declare them.
    ///
    /// # Errors
    /// If a declaration is malformed.
    pub(super) fn block_structures(&self) -> Result<Vec<(usize, usize)>, FormatError> {
        let key = "block_structure";
        let declared = self.groups().filter_map(|weights| weights?.get(key));
        let declared = declared.filter(|structure| !structure.is_null());
        let all: Result<BTreeSet<_>, _> =
            declared.map(|structure| block_sides(&self.path, key, structure)).collect();
        Ok(all?.into_iter().collect())
    }

    fn modelopt(&self) -> Result<IntegerRules, FormatError> {
        let layers = self.block.get("quantized_layers").and_then(Value::as_object);
        let of_layers = layers.into_iter().flatten().filter_map(|layer| layer.1.get("quant_algo"));
        for algorithm in self.block.get("quant_algo").into_iter().chain(of_layers) {
            let Some(name) = algorithm.as_str() else { continue };
            if REFUSED_ALGORITHMS.contains(&name) {
                let what = format!("quant_algo {name:?}, which scales the inputs of weights,");
                return Err(self.unsupported(&what));
            }
        }
        Ok(IntegerRules::default())
    }

    fn awq(&self) -> Result<IntegerRules, FormatError> {
        let version = self.str("version").unwrap_or("gemm");
        if !version.eq_ignore_ascii_case("gemm") {
            return Err(self.unsupported(&format!("version {version:?} of AWQ (only \"gemm\")")));
        }
        let bits = self.block.get("bits").or_else(|| self.block.get("w_bit"));
        if let Some(bits) = bits.filter(|bits| **bits != 4) {
            return Err(self.unsupported(&format!("AWQ with {bits} bits")));
        }
        self.awq_rules()
    }

    /// AutoAWQ says `zero_point`, GPTQModel `sym`.
    fn awq_rules(&self) -> Result<IntegerRules, FormatError> {
        let group_cols = self.group_cols();
        let is_asymmetric = self.block.get("sym") == Some(&Value::Bool(false));
        let has_zeros = self.is_true("zero_point") || is_asymmetric;
        Ok(IntegerRules { is_awq: Some(true), group_cols, has_zeros, ..IntegerRules::default() })
    }

    fn gptq(&self) -> Result<IntegerRules, FormatError> {
        let format = self.str("checkpoint_format").unwrap_or("gptq");
        let zero_offset = match format {
            "gptq" => 1,
            "gptq_v2" => 0,
            // GPTQModel's name for AWQ's layout.
            "gemm" => return self.awq_rules(),
            other => {
                let what =
                    format!("checkpoint_format {other:?} of GPTQ (only \"gptq\", \"gptq_v2\")");
                return Err(self.unsupported(&what));
            }
        };
        self.gptq_rules(zero_offset)
    }

    /// Without `sym` the stored zero points count, which are right for symmetric integers, too.
    fn gptq_rules(&self, zero_offset: u8) -> Result<IntegerRules, FormatError> {
        let is_symmetric = self.is_true("sym");
        for key in ["dynamic", "extra_config"] {
            let modules = self.block.get(key).and_then(Value::as_object);
            let has_other = |value: &Value| {
                value.get("sym").and_then(Value::as_bool).is_some_and(|sym| sym != is_symmetric)
            };
            let other = modules.into_iter().flatten().find(|(_, value)| has_other(value));
            if let Some((module, _)) = other {
                let what = format!("{key} with another \"sym\" for {module:?}");
                return Err(self.unsupported(&what));
            }
        }
        let gptq = GptqRules { is_symmetric, zero_offset, is_reordered: self.is_true("desc_act") };
        Ok(IntegerRules {
            gptq: Some(gptq),
            is_awq: Some(false),
            has_group_index: gptq.is_reordered,
            group_cols: self.group_cols(),
            ..IntegerRules::default()
        })
    }

    /// Columns that share a scale; `None` if that is not declared, or all of a row do.
    fn group_cols(&self) -> Option<usize> {
        let size = self.block.get("group_size").or_else(|| self.block.get("q_group_size"))?;
        size.as_u64().and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0)
    }

    fn auto_round(&self) -> Result<IntegerRules, FormatError> {
        let packing = self.str("packing_format").unwrap_or("auto_round:auto_gptq");
        match packing.rsplit(':').next().unwrap_or_default() {
            "auto_gptq" => self.gptq_rules(1),
            "gptqmodel" | "gptq_v2" => self.gptq_rules(0),
            // Which zero points it stores is not known; symmetric integers need none.
            "auto_round" if self.is_true("sym") => self.gptq_rules(0),
            "auto_awq" => self.awq_rules(),
            "llm_compressor" => self.compressed_tensors(),
            _ => Err(self.unsupported(&format!("packing_format {packing:?} of auto-round"))),
        }
    }

    fn str(&self, key: &str) -> Option<&str> {
        self.block.get(key).and_then(Value::as_str)
    }

    fn is_true(&self, key: &str) -> bool {
        self.block.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    fn unsupported(&self, what: &str) -> FormatError {
        FormatError::unsupported(&self.path, what)
    }
}

fn is_float(weights: &Value) -> bool {
    weights.get("type").and_then(Value::as_str) == Some("float")
}

/// Whether columns are grouped in another order than their own, so that a tensor names the group of
/// each. The orders `static` and `weight` of compressed-tensors leave groups as they are.
fn stores_group_index(weights: &Value) -> bool {
    match weights.get("actorder") {
        Some(Value::Bool(is_ordered)) => *is_ordered,
        Some(Value::String(order)) => order.eq_ignore_ascii_case("group"),
        _ => false,
    }
}

fn has_content(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => true,
    }
}

/// Rows and columns of a block: two numbers in a list, or as `128x128`.
pub(super) fn block_sides(
    path: &Path,
    key: &str,
    value: &Value,
) -> Result<(usize, usize), FormatError> {
    let sides: Option<Vec<u64>> = match value {
        Value::Array(sides) => sides.iter().map(Value::as_u64).collect(),
        Value::String(sides) => sides.split('x').map(|side| side.trim().parse().ok()).collect(),
        _ => None,
    };
    let side = |side: u64| {
        let side = usize::try_from(side).ok();
        side.filter(|side| (1..=ScaledBlocks::MAX_SIDE).contains(side))
    };
    let both = match sides.as_deref() {
        Some(&[rows, cols]) => side(rows).zip(side(cols)),
        _ => None,
    };
    both.ok_or_else(|| {
        let max = ScaledBlocks::MAX_SIDE;
        FormatError::malformed(path, format!("{key} is {value}, not two numbers from 1 to {max}"))
    })
}
