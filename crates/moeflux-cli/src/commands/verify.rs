//! `moeflux verify`: whether a model's files are intact.

use std::path::PathBuf;

use anyhow::{Result, bail};
use moeflux_convert::verify::{Damage, Verification, verify};
use moeflux_hub::{Download, Remote};
use serde_json::json;

use super::print;
use crate::args::VerifyArgs;
use crate::bytes::show;
use crate::locate::{Hurry, Place, place};
use crate::progress::{Bar, Unit};

pub(crate) fn run(args: &VerifyArgs) -> Result<()> {
    let (path, missing) = match place(Some(&args.model), "MODEL", args.json, Hurry::Any)? {
        Place::Here(path) => (path, None),
        Place::Hub(remote) => {
            let (path, missing) = partly_here(&remote)?;
            (path, Some(missing))
        }
    };
    let mut bar = Bar::new("verifying", Unit::Bytes, args.json);
    let found = verify(&path, &mut |progress| {
        let name = progress.file.file_name().unwrap_or_default().to_string_lossy();
        bar.set_label(&format!("verifying {name}"));
        bar.set(progress.done, progress.total);
    })?;
    drop(bar);
    print(&if args.json { to_json(&found)? } else { to_text(&found) })?;
    match (found.damage.first(), missing) {
        (None, Some(missing)) => bail!("{missing}"),
        (Some(damage), Some(missing)) => bail!("{}; {missing}", line(damage)),
        (_, None) => fail_for(&found.damage),
    }
}

fn fail_for(damage: &[Damage]) -> Result<()> {
    match damage {
        [] => Ok(()),
        [one] => bail!("{}", line(one)),
        [first, others @ ..] => bail!("{}; and {} more", line(first), others.len()),
    }
}

/// Where the files are that are here of a model on the Hub, and what is missing.
fn partly_here(remote: &Remote) -> Result<(PathBuf, String)> {
    let download = remote.describe();
    let (name, Download { bytes, missing_bytes, .. }) = (download.name(), download);
    let (bytes, missing) = (show(bytes), show(missing_bytes));
    match remote.local_files() {
        Some(dir) if missing_bytes > 0 => {
            Ok((dir, format!("{name} is not complete: {missing} of {bytes} are missing")))
        }
        Some(dir) => Ok((dir, format!("{name} is not complete"))),
        None => bail!(
            "{name} is not downloaded: there is nothing to verify ({bytes}; `moeflux run --model \
             {name}` downloads it)"
        ),
    }
}

fn line(damage: &Damage) -> String {
    let part = damage.part.as_ref().map_or(String::new(), |part| format!("{part}: "));
    format!("{}: {part}{}", damage.file.display(), damage.what)
}

fn to_text(found: &Verification) -> String {
    let mut text = format!("{}\n", found.root.display());
    for checked in &found.checked {
        text.push_str(&format!("  checked {checked}\n"));
    }
    for damage in &found.damage {
        text.push_str(&format!("  damaged: {}\n", line(damage)));
    }
    let verdict = if found.damage.is_empty() { "no damage found" } else { "damaged" };
    let (n_files, n_bytes) = (found.n_files, show(found.n_bytes));
    text.push_str(&format!("{verdict} ({n_files} files, {n_bytes} read)\n"));
    text
}

fn to_json(found: &Verification) -> Result<String> {
    let mut value = serde_json::to_value(found)?;
    value["is_intact"] = json!(found.damage.is_empty());
    Ok(format!("{}\n", serde_json::to_string_pretty(&value)?))
}
