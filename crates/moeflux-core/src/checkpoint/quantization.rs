//! The declarations of quantisation in a config, against which tensors are checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde_json::Value;

use super::names::canonical_name;
use super::published::{Declaration, IntegerRules, block_sides};
use super::{Config, FormatError};
use crate::dialects::Dialects;
use crate::quant::{Affine, BlockType, MatrixFormat, MicroScaled};

/// The declared format of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Declared {
    /// Affine integers. A field is `None` if only the shapes of tensors determine it.
    Affine {
        /// Bits of one integer.
        bits: Option<u8>,
        /// Columns that share a scale and a bias.
        group_size: Option<usize>,
    },
    /// Small floats.
    Micro(MicroScaled),
    /// E4M3 in blocks of this many rows and columns.
    Blocks(usize, usize),
    /// NF4.
    Nf4,
    /// Blocks of ggml.
    Ggml(BlockType),
}

/// Declarations for all modules, by canonical name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuantRules {
    pub(crate) default: Option<Declared>,
    /// Declarations of single modules; `None` for modules declared unquantised.
    pub(crate) modules: BTreeMap<String, Option<Declared>>,
    /// Whether another tool than MLX's declared them: then the tensors say how matrices are stored.
    pub(crate) is_published: bool,
    /// Rows and columns of the blocks of E4M3, where groups of modules declare them.
    pub(crate) blocks: Vec<(usize, usize)>,
    /// What tensors of published integers leave open.
    pub(crate) integers: IntegerRules,
    /// Modules of a container whose integers have symmetric biases.
    pub(crate) symmetric: BTreeSet<String>,
}

/// Rows and columns of blocks in checkpoints that do not declare them.
const USUAL_BLOCK: usize = 128;

impl QuantRules {
    /// Reads MLX's `quantization` (or `quantization_config`) block, or the declaration of another
    /// tool, which may be in a file of the directory `root`.
    ///
    /// # Errors
    /// If a mode, method or value is not supported.
    pub(crate) fn read(
        config: &Config,
        root: &Path,
        dialects: &Dialects,
    ) -> Result<QuantRules, FormatError> {
        if let Some(declaration) = Declaration::find(config, root)? {
            return QuantRules::of_declaration(&declaration);
        }
        let block = config.get("quantization").or_else(|| config.get("quantization_config"));
        let Some(block) = block else { return Ok(QuantRules::default()) };
        let path = config.path();
        let Some(block) = block.as_object() else {
            return Err(config.refuse("quantization", "be an object"));
        };
        let block = Value::Object(block.clone());
        let default = declared(path, "quantization", &block)?;
        let mut rules = QuantRules { default: Some(default), ..QuantRules::default() };
        for (name, value) in block.as_object().into_iter().flatten() {
            let rule = match value {
                Value::Bool(false) => None,
                Value::Bool(true) => rules.default,
                Value::Object(_) => Some(declared(path, name, value)?),
                _ => continue,
            };
            rules.modules.insert(canonical_name(name, dialects).to_owned(), rule);
        }
        Ok(rules)
    }

    fn of_declaration(declaration: &Declaration) -> Result<QuantRules, FormatError> {
        let integers = declaration.integers()?;
        let default = match declaration.method.as_str() {
            "mxfp4" => Declared::Micro(MicroScaled::MXFP4),
            "fp8" => fp8(&declaration.path, &declaration.block)?,
            _ if declaration.is_fp8() => Declared::Blocks(USUAL_BLOCK, USUAL_BLOCK),
            _ => ANY,
        };
        let is_published = !matches!(declaration.method.as_str(), "mxfp4" | "fp8");
        let (default, blocks) = (Some(default), declaration.block_structures()?);
        Ok(QuantRules { default, is_published, integers, blocks, ..QuantRules::default() })
    }

    /// Whether the integers of a module of a container have symmetric biases.
    pub(crate) fn is_symmetric(&self, module: &str) -> bool {
        self.symmetric.contains(module)
    }

    /// The declared format of most modules.
    pub(crate) fn precision(&self) -> Precision {
        match self.default {
            Some(Declared::Blocks(..)) => Precision::Eights,
            None if self.modules.is_empty() => Precision::Floats,
            _ => Precision::Quantised,
        }
    }

    /// The declaration of a module; `None` if it is declared unquantised.
    fn of(&self, module: &str) -> Option<Declared> {
        self.modules.get(module).copied().unwrap_or(self.default.or(Some(ANY)))
    }

