//! Rotary frequencies from configs, as in transformers' `modeling_rope_utils`.

use std::f64::consts::TAU;

use moeflux_backend::{RopePairs, RopeSpec};
use moeflux_core::checkpoint::Config;
use serde_json::Value;

use crate::load::LoadError;

/// The rotation of heads of `head_dim`, of which the config rotates a part.
/// Pairs are halves.
pub(crate) fn read(config: &Config, head_dim: usize) -> Result<RopeSpec, LoadError> {
    let factor = config.rope_f32("partial_rotary_factor")?.unwrap_or(1.0);
    let refuse = |rule| Err(config.refuse("partial_rotary_factor", rule).into());
    if factor > 1.0 {
        return refuse("be at most 1");
    }
    // In double precision, where a factor such as 0.7 is what was written.
    let factor = config.get_rope("partial_rotary_factor").and_then(|value| value.as_f64());
    let factor = factor.unwrap_or(1.0);
    let rotary_dim = (head_dim as f64 * factor) as usize;
    if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
        return refuse("give an even number of rotary columns");
    }
    with_dim(config, rotary_dim)
}

/// The rotation of heads of `head_dim` in layers of a type, where a config has rotary keys for each.
pub(crate) fn of_layer_type(
    config: &Config,
    layer_type: &str,
    head_dim: usize,
) -> Result<RopeSpec, LoadError> {
    let keys = config.get_rope(layer_type).and_then(Value::as_object);
    let keys = keys.ok_or_else(|| config.refuse(layer_type, "be an object of rotary keys"))?;
    let config = config.with_rope(keys.clone().into_iter().collect());
    if config.rope_str("rope_type")? == Some("proportional") {
        return proportional(&config, head_dim);
    }
    read(&config, head_dim)
}

/// Pairs are halves of the whole head; the first of them turn, with the frequencies that they have
/// where all do, and the others do not.
fn proportional(config: &Config, head_dim: usize) -> Result<RopeSpec, LoadError> {
    let part = config.get_rope("partial_rotary_factor").and_then(Value::as_f64).unwrap_or(1.0);
    if !(0.0..=1.0).contains(&part) || !head_dim.is_multiple_of(2) {
        return Err(config.refuse("partial_rotary_factor", "be from 0 to 1").into());
    }
    let divisor = if config.get_rope("factor").is_some() { factor(config)? } else { 1.0 };
    let n_turning = (part * head_dim as f64 / 2.0) as usize;
    let periods = periods(theta(config)?, head_dim);
    let frequency = |(i, period): (usize, &f32)| {
        if i < n_turning { 1.0 / period / divisor } else { 0.0 }
    };
    let inv_freq = periods.iter().enumerate().map(frequency).collect();
    Ok(RopeSpec { inv_freq, pairs: RopePairs::Halves, scale: 1.0, parts: Vec::new() })
}

/// No rotation: an angle of zero for one pair, since a device has a table of every rotation.
pub(crate) fn none() -> RopeSpec {
    RopeSpec { inv_freq: vec![0.0], pairs: RopePairs::Halves, scale: 1.0, parts: Vec::new() }
}

/// The rotation of `rotary_dim` columns, an even number.
pub(crate) fn with_dim(config: &Config, rotary_dim: usize) -> Result<RopeSpec, LoadError> {
    let theta = theta(config)?;
    let periods = periods(theta, rotary_dim);
    let (inv_freq, scale) = match rope_type(config)? {
        RopeType::Default => (periods.iter().map(|period| 1.0 / period).collect(), 1.0),
        RopeType::Linear => {
            let factor = factor(config)?;
            (periods.iter().map(|period| 1.0 / period / factor).collect(), 1.0)
        }
        RopeType::Yarn => {
            let yarn = Yarn::read(config)?;
            (yarn.inverse_frequencies(&periods, theta), yarn.attention_factor)
        }
        RopeType::Llama3 => {
            let llama = Llama3::read(config)?;
            (periods.iter().map(|period| llama.inverse_frequency(1.0 / period)).collect(), 1.0)
        }
        RopeType::Divided => {
            let divisors = divisors(config, periods.len())?;
            let divided = periods.iter().zip(divisors);
            let divided = divided.map(|(period, divisor)| 1.0 / period / divisor);
            (divided.collect(), 1.0)
        }
    };
    Ok(RopeSpec { inv_freq, pairs: RopePairs::Halves, scale, parts: Vec::new() })
}

