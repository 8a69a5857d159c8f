//! How a model is opened.

use std::path::PathBuf;
use std::ptr;
use std::sync::Mutex;

use moeflux::{
    Activations, Device, KvType, MIN_PROMPT_TOKENS, Options, PromptCacheOptions, PromptMemory,
    Speculation,
};
use moeflux_engine::{MAX_DRAFT, MAX_SESSIONS};
use moeflux_store::{CachePolicy, Prefetch};

use crate::failure::{call, moeflux_error};
use crate::handles::{Handle, exclusive, issue, look_up, retire};
use crate::pointers::{Out, text};
use crate::settings::{Setting, set};
use crate::status::{Fault, MOEFLUX_ERROR_OPTION, moeflux_status};
use crate::values::{Refusal, bytes, count, number, truth, word};

/// How a model is opened: names with values.
#[expect(non_camel_case_types, reason = "the name in C")]
#[derive(Debug)]
pub struct moeflux_options {
    _private: (),
}

impl Handle for moeflux_options {
    const NAME: &'static str = "moeflux_options";
    type Object = Mutex<Chosen>;
}

/// What was set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chosen {
    engine: Options,
    prompt_cache: Option<PathBuf>,
    prompt_cache_size: Option<u64>,
}

/// Bytes of the folder of evaluated prompts, where nothing says how many.
const PROMPT_CACHE_BYTES: u64 = 4 << 30;

/// Sessions where memory decides.
const MOST_SESSIONS: usize = 8;

const SETTINGS: &[Setting<Chosen>] = &[
    Setting {
        name: "device",
        set: |chosen, value| {
            let device = Device::by_name(value).map_err(|_| {
                String::from("write auto, cpu, gpu or gpu:N, where this library was built for GPUs")
            })?;
            chosen.engine.compute.device = device;
            Ok(())
        },
    },
    Setting {
        name: "threads",
        set: |chosen, value| put(&mut chosen.engine.compute.threads, count(value)),
    },
    Setting {
        name: "isa",
        set: |chosen, value| put(&mut chosen.engine.compute.isa, Ok(value.to_owned())),
    },
    Setting {
        name: "activations",
        set: |chosen, value| {
            let words = [
                ("int16", Activations::Int16),
                ("int8", Activations::Int8),
                ("full", Activations::Full),
            ];
            chosen.engine.compute.activations = word(value, &words)?;
            Ok(())
        },
    },
    Setting {
        name: "gpu_tuning",
        set: |chosen, value| put(&mut chosen.engine.compute.gpu_tuning, folder(value)),
    },
    Setting { name: "ctx", set: |chosen, value| put(&mut chosen.engine.memory.ctx, count(value)) },
    Setting { name: "sessions", set: sessions },
    Setting {
        name: "chunk",
        set: |chosen, value| put(&mut chosen.engine.memory.chunk, count(value)),
    },
    Setting {
        name: "checkpoint_bytes",
        set: |chosen, value| put(&mut chosen.engine.memory.checkpoint_bytes, bytes(value)),
    },
    Setting {
        name: "row_cache",
        set: |chosen, value| put(&mut chosen.engine.memory.row_cache, bytes(value)),
    },
    Setting {
        name: "prompt_memory",
        set: |chosen, value| {
            let words = [("off", PromptMemory::Off), ("auto", PromptMemory::Planned)];
            let named = word(value, &words);
            chosen.engine.memory.prompts = named
                .or_else(|_| bytes(value).map(PromptMemory::Bytes))
                .map_err(|remedy| format!("write off or auto, or {remedy}"))?;
            Ok(())
        },
    },
    Setting {
        name: "kv_type",
        set: |chosen, value| {
            let words = [("f32", KvType::F32), ("bf16", KvType::Bf16), ("q8", KvType::Q8)];
            chosen.engine.memory.kv_type = word(value, &words)?;
            Ok(())
        },
    },
    Setting {
        name: "expert_io",
        set: |chosen, value| {
            chosen.engine.experts.io =
                value.parse().map_err(|_| String::from("write auto, mmap, pread or direct"))?;
            Ok(())
        },
    },
    Setting {
        name: "expert_cache",
        set: |chosen, value| put(&mut chosen.engine.experts.cache, bytes(value)),
    },
    Setting {
        name: "expert_cache_min",
        set: |chosen, value| put(&mut chosen.engine.experts.cache_min, bytes(value)),
    },
    Setting {
        name: "device_cache",
        set: |chosen, value| put(&mut chosen.engine.experts.device_cache, bytes(value)),
    },
    Setting {
        name: "cache_policy",
        set: |chosen, value| {
            let words = [("frequency", CachePolicy::Frequency), ("lru", CachePolicy::Lru)];
            chosen.engine.experts.policy = word(value, &words)?;
            Ok(())
        },
    },
    Setting {
        name: "prefetch",
        set: |chosen, value| {
            let words = [
                ("auto", Prefetch::Auto),
                ("off", Prefetch::Off),
                ("last-token", Prefetch::LastToken),
                ("lookahead", Prefetch::Lookahead),
            ];
            chosen.engine.experts.prefetch = word(value, &words)?;
            Ok(())
        },
    },
    Setting {
        name: "experts_per_token",
        set: |chosen, value| put(&mut chosen.engine.experts.per_token, count(value)),
    },
    Setting {
        name: "allow_missing_experts",
        set: |chosen, value| {
            chosen.engine.experts.allow_missing = truth(value)?;
            Ok(())
        },
    },
    Setting {
        name: "expert_stats",
        set: |chosen, value| put(&mut chosen.engine.experts.stats, folder(value)),
    },
    Setting {
        name: "record_routing",
        set: |chosen, value| put(&mut chosen.engine.experts.record_routing, folder(value)),
    },
    Setting {
        name: "speculation",
        set: |chosen, value| {
            let words = [("auto", Speculation::Auto), ("off", Speculation::Off)];
            let remedy = format!("write auto, off or a number from 1 to {MAX_DRAFT}");
            chosen.engine.speculation = word(value, &words).or_else(|_| {
                number(value, |n| (1..=MAX_DRAFT).contains(n), &remedy).map(Speculation::Fixed)
            })?;
            Ok(())
        },
    },
    Setting {
        name: "prompt_cache",
        set: |chosen, value| put(&mut chosen.prompt_cache, folder(value)),
    },
    Setting {
        name: "prompt_cache_size",
        set: |chosen, value| put(&mut chosen.prompt_cache_size, bytes(value)),
    },
];

