//! How an answer is made.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::Mutex;

use moeflux::{Format, Request, Sampling, ToolChoice};
use moeflux_engine::TokenId;
use moeflux_text::GenerationDefaults;
use serde_json::{Map, Value};

use crate::failure::{call, moeflux_error};
use crate::handles::{Handle, exclusive, issue, look_up, retire};
use crate::pointers::{Out, text};
use crate::settings::{Setting, set};
use crate::status::{Fault, MOEFLUX_ERROR_REQUEST, moeflux_status};
use crate::values::{Refusal, count, json, real, truth, whole_number};

/// How an answer is made: names with values.
#[expect(non_camel_case_types, reason = "the name in C")]
#[derive(Debug)]
pub struct moeflux_request {
    _private: (),
}

impl Handle for moeflux_request {
    const NAME: &'static str = "moeflux_request";
    type Object = Mutex<Wanted>;
}

/// What was set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    request: Request,
    sampling: PartialSampling,
}

/// Values of [`Sampling`]; where absent, the model's.
#[derive(Clone, Debug, Default)]
struct PartialSampling {
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repeat_penalty: Option<f32>,
    repeat_window: Option<usize>,
    seed: Option<u64>,
}

impl Wanted {
    /// The request to a model whose makers recommend `defaults`.
    pub(crate) fn request(self, defaults: &GenerationDefaults) -> Request {
        let sampling = self.sampling(defaults);
        self.request.sampling(sampling)
    }

    /// How tokens are chosen by such a model.
    pub(crate) fn sampling(&self, defaults: &GenerationDefaults) -> Sampling {
        let plain = Sampling::recommended(defaults);
        let own = &self.sampling;
        Sampling {
            temperature: own.temperature.unwrap_or(plain.temperature),
            top_k: own.top_k.unwrap_or(plain.top_k),
            top_p: own.top_p.unwrap_or(plain.top_p),
            min_p: own.min_p.unwrap_or(plain.min_p),
            repeat_penalty: own.repeat_penalty.unwrap_or(plain.repeat_penalty),
            repeat_window: own.repeat_window.or(plain.repeat_window),
            seed: own.seed.unwrap_or(plain.seed),
        }
    }
}

const SETTINGS: &[Setting<Wanted>] = &[
    Setting {
        name: "max_tokens",
        set: |wanted, value| put(&mut wanted.request.max_tokens, count(value)),
    },
    Setting {
        name: "stop",
        set: |wanted, value| {
            wanted.request.stop = json(value, "a JSON array of texts")?;
            Ok(())
        },
    },
    Setting {
        name: "temperature",
        set: |wanted, value| put(&mut wanted.sampling.temperature, real(value)),
    },
    Setting {
        name: "top_k",
        set: |wanted, value| put(&mut wanted.sampling.top_k, whole_number(value)),
    },
    Setting { name: "top_p", set: |wanted, value| put(&mut wanted.sampling.top_p, real(value)) },
    Setting { name: "min_p", set: |wanted, value| put(&mut wanted.sampling.min_p, real(value)) },
    Setting {
        name: "repeat_penalty",
        set: |wanted, value| put(&mut wanted.sampling.repeat_penalty, real(value)),
    },
    Setting {
        name: "repeat_window",
        set: |wanted, value| put(&mut wanted.sampling.repeat_window, whole_number(value)),
    },
    Setting {
        name: "seed",
        set: |wanted, value| put(&mut wanted.sampling.seed, whole_number(value)),
    },
    Setting {
        name: "thinking",
        set: |wanted, value| put(&mut wanted.request.thinking, truth(value)),
    },
    Setting {
        name: "thinking_budget",
        set: |wanted, value| put(&mut wanted.request.thinking_budget, whole_number(value)),
    },
    Setting {
        name: "format",
        set: |wanted, value| {
            wanted.request.format = match value {
                "text" => Format::Text,
                schema => Format::Json(json(schema, "text or a JSON schema")?),
            };
            Ok(())
        },
    },
    Setting {
        name: "tools",
        set: |wanted, value| {
            wanted.request.tools = json(value, "a JSON array of tools")?;
            Ok(())
        },
    },
    Setting {
        name: "strict",
        set: |wanted, value| {
            wanted.request.strict = json(value, "a JSON array of names of tools")?;
            Ok(())
        },
    },
    Setting {
        name: "tool_choice",
        set: |wanted, value| put(&mut wanted.request.tool_choice, tool_choice(value)),
    },
    Setting {
        name: "one_call",
        set: |wanted, value| {
            wanted.request.one_call = truth(value)?;
            Ok(())
        },
    },
    Setting {
        name: "continues",
        set: |wanted, value| {
            wanted.request.continues = truth(value)?;
            Ok(())
        },
    },
    Setting {
        name: "expected",
        set: |wanted, value| put(&mut wanted.request.expected, Ok(value.to_owned())),
    },
    Setting {
        name: "logit_bias",
        set: |wanted, value| {
            let form = "a JSON object with numbers by token ids";
            let tokens: BTreeMap<u32, f32> = json(value, form)?;
            if !tokens.values().all(|bias| bias.is_finite()) {
                return Err(format!("write {form}"));
            }
            wanted.request.bias.tokens =
                tokens.into_iter().map(|(id, bias)| (TokenId(id), bias)).collect();
            Ok(())
        },
    },
    Setting {
        name: "frequency_penalty",
        set: |wanted, value| {
            wanted.request.bias.frequency_penalty = real(value)?;
            Ok(())
        },
    },
    Setting {
        name: "presence_penalty",
        set: |wanted, value| {
            wanted.request.bias.presence_penalty = real(value)?;
            Ok(())
        },
    },
    Setting {
        name: "top_logprobs",
        set: |wanted, value| put(&mut wanted.request.top_logprobs, whole_number(value)),
    },
];

