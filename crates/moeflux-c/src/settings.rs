//! Tables of names and what they set: an option that is added is a line of a table, and no function of
//! the interface.

use crate::status::{Fault, moeflux_status};
use crate::values::Refusal;

/// A name, and what its value is written to.
pub(crate) struct Setting<T> {
    pub(crate) name: &'static str,
    pub(crate) set: fn(&mut T, &str) -> Result<(), Refusal>,
}

/// Sets what `name` means in `target`, or says why not.
pub(crate) fn set<T>(
    settings: &[Setting<T>],
    target: &mut T,
    name: &str,
    value: &str,
    refused: moeflux_status,
) -> Result<(), Fault> {
    let Some(setting) = settings.iter().find(|setting| setting.name == name) else {
        let known: Vec<&str> = settings.iter().map(|setting| setting.name).collect();
        let text = format!("there is no {name:?}; names are {}", known.join(", "));
        return Err(Fault::option(refused, name, text));
    };
    (setting.set)(target, value).map_err(|remedy| {
        Fault::option(refused, name, format!("{name} {}: {remedy}", shown(value)))
    })
}

/// A value in a message: the beginning of a long one.
fn shown(value: &str) -> String {
    const MAX_CHARS: usize = 60;
    match value.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{:?}…", &value[..end]),
        None => format!("{value:?}"),
    }
}
