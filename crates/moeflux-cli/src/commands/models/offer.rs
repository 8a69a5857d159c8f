//! What `moeflux models` lists.

use std::path::PathBuf;

use moeflux_engine::Rate;

use super::here::Here;
use crate::published::Published;

/// A published model on this machine.
pub(super) struct Offer {
    pub(super) model: &'static Published,
    pub(super) download_bytes: u64,
    /// What runs it, slowly.
    pub(super) least_bytes: u64,
    pub(super) fits: bool,
    pub(super) rate: Option<Rate>,
    /// Whether it is in the Hub's cache.
    pub(super) is_here: bool,
    pub(super) is_best: bool,
}

/// All that is listed.
pub(super) struct Report {
    pub(super) offers: Vec<Offer>,
    /// What was busy, so that rates were not measured as they should be.
    pub(super) busy: Option<String>,
    /// Bytes of memory that are free.
    pub(super) free_bytes: u64,
    pub(super) cache: (PathBuf, Vec<Here>),
    pub(super) folders: Vec<(PathBuf, Vec<Here>)>,
}