    /// The type of the blocks of ggml that a module is declared to have.
    pub(crate) fn ggml_type_of(&self, module: &str) -> Option<BlockType> {
        match self.of(module) {
            Some(Declared::Ggml(block_type)) => Some(block_type),
            _ => None,
        }
    }

    /// Whether a module is declared to be NF4, as only containers declare it.
    pub(crate) fn is_nf4(&self, module: &str) -> bool {
        self.of(module) == Some(Declared::Nf4)
    }

    /// Rows and columns that the blocks of a module of E4M3 may have.
    pub(crate) fn blocks_of(&self, module: &str) -> Vec<(usize, usize)> {
        match self.of(module) {
            _ if !self.blocks.is_empty() => self.blocks.clone(),
            Some(Declared::Blocks(rows, cols)) => vec![(rows, cols)],
            _ => vec![(USUAL_BLOCK, USUAL_BLOCK)],
        }
    }

    /// Checks the format that the tensors of a quantised module have against its declaration. The
    /// error describes the difference.
    pub(crate) fn check(&self, module: &str, stored: &MatrixFormat) -> Result<(), String> {
        let has_rule = self.default.is_some() || self.modules.contains_key(module);
        let Some(rule) = self.of(module) else {
            return Err(format!("{module} is quantised, the config says that it is not"));
        };
        if !has_rule || self.is_published || rule.allows(stored) {
            return Ok(());
        }
        let stored = match stored {
            MatrixFormat::Affine(Affine { bits, group_size, .. }) => {
                format!("{bits} bits in groups of {group_size}")
            }
            MatrixFormat::Micro(micro) => micro.mode().unwrap_or("other small floats").to_owned(),
            MatrixFormat::Blocks(it) => Declared::Blocks(it.block_rows, it.block_cols).to_string(),
            MatrixFormat::Nf4 => "nf4".to_owned(),
            MatrixFormat::Ggml(it) => it.name().to_owned(),
            MatrixFormat::Dense(_) | MatrixFormat::Transposed(_) => "floats".to_owned(),
        };
        Err(format!("{module} has {stored} by its shapes, the config says {rule}"))
    }
}

const ANY: Declared = Declared::Affine { bits: None, group_size: None };

impl Declared {
    /// The declaration for a format that a container names.
    pub(crate) fn of_format(format: MatrixFormat) -> Option<Declared> {
        match format {
            MatrixFormat::Dense(_) | MatrixFormat::Transposed(_) => None,
            MatrixFormat::Affine(it) => {
                Some(Declared::Affine { bits: Some(it.bits), group_size: Some(it.group_size) })
            }
            MatrixFormat::Micro(it) => Some(Declared::Micro(it)),
            MatrixFormat::Blocks(it) => Some(Declared::Blocks(it.block_rows, it.block_cols)),
            MatrixFormat::Nf4 => Some(Declared::Nf4),
            MatrixFormat::Ggml(it) => Some(Declared::Ggml(it)),
        }
    }

    fn allows(self, stored: &MatrixFormat) -> bool {
        match (self, stored) {
            (Declared::Affine { bits, group_size }, MatrixFormat::Affine(it)) => {
                bits.is_none_or(|bits| bits == it.bits)
                    && group_size.is_none_or(|group_size| group_size == it.group_size)
            }
            (Declared::Micro(micro), MatrixFormat::Micro(it)) => micro == *it,
            (Declared::Blocks(rows, cols), MatrixFormat::Blocks(it)) => {
                (rows, cols) == (it.block_rows, it.block_cols)
            }
            (Declared::Nf4, MatrixFormat::Nf4) => true,
            (Declared::Ggml(block_type), MatrixFormat::Ggml(it)) => block_type == *it,
            _ => false,
        }
    }
}

impl fmt::Display for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Declared::Affine { bits, group_size } => {
                match bits {
                    Some(bits) => write!(f, "{bits} bits")?,
                    None => write!(f, "any number of bits")?,
                }
                group_size.map_or(Ok(()), |size| write!(f, " in groups of {size}"))
            }
            Declared::Micro(micro) => f.write_str(micro.mode().unwrap_or("small floats")),
            Declared::Nf4 => f.write_str("nf4"),
            Declared::Ggml(it) => f.write_str(it.name()),
            Declared::Blocks(rows, cols) => write!(f, "fp8 in blocks of {rows} × {cols}"),
        }
    }
}

