//! Values of flags: what is out of range is refused before anything is opened.

use std::str::FromStr;

use moeflux_convert::synth::{GgufMix, shape_names};
use moeflux_engine::{MAX_DRAFT, MAX_SESSIONS, MemoryOptions, Speculation};

use crate::words::did_you_mean;

/// One or more.
pub(crate) fn count(text: &str) -> Result<usize, String> {
    parse(text, |n| *n > 0, "write a whole number, at least 1")
}

/// A limit of a key.
pub(crate) fn limit(text: &str) -> Result<u32, String> {
    parse(text, |n| *n > 0, "write a whole number, at least 1")
}

/// Answers at once: a number, or as many as memory has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sessions {
    Auto,
    Exactly(usize),
}

impl Sessions {
    /// Most answers at once where memory decides, and how many where the context is left to memory,
    /// too.
    pub(crate) const MOST: usize = 8;

    /// Those of a server: where a context is asked for, as many as memory has room for.
    pub(crate) fn of_server(asked: Option<Sessions>, ctx: Option<usize>) -> Sessions {
        asked.unwrap_or(match ctx {
            Some(_) => Sessions::Auto,
            None => Sessions::Exactly(Sessions::MOST),
        })
    }

    /// Those of the server of an agent, which needs a long context more than answers at once: its
    /// sub-agents share what memory has room for.
    pub(crate) fn of_launch(asked: Option<Sessions>) -> Sessions {
        asked.unwrap_or(Sessions::Auto)
    }

    /// What the engine's options say of them.
    pub(crate) fn set(self, memory: &mut MemoryOptions) {
        (memory.sessions, memory.most_sessions) = match self {
            Sessions::Auto => (None, Some(Sessions::MOST)),
            Sessions::Exactly(n) => (Some(n), None),
        };
    }
}

impl From<usize> for Sessions {
    fn from(n: usize) -> Sessions {
        Sessions::Exactly(n)
    }
}

impl std::fmt::Display for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Sessions::Auto => f.write_str("auto"),
            Sessions::Exactly(n) => write!(f, "{n}"),
        }
    }
}

/// Reads `auto` or a number.
pub(crate) fn sessions(text: &str) -> Result<Sessions, String> {
    let remedy = format!("write auto or a whole number from 1 to {MAX_SESSIONS}");
    match text {
        "auto" => Ok(Sessions::Auto),
        _ => parse(text, |n| (1..=MAX_SESSIONS).contains(n), &remedy).map(Sessions::Exactly),
    }
}

/// Zero or more.
pub(crate) fn whole_number(text: &str) -> Result<usize, String> {
    parse(text, |_| true, "write a whole number, at least 0")
}

/// Tokens of thoughts; `None` for no limit.
pub(crate) fn thought_limit(text: &str) -> Result<Option<usize>, String> {
    match text {
        "-1" => Ok(None),
        text => {
            parse(text, |_| true, "write a whole number, 0 for no thoughts, or -1 for no limit")
                .map(Some)
        }
    }
}

/// A seed, or another number of 64 bits.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    parse(text, |_| true, "write a whole number, at least 0")
}

/// Bits of a weight; 16 are none less than it has.
pub(crate) fn weight_bits(text: &str) -> Result<u8, String> {
    parse(text, |bits| [2, 3, 4, 5, 6, 8, 16].contains(bits), "choose 2, 3, 4, 5, 6, 8 or 16")
}

/// Bits of a weight that is quantised.
pub(crate) fn fewer_bits(text: &str) -> Result<u8, String> {
    parse(text, |bits| [2, 3, 4, 5, 6, 8].contains(bits), "choose 2, 3, 4, 5, 6 or 8")
}

/// Whether and how many tokens are drafted.
pub(crate) fn speculation(text: &str) -> Result<Speculation, String> {
    match text {
        "auto" => Ok(Speculation::Auto),
        "off" => Ok(Speculation::Off),
        _ => {
            let remedy = format!("write auto, off or a number from 1 to {MAX_DRAFT}");
            parse(text, |n| (1..=MAX_DRAFT).contains(n), &remedy).map(Speculation::Fixed)
        }
    }
}