fn theta(config: &Config) -> Result<f32, LoadError> {
    let theta = config.rope_f32("rope_theta")?.filter(|theta| *theta > 1.0);
    theta.ok_or_else(|| config.refuse("rope_theta", "be above 1").into())
}

/// By how much the scores of latent attention grow with a stretched context:
/// `mscale(factor, mscale_all_dim)` squared, as in DeepSeek-V3.
pub(crate) fn latent_score_factor(config: &Config) -> Result<f32, LoadError> {
    let all_dim = config.rope_f32("mscale_all_dim")?.unwrap_or(0.0);
    if rope_type(config)? == RopeType::Default || all_dim == 0.0 {
        return Ok(1.0);
    }
    let mscale = mscale(f64::from(factor(config)?), f64::from(all_dim));
    Ok((mscale * mscale) as f32)
}

/// How frequencies depend on the context's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RopeType {
    Default,
    Linear,
    Yarn,
    Llama3,
    /// Each frequency is divided by a number of its own.
    Divided,
}

fn rope_type(config: &Config) -> Result<RopeType, LoadError> {
    match config.rope_str("rope_type")? {
        None | Some("default") => Ok(RopeType::Default),
        Some("linear") => Ok(RopeType::Linear),
        Some("yarn") => Ok(RopeType::Yarn),
        Some("llama3") => Ok(RopeType::Llama3),
        Some("divided") => Ok(RopeType::Divided),
        Some(_) => {
            let rule = "be \"default\", \"linear\", \"yarn\" or \"llama3\"";
            // The value may stand under the key's old name.
            let key = if config.get_rope("rope_type").is_some() { "rope_type" } else { "type" };
            Err(config.refuse(key, rule).into())
        }
    }
}

/// `theta ^ (2i / rotary_dim)`, in single precision as the reference has them.
fn periods(theta: f32, rotary_dim: usize) -> Vec<f32> {
    let period = |i: usize| {
        let exponent = (2 * i) as f32 / rotary_dim as f32;
        f64::from(theta).powf(f64::from(exponent)) as f32
    };
    (0..rotary_dim / 2).map(period).collect()
}

/// What each of `n` frequencies is divided by.
fn divisors(config: &Config, n: usize) -> Result<Vec<f32>, LoadError> {
    let key = "divisors";
    let number = |value: &Value| {
        let number = value.as_f64()? as f32;
        (number > 0.0).then_some(number)
    };
    let all = config.get_rope(key).and_then(Value::as_array);
    let all: Option<Vec<f32>> = all.and_then(|values| values.iter().map(number).collect());
    let rule = format!("be {n} numbers above 0, one for each rotated pair");
    all.filter(|divisors| divisors.len() == n).ok_or_else(|| config.refuse(key, &rule).into())
}

/// How many times longer the context is than the one first trained with.
fn factor(config: &Config) -> Result<f32, LoadError> {
    match config.rope_f32("factor")? {
        Some(factor) if factor > 0.0 => Ok(factor),
        _ => Err(config.refuse("factor", "be above 0").into()),
    }
}

/// The length of the context first trained with.
fn original_positions(config: &Config) -> Result<f32, LoadError> {
    let key = "original_max_position_embeddings";
    let positions = match config.rope_f32(key)? {
        None => config.f32("max_position_embeddings")?,
        Some(positions) => positions,
    };
    if positions < 1.0 {
        return Err(config.refuse(key, "be at least 1").into());
    }
    Ok(positions)
}

/// YaRN (Peng et al., 2023): high frequencies stay, low ones are stretched,
/// with a ramp between.
struct Yarn {
    factor: f32,
    original_positions: f32,
    beta_fast: f32,
    beta_slow: f32,
    /// Whether the ramp begins and ends at whole pairs.
    truncates: bool,
    /// Multiplies sine and cosine.
    attention_factor: f32,
}