fn fp8(path: &Path, block: &Value) -> Result<Declared, FormatError> {
    let fmt = block.get("fmt").filter(|value| !value.is_null());
    // MiniMax-M2 uses PyTorch's spelling.
    if let Some(fmt) = fmt.filter(|fmt| **fmt != "e4m3" && **fmt != "float8_e4m3fn") {
        return Err(FormatError::unsupported(path, format!("fmt {fmt} of quant_method fp8")));
    }
    let Some(size) = block.get("weight_block_size").filter(|value| !value.is_null()) else {
        return Ok(Declared::Blocks(USUAL_BLOCK, USUAL_BLOCK));
    };
    let (rows, cols) = block_sides(path, "weight_block_size", size)?;
    Ok(Declared::Blocks(rows, cols))
}

fn declared(path: &Path, name: &str, value: &Value) -> Result<Declared, FormatError> {
    let mode = match value.get("mode").filter(|value| !value.is_null()) {
        None => None,
        Some(mode) if mode == "affine" => None,
        Some(mode) => {
            let micro = mode.as_str().and_then(MicroScaled::by_mode);
            let unsupported = || {
                let what = format!("quantisation mode {mode} of {name}");
                FormatError::unsupported(path, what)
            };
            Some(micro.ok_or_else(unsupported)?)
        }
    };
    let number = |key: &str| match value.get(key).filter(|value| !value.is_null()) {
        None => Ok(None),
        Some(it) => it.as_u64().map(Some).ok_or_else(|| {
            FormatError::malformed(path, format!("{key} of {name} is {it}, not a whole number"))
        }),
    };
    let (bits, group_size) = (number("bits")?, number("group_size")?);
    if let Some(micro) = mode {
        let agrees = bits.is_none_or(|bits| bits == micro.element.bits() as u64)
            && group_size.is_none_or(|size| size == micro.group_size as u64);
        if !agrees {
            let mode = micro.mode().unwrap_or_default();
            let what = format!(
                "{name} has mode {mode} with bits {bits:?} and group_size {group_size:?}; that \
                 mode has {} and {}",
                micro.element.bits(),
                micro.group_size
            );
            return Err(FormatError::malformed(path, what));
        }
        return Ok(Declared::Micro(micro));
    }
    let bits = bits.map(|bits| {
        let known = u8::try_from(bits).ok().filter(|bits| Affine::BITS.contains(bits));
        known.ok_or_else(|| FormatError::unsupported(path, format!("{bits} bits for {name}")))
    });
    let group_size = group_size.map(|size| {
        let known = usize::try_from(size).ok().filter(|size| Affine::GROUP_SIZES.contains(size));
        known.ok_or_else(|| FormatError::unsupported(path, format!("group_size {size} of {name}")))
    });
    Ok(Declared::Affine { bits: bits.transpose()?, group_size: group_size.transpose()? })
}

