//! The file of what was measured on a device.
//!
//! It only ever changes how long products take, so one that is damaged costs
//! another measurement and a warning. One of another driver or other kernels
//! is of no use any more and replaced without a word.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use moeflux_core::atomic_file::{self, Access, Durability};
use moeflux_core::{fnv1a_64, private};
use serde::{Deserialize, Serialize};

use crate::device::adapter::AdapterFacts;
use crate::kernels::source::fingerprint;
use crate::layouts::table::{Choice, Key};

const VERSION: u32 = 1;

/// More than the products of many models take.
const MAX_BYTES: u64 = 4 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    version: u32,
    adapter: String,
    driver: String,
    /// The kernels that were measured.
    kernels: String,
    products: Vec<Product>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Product {
    product: Key,
    #[serde(flatten)]
    choice: Choice,
}

/// Identifies a device, whatever its driver.
fn identity(facts: &AdapterFacts) -> String {
    let (vendor, device) = facts.id;
    format!("{}, {vendor:04x}:{device:04x}, {}", facts.name, facts.api)
}

/// Identifies a device, its driver and the kernels of this build: what was measured of them holds as
/// long as this stays the same.
pub fn measurement_key(facts: &AdapterFacts) -> String {
    format!("{}, {}, kernels {}", identity(facts), facts.driver, fingerprint())
}

pub(super) fn path(dir: &Path, facts: &AdapterFacts) -> PathBuf {
    dir.join(format!("tuning-{:016x}.json", fnv1a_64(identity(facts).as_bytes())))
}

/// What is known of a device; nothing where there is no file, or one of another
/// driver or other kernels.
///
/// # Errors
/// What the user should know of a damaged file.
pub(super) fn read(dir: &Path, facts: &AdapterFacts) -> Result<Vec<(Key, Choice)>, String> {
    let path = path(dir, facts);
    if !path.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Ok(Vec::new());
    }
    let warning = |reason: &dyn std::fmt::Display| {
        format!("{}: {reason}; it is ignored, and what it held is measured again", path.display())
    };
    let mut bytes = Vec::new();
    fs::File::open(&path)
        .and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes))
        .map_err(|err| warning(&err))?;
    let kept: Kept = serde_json::from_slice(&bytes)
        .map_err(|err| warning(&format!("it holds no layouts of kernels ({err})")))?;
    if kept.version != VERSION || kept.adapter != identity(facts) {
        return Err(warning(&"it is of another version or of another GPU"));
    }
    if kept.driver != facts.driver || kept.kernels != fingerprint() {
        return Ok(Vec::new());
    }
    if !kept.products.iter().all(|kept| kept.choice.layout.is_known()) {
        return Err(warning(&"it holds layouts that no kernel has"));
    }
    Ok(kept.products.into_iter().map(|kept| (kept.product, kept.choice)).collect())
}

/// Writes the file, whole or not at all.
///
/// # Errors
/// What the user should know where that fails.
pub(super) fn write(
    dir: &Path,
    facts: &AdapterFacts,
    products: &BTreeMap<Key, Choice>,
) -> Result<(), String> {
    let path = path(dir, facts);
    let products =
        products.iter().map(|(product, choice)| Product { product: *product, choice: *choice });
    let kept = Kept {
        version: VERSION,
        adapter: identity(facts),
        driver: facts.driver.clone(),
        kernels: fingerprint(),
        products: products.collect(),
    };
    let text = serde_json::to_vec_pretty(&kept).expect("numbers and names");
    atomic_file::remove_abandoned_in(dir, |_| true);
    // The products that were measured tell which models ran.
    let written = private::create_own_dir(dir)
        .and_then(|()| atomic_file::write(&path, &text, Access::Private, Durability::Cached));
    written.map_err(|err| {
        format!("{}: {err}; what was measured of this GPU is not kept", path.display())
    })
}