impl Yarn {
    fn read(config: &Config) -> Result<Yarn, LoadError> {
        let positive = |key| Ok::<_, LoadError>(config.rope_f32(key)?.filter(|value| *value > 0.0));
        let original_positions = original_positions(config)?;
        let factor = match config.get_rope("factor") {
            Some(_) => factor(config)?,
            None => config.f32("max_position_embeddings")? / original_positions,
        };
        let attention_factor = match config.rope_f32("attention_factor")? {
            Some(given) => given,
            None => {
                let (one, all) = (positive("mscale")?, positive("mscale_all_dim")?);
                let of = |value: f32| mscale(f64::from(factor), f64::from(value));
                let pair = one.zip(all);
                pair.map_or(of(1.0), |(one, all)| of(one) / of(all)) as f32
            }
        };
        Ok(Yarn {
            factor,
            original_positions,
            beta_fast: positive("beta_fast")?.unwrap_or(32.0),
            beta_slow: positive("beta_slow")?.unwrap_or(1.0),
            truncates: truncates(config)?,
            attention_factor,
        })
    }

    fn inverse_frequencies(&self, periods: &[f32], theta: f32) -> Vec<f32> {
        let dim = 2 * periods.len();
        let (low, high) = self.ramp(dim, theta);
        let blend = |(i, period): (usize, &f32)| {
            let ramp = ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
            let kept = 1.0 - ramp;
            1.0 / (self.factor * period) * (1.0 - kept) + 1.0 / period * kept
        };
        periods.iter().enumerate().map(blend).collect()
    }

    /// Where the ramp begins and ends, counted in pairs.
    fn ramp(&self, dim: usize, theta: f32) -> (f32, f32) {
        let pair = |rotations: f32| {
            let turns = f64::from(self.original_positions) / (f64::from(rotations) * TAU);
            dim as f64 * turns.ln() / (2.0 * f64::from(theta).ln())
        };
        let (mut low, mut high) = (pair(self.beta_fast), pair(self.beta_slow));
        if self.truncates {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0), high.min((dim - 1) as f64));
        if low == high {
            high += 0.001;
        }
        (low as f32, high as f32)
    }
}

fn truncates(config: &Config) -> Result<bool, LoadError> {
    let Some(value) = config.get_rope("truncate") else { return Ok(true) };
    value.as_bool().ok_or_else(|| config.refuse("truncate", "be true or false").into())
}

/// What attention is multiplied with for a context `scale` times as long.
fn mscale(scale: f64, mscale: f64) -> f64 {
    if scale <= 1.0 { 1.0 } else { 0.1 * mscale * scale.ln() + 1.0 }
}

/// Llama 3.1: long wavelengths are stretched, short ones stay, with a ramp
/// between.
struct Llama3 {
    factor: f32,
    low: f32,
    high: f32,
    original_positions: f32,
}

impl Llama3 {
    fn read(config: &Config) -> Result<Llama3, LoadError> {
        let number = |key| -> Result<f32, LoadError> {
            let number = config.rope_f32(key)?.filter(|value| *value > 0.0);
            number.ok_or_else(|| config.refuse(key, "be above 0").into())
        };
        let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
        if low >= high {
            return Err(config.refuse("low_freq_factor", "be below high_freq_factor").into());
        }
        let original_positions = original_positions(config)?;
        Ok(Llama3 { factor: factor(config)?, low, high, original_positions })
    }