/// A shape of `synth`.
pub(crate) fn shape(text: &str) -> Result<String, String> {
    if shape_names().any(|name| name == text) {
        return Ok(text.to_owned());
    }
    let known = || shape_names().collect::<Vec<_>>().join(", ");
    Err(match did_you_mean(text, shape_names()) {
        Some(near) => format!("did you mean {near}? There are {}", known()),
        None => format!("there are {}", known()),
    })
}

/// Types of a GGUF file that `synth` writes.
pub(crate) fn mix(text: &str) -> Result<GgufMix, String> {
    let known = || GgufMix::names().collect::<Vec<_>>().join(", ");
    GgufMix::by_name(text).ok_or_else(|| format!("there are {}", known()))
}

/// Columns that share a scale.
pub(crate) fn group_size(text: &str) -> Result<usize, String> {
    parse(text, |n| [32, 64, 128].contains(n), "choose 32, 64 or 128")
}

/// A temperature.
pub(crate) fn non_negative(text: &str) -> Result<f32, String> {
    parse(text, |value: &f32| value.is_finite() && *value >= 0.0, "write a number, 0 or more")
}

/// A sum of probabilities that keeps something.
pub(crate) fn positive_share(text: &str) -> Result<f32, String> {
    parse(text, |share| *share > 0.0 && *share <= 1.0, "write a number above 0 and at most 1")
}

/// A share of the likeliest token's probability.
pub(crate) fn probability(text: &str) -> Result<f32, String> {
    parse(text, |share| (0.0..=1.0).contains(share), "write a number between 0 and 1")
}

/// What divides the logits of tokens that were used.
pub(crate) fn penalty(text: &str) -> Result<f32, String> {
    parse(text, |value: &f32| value.is_finite() && *value > 0.0, "write a number above 0")
}

fn parse<T: FromStr>(
    text: &str,
    is_good: impl FnOnce(&T) -> bool,
    remedy: &str,
) -> Result<T, String> {
    text.parse().ok().filter(is_good).ok_or_else(|| remedy.to_owned())
}

/// How large a cache is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum CacheSize {
    /// Of all experts.
    Share(f64),
    Bytes(u64),
}

impl std::fmt::Display for CacheSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CacheSize::Share(share) => write!(f, "{}%", 100.0 * share),
            CacheSize::Bytes(bytes) => f.write_str(&crate::bytes::show(*bytes)),
        }
    }
}

/// Reads `25%` or `8GiB`.
pub(crate) fn cache_size(text: &str) -> Result<CacheSize, String> {
    let Some(share) = text.strip_suffix('%') else {
        return crate::bytes::parse_some(text).map(CacheSize::Bytes);
    };
    match share.trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(CacheSize::Share(percent / 100.0)),
        _ => Err(String::from("write it like 25% or 8GiB")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_in_range_is_refused() {
        for text in ["", "0", "-1", "1.5", "x", "99999999999999999999999"] {
            assert!(count(text).is_err(), "{text}");
        }
        for text in ["nan", "inf", "-0.1", "", "1e999"] {
            assert!(non_negative(text).is_err() && penalty(text).is_err(), "{text}");
            assert!(probability(text).is_err() && positive_share(text).is_err(), "{text}");
        }
        assert!(positive_share("0").is_err() && penalty("0").is_err());
        assert_eq!((non_negative("0"), probability("0")), (Ok(0.0), Ok(0.0)));
        for text in ["", "0", "16", "-1", "Auto", "1.0"] {
            assert!(speculation(text).is_err(), "{text}");
        }
        assert_eq!(
            (speculation("auto"), speculation("off")),
            (Ok(Speculation::Auto), Ok(Speculation::Off))
        );
        assert_eq!(speculation("15"), Ok(Speculation::Fixed(15)));
        for text in ["", "0", "257", "-1", "Auto", "1.5"] {
            assert!(sessions(text).is_err(), "{text}");
        }
        assert_eq!(sessions("auto"), Ok(Sessions::Auto));
        assert_eq!(sessions("256"), Ok(Sessions::Exactly(256)));
        assert!(weight_bits("7").is_err() && group_size("7").is_err());
        assert_eq!((count("7"), weight_bits("16"), group_size("32")), (Ok(7), Ok(16), Ok(32)));
    }
}
