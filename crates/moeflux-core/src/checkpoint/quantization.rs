//! What a config says about quantisation, to check what shapes say.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::{Config, FormatError, canonical_name};
use crate::quant::Affine;

/// Bits and group size that a module is declared to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Declared {
    pub(crate) bits: Option<u8>,
    pub(crate) group_size: Option<usize>,
}

/// Declarations for all modules, by canonical name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QuantRules {
    pub(crate) default: Option<Declared>,
    /// `None` for modules declared unquantised.
    pub(crate) modules: BTreeMap<String, Option<Declared>>,
}

impl QuantRules {
    /// Reads MLX's `quantization` (or `quantization_config`) block.
    ///
    /// # Errors
    /// For modes, methods and values that this program does not read.
    pub(crate) fn read(config: &Config) -> Result<QuantRules, FormatError> {
        let block = config.get("quantization").or_else(|| config.get("quantization_config"));
        let Some(block) = block else { return Ok(QuantRules::default()) };
        let path = config.path();
        let Some(block) = block.as_object() else {
            return Err(config.refuse("quantization", "be an object"));
        };
        if let Some(method) = block.get("quant_method").filter(|it| !it.is_null()) {
            return Err(FormatError::unsupported(path, format!("quant_method {method}")));
        }
        let default = declared(path, "quantization", &Value::Object(block.clone()))?;
        let mut rules = QuantRules { default: Some(default), modules: BTreeMap::new() };
        for (name, value) in block {
            let rule = match value {
                Value::Bool(false) => None,
                Value::Bool(true) => rules.default,
                Value::Object(_) => Some(declared(path, name, value)?),
                _ => continue,
            };
            rules.modules.insert(canonical_name(name).to_owned(), rule);
        }
        Ok(rules)
    }

    /// Checks what the shapes of a quantised module say against its
    /// declaration; says what is wrong.
    pub(crate) fn check(&self, module: &str, stored: &Affine) -> Result<(), String> {
        let rule = self.modules.get(module).copied().unwrap_or(self.default.or(Some(ANY)));
        let Some(rule) = rule else {
            return Err(format!("{module} is quantised, the config says that it is not"));
        };
        let bits_agree = rule.bits.is_none_or(|it| it == stored.bits);
        let groups_agree = rule.group_size.is_none_or(|it| it == stored.group_size);
        if bits_agree && groups_agree {
            return Ok(());
        }
        let (bits, group_size) = (stored.bits, stored.group_size);
        Err(format!(
            "{module} has {bits} bits in groups of {group_size} by its shapes, the config says {rule}"
        ))
    }
}

const ANY: Declared = Declared { bits: None, group_size: None };

impl std::fmt::Display for Declared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.bits {
            Some(bits) => write!(f, "{bits} bits")?,
            None => write!(f, "any number of bits")?,
        }
        self.group_size.map_or(Ok(()), |it| write!(f, " in groups of {it}"))
    }
}

fn declared(path: &Path, name: &str, value: &Value) -> Result<Declared, FormatError> {
    match value.get("mode").and_then(Value::as_str) {
        None | Some("affine") => {}
        Some(mode) => {
            let what = format!("quantisation mode {mode:?} of {name}");
            return Err(FormatError::unsupported(path, what));
        }
    }
    let number = |key: &str| match value.get(key).filter(|it| !it.is_null()) {
        None => Ok(None),
        Some(it) => it.as_u64().map(Some).ok_or_else(|| {
            FormatError::malformed(path, format!("{key} of {name} is {it}, not a whole number"))
        }),
    };
    let bits = number("bits")?.map(|it| {
        let known = u8::try_from(it).ok().filter(|it| Affine::BITS.contains(it));
        known.ok_or_else(|| FormatError::unsupported(path, format!("{it} bits for {name}")))
    });
    let group_size = number("group_size")?.map(|it| {
        let known = usize::try_from(it).ok().filter(|it| Affine::GROUP_SIZES.contains(it));
        known.ok_or_else(|| FormatError::unsupported(path, format!("group_size {it} of {name}")))
    });
    Ok(Declared { bits: bits.transpose()?, group_size: group_size.transpose()? })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::quant::Float;

    fn rules(block: Value) -> Result<QuantRules, FormatError> {
        let root = json!({"quantization": block});
        QuantRules::read(&Config::from_value(Path::new("config.json"), root).unwrap())
    }

    fn affine(bits: u8, group_size: usize) -> Affine {
        Affine { bits, group_size, params: Float::BF16 }
    }

    #[test]
    fn overrides_win_over_the_default() {
        let rules = rules(json!({
            "bits": 4, "group_size": 64, "mode": "affine",
            "language_model.model.layers.0.mlp.gate": {"bits": 8, "group_size": 64},
            "model.layers.1.mlp.gate": false,
        }));
        let rules = rules.unwrap();
        assert!(rules.check("layers.0.mlp.gate", &affine(8, 64)).is_ok());
        assert!(rules.check("layers.0.mlp.gate", &affine(4, 64)).is_err());
        assert!(rules.check("layers.1.mlp.gate", &affine(4, 64)).is_err());
        assert!(rules.check("lm_head", &affine(4, 64)).is_ok());
        assert!(rules.check("lm_head", &affine(4, 32)).is_err());
    }

    #[test]
    fn refuses_modes_that_are_not_affine() {
        let got = rules(json!({"bits": 4, "group_size": 32, "mode": "mxfp4"})).unwrap_err();
        assert_eq!(
            got.to_string(),
            "config.json: quantisation mode \"mxfp4\" of quantization is not supported"
        );
        assert!(rules(json!({"bits": 4, "x": {"mode": "nvfp4", "bits": 4}})).is_err());
        assert!(rules(json!({"quant_method": "fp8"})).is_err());
        assert!(rules(json!({"bits": 7})).is_err());
        assert!(rules(json!({"bits": -1})).is_err());
        assert!(rules(json!({"bits": 4, "group_size": 48})).is_err());
        assert!(rules(json!(3)).is_err());
    }

    #[test]
    fn says_nothing_where_the_config_does_not() {
        assert!(QuantRules::default().check("x", &affine(3, 128)).is_ok());
    }
}