    fn inverse_frequency(&self, frequency: f32) -> f32 {
        let wavelength = TAU as f32 / frequency;
        if wavelength < self.original_positions / self.high {
            return frequency;
        }
        if wavelength > self.original_positions / self.low {
            return frequency / self.factor;
        }
        let turns = self.original_positions / wavelength;
        let kept = (turns - self.low) / (self.high - self.low);
        (1.0 - kept) * frequency / self.factor + kept * frequency
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::families::{EXAMPLE, resolved};

    fn config(root: Value) -> Config {
        Config::from_value(Path::new("config.json"), root).expect("an object")
    }

    /// Against `ROPE_INIT_FUNCTIONS` of transformers.
    #[track_caller]
    fn check(parameters: Value, rotary_dim: usize, want: &[f32], scale: f32) {
        let keys = [json!({"rope_parameters": parameters}), json!({"rope_scaling": parameters})];
        for root in keys {
            let got = with_dim(&config(root), rotary_dim).unwrap();
            assert_eq!(got.inv_freq.len(), want.len());
            for (got, want) in got.inv_freq.iter().zip(want) {
                assert!((got / want - 1.0).abs() < 1e-6, "{got} {want}");
            }
            assert_eq!(got.scale, scale);
        }
    }

    #[track_caller]
    fn check_refused(mut root: Value, message: &str) {
        let keys = root.as_object_mut().unwrap();
        keys.entry("rope_theta").or_insert(json!(10000.0));
        root["model_type"] = json!(EXAMPLE.name);
        root.as_object_mut().unwrap().entry("partial_rotary_factor").or_insert(json!(1.0));
        let got =
            resolved(root).and_then(|config| read(&config, 16)).expect_err("refused").to_string();
        assert_eq!(got, format!("config.json: {message}"));
    }

    #[test]
    fn stretches_linearly() {
        let parameters = json!({"type": "linear", "rope_theta": 10000.0, "factor": 4.0});
        check(parameters, 8, &[0.25, 0.025, 0.0025, 0.00025], 1.0);
    }

    #[test]
    fn stretches_low_frequencies_by_yarn() {
        let parameters = json!({
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0,
            "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
            "mscale": 1.0, "mscale_all_dim": 0.5
        });
        let want = [
            1.0,
            0.316_227_76,
            0.1,
            0.023_914_725,
            0.005_125,
            0.000_849_862_2,
            2.5e-5,
            7.905_694_5e-6,
        ];
        check(parameters, 16, &want, 1.155_722);
    }

    #[test]
    fn begins_the_ramp_between_pairs_where_it_is_not_truncated() {
        let parameters = json!({
            "rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "truncate": false,
            "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0
        });
        let want = [
            1.0,
            0.225_418,
            0.050_813_273,
            0.006_794_959_3,
            0.000_456_483_92,
            1.818_833_7e-5,
            4.099_978_5e-6,
            9.242_089_6e-7,
        ];
        check(parameters, 16, &want, 1.346_573_6);
    }

    #[test]
    fn stretches_long_wavelengths_as_llama_3_does() {
        let parameters = json!({
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 512
        });
        let want = [
            1.0,
            0.193_922_76,
            0.027_344_134,
            0.000_911_583_1,
            0.000_176_776_68,
            3.428_102_4e-5,
            6.647_869_7e-6,
            1.289_173_2e-6,
        ];
        check(parameters, 16, &want, 1.0);
    }

    #[test]
    fn divides_frequencies_one_by_one() {
        let divisors = json!({"rope_type": "divided", "rope_theta": 10000.0, "divisors": [1.0, 2.0, 4.0, 1e30]});
        check(divisors, 8, &[1.0, 0.05, 0.0025, 1e-33], 1.0);
        let few = json!({"rope_parameters": {"rope_type": "divided", "divisors": [1.0, 2.0]}});
        let rule = "it must be 8 numbers above 0, one for each rotated pair";
        check_refused(few, &format!("divisors is [1.0,2.0]; {rule}"));
    }

    #[test]
    fn latent_scores_grow_with_a_stretched_context() {
        let root = json!({"rope_scaling": {"type": "yarn", "factor": 40, "mscale_all_dim": 1.0}});
        let want = (0.1 * 40f32.ln() + 1.0).powi(2);
        let got = latent_score_factor(&config(root)).unwrap();
        assert!((got - want).abs() < 1e-6, "{got} {want}");
        assert_eq!(latent_score_factor(&config(json!({"mscale_all_dim": 1.0}))).unwrap(), 1.0);
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        let types = "it must be \"default\", \"linear\", \"yarn\" or \"llama3\"";
        let longrope = json!({"rope_scaling": {"rope_type": "longrope"}});
        check_refused(longrope, &format!("rope_type is \"longrope\"; {types}"));
        let dynamic = json!({"rope_scaling": {"type": "dynamic"}});
        check_refused(dynamic, &format!("rope_type is \"dynamic\"; {types}"));
        let linear = json!({"rope_parameters": {"rope_type": "linear"}});
        check_refused(linear, "factor is missing; it must be above 0");
        check_refused(json!({"rope_theta": 1}), "rope_theta is 1; it must be above 1");
        check_refused(json!({"rope_theta": null}), "rope_theta is missing; it must be above 1");
        let odd = "it must give an even number of rotary columns";
        let factor = "partial_rotary_factor";
        check_refused(json!({factor: 0.2}), &format!("{factor} is 0.2; {odd}"));
        check_refused(json!({factor: 1.5}), &format!("{factor} is 1.5; it must be at most 1"));
    }
}
