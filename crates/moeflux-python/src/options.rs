//! Options of a model, from the keywords of Python.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use moeflux::{
    Activations, Device, KvType, MIN_PROMPT_TOKENS, Options, PromptCacheOptions, PromptMemory,
    Speculation,
};
use moeflux_cli::{did_you_mean, gpu_tuning_dir, parse_bytes};
use moeflux_store::{CachePolicy, IoChoice, Prefetch};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use serde_json::{Map, Value};

use crate::error::Failure;

/// Most sessions where memory decides how many there are.
const MOST_SESSIONS: usize = 8;

/// Bytes of the prefix cache on disk where only its folder is named.
const PROMPT_CACHE_BYTES: u64 = 4 << 30;

/// The keywords.
const NAMES: [&str; 28] = [
    "activations",
    "allow_missing_experts",
    "cache_policy",
    "checkpoint_bytes",
    "chunk",
    "ctx",
    "device",
    "device_cache",
    "expert_cache",
    "expert_cache_min",
    "expert_io",
    "expert_stats",
    "experts_per_token",
    "gpu_tuning",
    "image_tokens",
    "isa",
    "kv_type",
    "mmproj",
    "prefetch",
    "prompt_cache",
    "prompt_cache_size",
    "prompt_memory",
    "record_routing",
    "row_cache",
    "sessions",
    "speculation",
    "threads",
    "tower_idle",
];

/// A keyword and what was written for it.
pub(crate) struct Keyword<'a> {
    pub(crate) name: &'a str,
    pub(crate) value: &'a Value,
}

/// Why options are refused.
#[derive(Debug)]
pub(crate) enum OptionsError {
    /// There is no such keyword: a mistake of the program.
    Unknown(String),
    /// A value makes no sense.
    Wrong(Failure),
}

impl OptionsError {
    /// The exception.
    pub(crate) fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            OptionsError::Unknown(text) => PyTypeError::new_err(text),
            OptionsError::Wrong(failure) => failure.raise(py),
        }
    }
}

impl From<Failure> for OptionsError {
    fn from(failure: Failure) -> OptionsError {
        OptionsError::Wrong(failure)
    }
}

/// Reads options from a JSON object. Keywords that are `null` are left out.
pub(crate) fn read(json: &str) -> Result<Options, OptionsError> {
    let given: Map<String, Value> = serde_json::from_str(json)
        .map_err(|err| OptionsError::Unknown(format!("options are no JSON: {err}")))?;
    let mut options = Options::default();
    options.memory.most_sessions = Some(MOST_SESSIONS);
    let (mut dir, mut max_bytes) = (None, PROMPT_CACHE_BYTES);
    for (name, value) in given.iter().filter(|(_, value)| !value.is_null()) {
        let keyword = Keyword { name, value };
        match &name[..] {
            "prompt_cache" => dir = Some(keyword.path()?),
            "prompt_cache_size" => max_bytes = keyword.bytes()?,
            name if !NAMES.contains(&name) => return Err(unknown(name)),
            _ => set(&mut options, &keyword)?,
        }
    }
    let min_tokens = MIN_PROMPT_TOKENS;
    options.prompt_cache = dir.map(|dir| PromptCacheOptions { dir, max_bytes, min_tokens });
    if options.compute.device != Device::Cpu && options.compute.gpu_tuning.is_none() {
        options.compute.gpu_tuning = gpu_tuning_dir();
    }
    Ok(options)
}

fn unknown(name: &str) -> OptionsError {
    let near = did_you_mean(name, NAMES.into_iter());
    let near = near.map_or_else(
        || format!("there are {}", NAMES.join(", ")),
        |near| format!("did you mean {near}?"),
    );
    OptionsError::Unknown(format!("there is no option {name}: {near}"))
}

fn set(options: &mut Options, keyword: &Keyword<'_>) -> Result<(), Failure> {
    let Options { compute, memory, experts, speculation, vision, .. } = options;
    match keyword.name {
        "activations" => compute.activations = keyword.one_of(&ACTIVATIONS)?,
        "allow_missing_experts" => experts.allow_missing = keyword.flag()?,
        "cache_policy" => experts.policy = keyword.one_of(&POLICIES)?,
        "checkpoint_bytes" => memory.checkpoint_bytes = Some(keyword.bytes()?),
        "chunk" => memory.chunk = Some(keyword.count()?),
        "ctx" => memory.ctx = Some(keyword.count()?),
        "device" => compute.device = Device::by_name(&keyword.text()?.to_lowercase())?,
        "device_cache" => experts.device_cache = Some(keyword.bytes()?),
        "expert_cache" => experts.cache = Some(keyword.bytes()?),
        "expert_cache_min" => experts.cache_min = Some(keyword.bytes()?),
        "expert_io" => experts.io = keyword.one_of(&IO_CHOICES)?,
        "expert_stats" => experts.stats = Some(keyword.path()?),
        "experts_per_token" => experts.per_token = Some(keyword.count()?),
        "gpu_tuning" => compute.gpu_tuning = Some(keyword.path()?),
        "image_tokens" => vision.image_tokens = keyword.image_tokens()?,
        "isa" => compute.isa = Some(keyword.text()?.to_owned()),
        "kv_type" => memory.kv_type = keyword.one_of(&KV_TYPES)?,
        "mmproj" if keyword.value == false => vision.is_off = true,
        "mmproj" => vision.mmproj = Some(keyword.path()?),
        "prefetch" => experts.prefetch = keyword.one_of(&PREFETCHES)?,
        "prompt_memory" => memory.prompts = keyword.prompt_memory()?,
        "record_routing" => experts.record_routing = Some(keyword.path()?),
        "row_cache" => memory.row_cache = Some(keyword.bytes()?),
        "sessions" if keyword.value != "auto" => {
            (memory.sessions, memory.most_sessions) = (Some(keyword.count()?), None);
        }
        "speculation" => *speculation = keyword.speculation()?,
        "threads" => compute.threads = Some(keyword.count()?),
        "tower_idle" => vision.tower_idle = keyword.duration()?,
        _ => {}
    }
    Ok(())
}