fn put<T>(place: &mut Option<T>, value: Result<T, Refusal>) -> Result<(), Refusal> {
    *place = Some(value?);
    Ok(())
}

/// As the OpenAI API has it: a word, or an object that names a function; the bare name does, too.
fn tool_choice(value: &str) -> Result<ToolChoice, Refusal> {
    let remedy = "auto, none, required, the name of a tool, or an object as the OpenAI API has it";
    Ok(match value {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::Never,
        "required" => ToolChoice::Required,
        object if object.starts_with('{') => {
            let object: Map<String, Value> = json(object, remedy)?;
            let name = object.get("function").and_then(|function| function["name"].as_str());
            ToolChoice::Named(name.ok_or_else(|| format!("write {remedy}"))?.to_owned())
        }
        "" => return Err(format!("write {remedy}")),
        name => ToolChoice::Named(name.to_owned()),
    })
}

/// What was set in the request that a handle stands for; nothing for a null handle.
pub(crate) fn wanted(request: *mut moeflux_request) -> Result<Wanted, Fault> {
    if request.is_null() {
        return Ok(Wanted::default());
    }
    let object = look_up(request)?;
    Ok(exclusive(request, &object)?.clone())
}

/// Makes a request; all of it is as the makers of the model recommend.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_request_new(
    request: *mut *mut moeflux_request,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        // SAFETY: the caller names a place for a pointer, or null.
        let mut out = unsafe { Out::new("request", request, ptr::null_mut()) }?;
        out.set(issue(Mutex::default())?);
        Ok(())
    })
}

/// Sets a part of a request: both its name and its value are text, such as `"max_tokens"` and `"200"`;
/// values that are lists or objects are JSON. The guide for C lists names and values; a name that does
/// not exist is refused with the list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn moeflux_request_set(
    request: *mut moeflux_request,
    name: *const std::ffi::c_char,
    value: *const std::ffi::c_char,
    error: *mut moeflux_error,
) -> moeflux_status {
    call(error, || {
        let object = look_up(request)?;
        // SAFETY: the caller gives a text that ends with a NUL, or null.
        let name = unsafe { text("name", name) }?;
        // SAFETY: as the name.
        let value = unsafe { text(name, value) }?;
        let mut wanted = exclusive(request, &object)?;
        set(SETTINGS, &mut wanted, name, value, MOEFLUX_ERROR_REQUEST)
    })
}

/// Frees a request. Answers that were begun with it are not affected.
#[unsafe(no_mangle)]
pub extern "C" fn moeflux_request_free(request: *mut moeflux_request) -> moeflux_status {
    call(ptr::null_mut(), || retire(request))
}