fn put<T>(place: &mut Option<T>, value: Result<T, Refusal>) -> Result<(), Refusal> {
    *place = Some(value?);
    Ok(())
}

fn folder(value: &str) -> Result<PathBuf, Refusal> {
    if value.is_empty() { Err(String::from("name a place")) } else { Ok(PathBuf::from(value)) }
}

fn sessions(chosen: &mut Chosen, value: &str) -> Result<(), Refusal> {
    let memory = &mut chosen.engine.memory;
    let remedy = format!("write auto or a whole number from 1 to {MAX_SESSIONS}");
    (memory.sessions, memory.most_sessions) = match value {
        "auto" => (None, Some(MOST_SESSIONS)),
        _ => (Some(number(value, |n| (1..=MAX_SESSIONS).contains(n), &remedy)?), None),
    };
    Ok(())
}

/// The options of the engine that a handle stands for; the defaults for a null handle.
pub(crate) fn engine_options(options: *mut moeflux_options) -> Result<Options, Fault> {
    if options.is_null() {
        return Ok(Options::default());
    }
    let object = look_up(options)?;
    let Chosen { engine, prompt_cache, prompt_cache_size } = exclusive(options, &object)?.clone();
    let max_bytes = prompt_cache_size.unwrap_or(PROMPT_CACHE_BYTES);
    let cache = |dir| PromptCacheOptions { dir, max_bytes, min_tokens: MIN_PROMPT_TOKENS };
    Ok(engine.prompt_cache(prompt_cache.map(cache)))
}

/// Makes options; all have their defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_options_new(
    options: *mut *mut moeflux_options,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a pointer, or null.
        let mut out = unsafe { Out::new("options", options, ptr::null_mut()) }?;
        out.set(issue(Mutex::default())?);
        Ok(())
    })
}

/// Sets an option: both its name and its value are text, such as `"ctx"` and `"8192"`. The guide for C
/// lists names and values; a name that does not exist is refused with the list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_options_set(
    options: *mut moeflux_options,
    name: *const std::ffi::c_char,
    value: *const std::ffi::c_char,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        let object = look_up(options)?;
        // SAFETY: the caller gives a text that ends with a NUL, or null.
        let name = unsafe { text("name", name) }?;
        // SAFETY: as the name.
        let value = unsafe { text(name, value) }?;
        let mut chosen = exclusive(options, &object)?;
        set(SETTINGS, &mut chosen, name, value, MOEFLUX_ERROR_OPTION)
    })
}

/// Frees options. Models that were opened with them are not affected.
#[unsafe(no_mangle)]
pub extern "C" fn moeflux_options_free(options: *mut moeflux_options) -> moeflux_status {
    call(ptr::null_mut(), || retire(options))
}
