//! `moeflux doctor`: what this machine has, how good that is for models larger than memory, and what to
//! do where it is not.

mod drive;
mod finding;
mod gpu;
mod places;
mod system;

use anyhow::Result;
use moeflux_hub::HubEnv;
use serde_json::json;

use self::finding::{Finding, State};
use super::print;
use crate::args::DoctorArgs;
use crate::error::UsageError;
use crate::version::{COMMIT, TARGET, VERSION};

/// Prints what was found; whether models can run.
pub(crate) fn run(args: &DoctorArgs) -> Result<bool> {
    if let Some(folder) = args.drive.as_deref().filter(|folder| !folder.is_dir()) {
        let message = format!("--drive {}: name a folder that is there", folder.display());
        return Err(UsageError(message).into());
    }
    let hub = HubEnv::from_lookup(|name| std::env::var(name).ok());
    let mut all = system::findings();
    all.extend(drive::findings(args.drive.as_deref(), &hub.cache_dir));
    all.extend(gpu::findings());
    all.extend(places::findings(&hub));
    let is_usable = all.iter().all(|finding| finding.state != State::Fail);
    print(&if args.json { to_json(&all, is_usable)? } else { to_text(&all, is_usable) })?;
    Ok(is_usable)
}

fn to_text(all: &[Finding], is_usable: bool) -> String {
    let commit = COMMIT.map_or(String::new(), |commit| format!(", commit {commit:.12}"));
    let mut text = format!("moeflux {VERSION} ({TARGET}{commit})\n\n");
    for finding in all {
        text.push_str(&finding.to_text());
    }
    let n = all.iter().filter(|finding| finding.remedy.is_some()).count();
    text.push('\n');
    text.push_str(&match (is_usable, n) {
        (false, _) => String::from("models cannot run here until what failed is mended\n"),
        (true, 0) => String::from("nothing to do\n"),
        (true, 1) => String::from("models run here; one thing could be better\n"),
        (true, n) => format!("models run here; {n} things could be better\n"),
    });
    text
}

fn to_json(all: &[Finding], is_usable: bool) -> Result<String> {
    let findings: Vec<_> = all.iter().map(Finding::to_json).collect();
    let value = json!({
        "version": VERSION,
        "commit": COMMIT,
        "target": TARGET,
        "usable": is_usable,
        "findings": findings,
    });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}
