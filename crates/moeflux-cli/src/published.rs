//! Published models that this program runs, as a table: where they are, and how large their parts are.
//!
//! The sizes are those of checkpoints of the same shape and format, so they are near those of the published
//! files and not equal to them. A test makes them (`tests/it/published.rs`).

use std::sync::LazyLock;

use moeflux_engine::ModelSizes;
use serde::Deserialize;

use crate::words::did_you_mean;

/// A published model.
#[derive(Debug, Deserialize)]
pub(crate) struct Published {
    /// The short name.
    pub(crate) name: String,
    /// The name on the Hub, with a tag where one of several GGUF files is meant.
    pub(crate) model: String,
    /// How its weights are stored.
    pub(crate) format: String,
    /// Parameters, in thousand millions: all, and those that a token uses.
    pub(crate) billions: f64,
    pub(crate) active_billions: f64,
    pub(crate) sizes: ModelSizes,
}

static ALL: LazyLock<Vec<Published>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("published.json")).expect("the table of this crate is right")
});

/// All of them, the smallest first.
pub(crate) fn all() -> &'static [Published] {
    &ALL
}

/// The model of a short name.
pub(crate) fn by_name(name: &str) -> Option<&'static Published> {
    ALL.iter().find(|model| model.name.eq_ignore_ascii_case(name))
}

/// The short name that is nearest to what was written, if one is near enough.
pub(crate) fn near(written: &str) -> Option<&'static str> {
    did_you_mean(written, ALL.iter().map(|model| &model.name[..]))
}
