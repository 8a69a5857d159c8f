//! What a call comes to: a status, and for failures a text and an option.

use moeflux::{Error, ErrorKind, OptionId};
use moeflux_engine::EngineError;

/// What a call came to. Failures are negative.
#[expect(non_camel_case_types, reason = "the name in C")]
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum moeflux_status {
    /// Done.
    MOEFLUX_OK = 0,
    /// There is nothing more: the answer has ended.
    MOEFLUX_END = 1,
    /// An argument cannot be used: a null pointer, a length that no memory has, text that is not UTF-8.
    MOEFLUX_ERROR_ARGUMENT = -1,
    /// A handle is null, was freed, is one of another type, or was never given out.
    MOEFLUX_ERROR_HANDLE = -2,
    /// Another call uses the object now: one of another thread, or the one whose callback this is.
    MOEFLUX_ERROR_IN_USE = -3,
    /// The call needs another one before it, such as logits an evaluation.
    MOEFLUX_ERROR_ORDER = -4,
    /// A callback asked to stop.
    MOEFLUX_ERROR_CANCELLED = -5,
    /// The process is a fork of the one that uses the library.
    MOEFLUX_ERROR_FORKED = -6,
    /// Files of the model are missing, damaged, or of no kind that is read.
    MOEFLUX_ERROR_MODEL = -10,
    /// An option is unknown, or makes no sense for the model or the machine.
    MOEFLUX_ERROR_OPTION = -11,
    /// Memory does not suffice.
    MOEFLUX_ERROR_MEMORY = -12,
    /// A part of a request cannot be used.
    MOEFLUX_ERROR_REQUEST = -13,
    /// The model can do no such thing: it has no chat template, or one that renders no tools.
    MOEFLUX_ERROR_UNSUPPORTED = -14,
    /// Too many answers wait already.
    MOEFLUX_ERROR_BUSY = -15,
    /// The model's thread ended before the answer did.
    MOEFLUX_ERROR_STOPPED = -16,
    /// The machine failed: a device, a drive, a thread that the system does not start.
    MOEFLUX_ERROR_MACHINE = -17,
    /// A fault of the library. What the call used is not to be used again, only freed.
    MOEFLUX_ERROR_INTERNAL = -99,
}

pub(crate) use moeflux_status::*;

impl moeflux_status {
    const ALL: &[(moeflux_status, &std::ffi::CStr)] = &[
        (MOEFLUX_OK, c"MOEFLUX_OK"),
        (MOEFLUX_END, c"MOEFLUX_END"),
        (MOEFLUX_ERROR_ARGUMENT, c"MOEFLUX_ERROR_ARGUMENT"),
        (MOEFLUX_ERROR_HANDLE, c"MOEFLUX_ERROR_HANDLE"),
        (MOEFLUX_ERROR_IN_USE, c"MOEFLUX_ERROR_IN_USE"),
        (MOEFLUX_ERROR_ORDER, c"MOEFLUX_ERROR_ORDER"),
        (MOEFLUX_ERROR_CANCELLED, c"MOEFLUX_ERROR_CANCELLED"),
        (MOEFLUX_ERROR_FORKED, c"MOEFLUX_ERROR_FORKED"),
        (MOEFLUX_ERROR_MODEL, c"MOEFLUX_ERROR_MODEL"),
        (MOEFLUX_ERROR_OPTION, c"MOEFLUX_ERROR_OPTION"),
        (MOEFLUX_ERROR_MEMORY, c"MOEFLUX_ERROR_MEMORY"),
        (MOEFLUX_ERROR_REQUEST, c"MOEFLUX_ERROR_REQUEST"),
        (MOEFLUX_ERROR_UNSUPPORTED, c"MOEFLUX_ERROR_UNSUPPORTED"),
        (MOEFLUX_ERROR_BUSY, c"MOEFLUX_ERROR_BUSY"),
        (MOEFLUX_ERROR_STOPPED, c"MOEFLUX_ERROR_STOPPED"),
        (MOEFLUX_ERROR_MACHINE, c"MOEFLUX_ERROR_MACHINE"),
        (MOEFLUX_ERROR_INTERNAL, c"MOEFLUX_ERROR_INTERNAL"),
    ];

    /// The name of a status, or that it is none.
    pub(crate) fn name_of(number: i32) -> &'static std::ffi::CStr {
        let found = moeflux_status::ALL.iter().find(|(status, _)| *status as i32 == number);
        found.map_or(c"no status of moeflux", |(_, name)| name)
    }
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) status: moeflux_status,
    /// The name under which a setter takes the option at fault.
    pub(crate) option: Option<String>,
    /// One line that names the value and a remedy.
    pub(crate) text: String,
}

impl Fault {
    pub(crate) fn new(status: moeflux_status, text: impl Into<String>) -> Fault {
        Fault { status, option: None, text: text.into() }
    }

    pub(crate) fn argument(text: impl Into<String>) -> Fault {
        Fault::new(MOEFLUX_ERROR_ARGUMENT, text)
    }

    /// A value that an option does not take.
    pub(crate) fn option(status: moeflux_status, name: &str, text: impl Into<String>) -> Fault {
        Fault { status, option: Some(name.to_owned()), text: text.into() }
    }
}

impl From<Error> for Fault {
    fn from(err: Error) -> Fault {
        fault_of(err.kind(), err.option(), err.to_string())
    }
}

impl From<EngineError> for Fault {
    fn from(err: EngineError) -> Fault {
        Error::from(err).into()
    }
}

fn fault_of(kind: ErrorKind, option: Option<OptionId>, text: String) -> Fault {
    let status = match kind {
        ErrorKind::Model => MOEFLUX_ERROR_MODEL,
        ErrorKind::Option => MOEFLUX_ERROR_OPTION,
        ErrorKind::Memory => MOEFLUX_ERROR_MEMORY,
        ErrorKind::Request => MOEFLUX_ERROR_REQUEST,
        ErrorKind::Unsupported => MOEFLUX_ERROR_UNSUPPORTED,
        ErrorKind::Busy => MOEFLUX_ERROR_BUSY,
        ErrorKind::Stopped => MOEFLUX_ERROR_STOPPED,
        _ => MOEFLUX_ERROR_MACHINE,
    };
    let option = option.map(OptionId::name);
    let text = match option {
        // What is said of a schema does not say what the schema is of.
        Some(name) if kind == ErrorKind::Request && !text.contains(name) => {
            format!("{name}: {text}")
        }
        _ => text,
    };
    Fault { status, option: option.map(str::to_owned), text }
}