/// How a config says that the weights of a checkpoint are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Floats of 16 or more bits.
    Floats,
    /// FP8, in which the model was trained.
    Eights,
    /// Quantised: unquantised weights were left so on purpose.
    Quantised,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::quant::Float;

    fn rules(block: Value) -> Result<QuantRules, FormatError> {
        let root = json!({"quantization": block});
        let config = Config::from_value(Path::new("config.json"), root).unwrap();
        let dialects = Dialects { prefixes: vec!["trunk."], ..Dialects::default() };
        QuantRules::read(&config, Path::new("nowhere"), &dialects)
    }

    fn affine(bits: u8, group_size: usize) -> MatrixFormat {
        MatrixFormat::Affine(Affine::new(bits, group_size, Float::BF16))
    }

    const MXFP4: MatrixFormat = MatrixFormat::Micro(MicroScaled::MXFP4);

    #[test]
    fn overrides_win_over_the_default() {
        let rules = rules(json!({
            "bits": 4, "group_size": 64, "mode": "affine",
            "language_model.model.layers.0.mlp.gate": {"bits": 8, "group_size": 64},
            "model.layers.1.mlp.gate": false,
            "trunk.layers.2.mlp.gate": {"bits": 8, "group_size": 64},
        }));
        let rules = rules.unwrap();
        assert!(rules.check("layers.0.mlp.gate", &affine(8, 64)).is_ok());
        assert!(rules.check("layers.0.mlp.gate", &affine(4, 64)).is_err());
        assert!(rules.check("layers.1.mlp.gate", &affine(4, 64)).is_err());
        assert!(rules.check("layers.2.mlp.gate", &affine(8, 64)).is_ok());
        assert!(rules.check("lm_head", &affine(4, 64)).is_ok());
        assert!(rules.check("lm_head", &affine(4, 32)).is_err());
        assert!(rules.check("lm_head", &MXFP4).is_err());
    }

    #[test]
    fn an_override_without_a_mode_is_affine() {
        let rules = rules(json!({
            "bits": 4, "group_size": 32, "mode": "mxfp4",
            "model.layers.0.self_attn.q_proj": {"bits": 8, "group_size": 64},
            "lm_head": {"mode": "nvfp4"},
        }));
        let rules = rules.unwrap();
        assert!(rules.check("layers.0.self_attn.q_proj", &affine(8, 64)).is_ok());
        assert!(rules.check("layers.0.mlp.experts.up_proj", &MXFP4).is_ok());
        assert!(rules.check("layers.0.mlp.experts.up_proj", &affine(4, 32)).is_err());
        let nvfp4 = MatrixFormat::Micro(MicroScaled::NVFP4);
        assert!(rules.check("lm_head", &nvfp4).is_ok());
        let got = rules.check("lm_head", &MXFP4).unwrap_err();
        assert_eq!(got, "lm_head has mxfp4 by its shapes, the config says nvfp4");
    }

    #[test]
    fn refuses_what_it_does_not_read() {
        let got = rules(json!({"bits": 4, "group_size": 32, "mode": "fp4"})).unwrap_err();
        assert_eq!(
            got.to_string(),
            "config.json: quantisation mode \"fp4\" of quantization is not supported"
        );
        assert!(rules(json!({"bits": 4, "x": {"mode": 4, "bits": 4}})).is_err());
        assert!(rules(json!({"bits": 8, "group_size": 32, "mode": "mxfp4"})).is_err());
        assert!(rules(json!({"bits": 4, "group_size": 32, "mode": "nvfp4"})).is_err());
        assert!(rules(json!({"quant_method": "bitsandbytes", "load_in_8bit": true})).is_err());
        assert!(rules(json!({"quant_method": "fp8", "fmt": "e5m2"})).is_err());
        for size in [json!([128]), json!([0, 128]), json!(128), json!([1, 2, 3]), json!([-1, 1])] {
            let block = json!({"quant_method": "fp8", "weight_block_size": size});
            assert!(rules(block).is_err(), "{size}");
        }
        assert!(rules(json!({"bits": 7})).is_err());
        assert!(rules(json!({"bits": -1})).is_err());
        assert!(rules(json!({"bits": 4, "group_size": 48})).is_err());
        assert!(rules(json!(3)).is_err());
    }

    #[test]
    fn reads_block_sizes_of_fp8() {
        let block = json!({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [64, 256]});
        assert_eq!(rules(block).unwrap().blocks_of("x"), [(64, 256)]);
        assert_eq!(rules(json!({"quant_method": "fp8"})).unwrap().blocks_of("x"), [(128, 128)]);
        assert_eq!(QuantRules::default().blocks_of("x"), [(128, 128)]);
        let group = |structure| json!({"weights": {"block_structure": structure}});
        let groups = |first, second| {
            rules(json!({"quant_method": "compressed-tensors",
                "config_groups": {"group_0": group(first), "group_1": group(second)}}))
        };
        let read = groups(json!([64, 128]), json!("32x32")).unwrap();
        assert_eq!(read.blocks_of("x"), [(32, 32), (64, 128)]);
        assert_eq!(groups(json!(null), json!(null)).unwrap().blocks_of("x"), [(128, 128)]);
        for odd in [json!([0, 1]), json!([1, 2, 3]), json!("128"), json!("ax1"), json!(7)] {
            let err = groups(json!(null), odd.clone()).unwrap_err().to_string();
            assert!(err.contains(&format!("block_structure is {odd}")), "{err}");
        }
    }

    #[test]
    fn says_nothing_where_the_config_does_not() {
        assert!(QuantRules::default().check("x", &affine(3, 128)).is_ok());
        assert!(QuantRules::default().check("x", &MXFP4).is_ok());
    }
}
