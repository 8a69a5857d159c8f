//! What quantisation tools other than MLX's declare: ModelOpt, compressed-tensors, GPTQ, AWQ, FP8.
//!
//! The tensors say how a matrix is stored. Declarations are read for what tensors leave open, and to
//! refuse what would be computed wrongly.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::companions::DECLARATIONS;
use super::json::read_json;
use super::{Config, FormatError};

/// What tensors of published integers leave open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IntegerRules {
    /// Bits of a code, where one number is declared for all.
    pub(crate) bits: Option<u8>,
    /// How GPTQ stored them; `None` if nothing declares it.
    pub(crate) gptq: Option<GptqRules>,
    /// Whether words are AWQ's; `None` if only shapes tell.
    pub(crate) is_awq: Option<bool>,
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
const COMPRESSED_FORMATS: [&str; 9] = [
    "dense",
    "float-quantized",
    "int-quantized",
    "mixed-precision",
    "mxfp4-pack-quantized",
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
            "auto-round" | "intel/auto-round" => self.auto_round(),
            "fp8" | "fbgemm_fp8" | "mxfp4" => Ok(IntegerRules::default()),
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
        let groups = self.block.get("config_groups").and_then(Value::as_object);
        let bits = groups.into_iter().flatten().map(|(_, group)| {
            group.get("weights").and_then(|weights| weights.get("num_bits")).and_then(Value::as_u64)
        });
        Ok(IntegerRules { bits: only(bits), ..IntegerRules::default() })
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
        Ok(IntegerRules { is_awq: Some(true), ..IntegerRules::default() })
    }

    fn gptq(&self) -> Result<IntegerRules, FormatError> {
        let format = self.str("checkpoint_format").unwrap_or("gptq");
        let zero_offset = match format {
            "gptq" => 1,
            "gptq_v2" => 0,
            // GPTQModel's name for AWQ's layout.
            "gemm" => return Ok(IntegerRules { is_awq: Some(true), ..IntegerRules::default() }),
            other => {
                let what =
                    format!("checkpoint_format {other:?} of GPTQ (only \"gptq\", \"gptq_v2\")");
                return Err(self.unsupported(&what));
            }
        };
        Ok(self.gptq_rules(zero_offset))
    }

    /// Without `sym` the stored zero points count, which are right for symmetric integers, too.
    fn gptq_rules(&self, zero_offset: u8) -> IntegerRules {
        let gptq = GptqRules {
            is_symmetric: self.is_true("sym"),
            zero_offset,
            is_reordered: self.is_true("desc_act"),
        };
        IntegerRules { gptq: Some(gptq), is_awq: Some(false), ..IntegerRules::default() }
    }

    fn auto_round(&self) -> Result<IntegerRules, FormatError> {
        let packing = self.str("packing_format").unwrap_or("auto_round:auto_gptq");
        match packing.rsplit(':').next().unwrap_or_default() {
            "auto_gptq" => Ok(self.gptq_rules(1)),
            "gptqmodel" | "gptq_v2" | "auto_round" => Ok(self.gptq_rules(0)),
            "auto_awq" => Ok(IntegerRules { is_awq: Some(true), ..IntegerRules::default() }),
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

fn has_content(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => true,
    }
}

/// The number that all declare.
fn only(numbers: impl Iterator<Item = Option<u64>>) -> Option<u8> {
    let mut found = None;
    for number in numbers.flatten() {
        if found.is_some_and(|found| found != number) {
            return None;
        }
        found = Some(number);
    }
    found.and_then(|number| u8::try_from(number).ok())
}