const ACTIVATIONS: [(&str, Activations); 3] =
    [("int16", Activations::Int16), ("int8", Activations::Int8), ("full", Activations::Full)];

const POLICIES: [(&str, CachePolicy); 2] =
    [("frequency", CachePolicy::Frequency), ("lru", CachePolicy::Lru)];

const IO_CHOICES: [(&str, IoChoice); 4] = [
    ("auto", IoChoice::Auto),
    ("mmap", IoChoice::Mmap),
    ("pread", IoChoice::Pread),
    ("direct", IoChoice::Direct),
];

const KV_TYPES: [(&str, KvType); 3] =
    [("f32", KvType::F32), ("bf16", KvType::Bf16), ("q8", KvType::Q8)];

const PREFETCHES: [(&str, Prefetch); 4] = [
    ("auto", Prefetch::Auto),
    ("off", Prefetch::Off),
    ("last-token", Prefetch::LastToken),
    ("lookahead", Prefetch::Lookahead),
];

impl<'a> Keyword<'a> {
    /// What is said of a value that makes no sense.
    pub(crate) fn wrong(&self, remedy: &str) -> Failure {
        let Keyword { name, value } = self;
        Failure::of_option(name, format!("{name} {value}: {remedy}"))
    }

    /// A whole number of 1 and more.
    pub(crate) fn count(&self) -> Result<usize, Failure> {
        let number = self.value.as_u64().and_then(|n| usize::try_from(n).ok());
        let number = number.filter(|n| *n > 0);
        number.ok_or_else(|| self.wrong("a whole number is needed, at least 1"))
    }

    /// Bytes: a number, or a text like `8GiB`.
    fn bytes(&self) -> Result<u64, Failure> {
        let number = match self.value {
            Value::String(text) => parse_bytes(text).ok(),
            value => value.as_u64(),
        };
        number.ok_or_else(|| self.wrong("bytes are needed, as a number or like \"8GiB\""))
    }

    fn flag(&self) -> Result<bool, Failure> {
        self.value.as_bool().ok_or_else(|| self.wrong("True or False is needed"))
    }

    fn text(&self) -> Result<&'a str, Failure> {
        self.value.as_str().ok_or_else(|| self.wrong("a text is needed"))
    }

    fn path(&self) -> Result<PathBuf, Failure> {
        let path = self.value.as_str().filter(|path| !path.is_empty());
        path.map(PathBuf::from).ok_or_else(|| self.wrong("a path is needed"))
    }

    fn one_of<T: Copy>(&self, choices: &[(&str, T)]) -> Result<T, Failure> {
        let chosen = choices.iter().find(|(name, _)| self.value == name);
        chosen.map(|(_, choice)| *choice).ok_or_else(|| {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            self.wrong(&format!("choose {}", names.join(", ")))
        })
    }

    /// Tokens of a picture at most; `None` where the model's processor is the only limit.
    fn image_tokens(&self) -> Result<Option<NonZeroUsize>, Failure> {
        let number = self.value.as_u64().and_then(|n| usize::try_from(n).ok());
        let remedy = "a whole number is needed; 0 leaves the limit to the model";
        number.map(NonZeroUsize::new).ok_or_else(|| self.wrong(remedy))
    }

    /// A time in seconds.
    fn duration(&self) -> Result<Duration, Failure> {
        let seconds = self.value.as_f64().and_then(|s| Duration::try_from_secs_f64(s).ok());
        seconds.ok_or_else(|| self.wrong("seconds are needed, as a number of 0 and more"))
    }

    fn prompt_memory(&self) -> Result<PromptMemory, Failure> {
        match self.value.as_str() {
            Some("off") => Ok(PromptMemory::Off),
            Some("auto") => Ok(PromptMemory::Planned),
            _ => self.bytes().map(PromptMemory::Bytes),
        }
    }

    fn speculation(&self) -> Result<Speculation, Failure> {
        match self.value.as_str() {
            Some("auto") => Ok(Speculation::Auto),
            Some("off") => Ok(Speculation::Off),
            _ => {
                let drafts = self.count().ok().filter(|n| *n <= moeflux_engine::MAX_DRAFT);
                let remedy = format!("auto, off or 1 to {} is needed", moeflux_engine::MAX_DRAFT);
                drafts.map(Speculation::Fixed).ok_or_else(|| self.wrong(&remedy))
            }
        }
    }
}
