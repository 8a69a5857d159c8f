//! `moeflux pull`: a model from the Hub into its cache.

use std::path::Path;

use anyhow::Result;
use moeflux_hub::{DEFAULT_ENDPOINT, HubEnv, Repo};

use super::print;
use crate::args::PullArgs;
use crate::error::UsageError;
use crate::locate::{self, Pulled};
use crate::published;

pub(crate) fn run(args: &PullArgs) -> Result<()> {
    // A mistake in the last name is said before the first one is downloaded for hours.
    let env = locate::hub_env()?;
    args.names.iter().try_for_each(|name| check(name, &env))?;
    for name in &args.names {
        let Pulled { name, path, was_here } = locate::pull(name, args.quiet)?;
        if !args.quiet {
            let verb = if was_here { "was here already" } else { "is here" };
            print(&format!(
                "{name} {verb}: {}\n  moeflux chat {name}    a conversation in the terminal\n  \
                 moeflux serve {name}   its APIs and a web page\n",
                path.display()
            ))?;
        }
    }
    Ok(())
}

/// Refuses what names no model on the Hub.
fn check(name: &str, env: &HubEnv) -> Result<()> {
    if !Path::new(name).exists() {
        return locate::hub_name(name, "NAME", env).map(drop);
    }
    let on_hub = published::by_name(name).map_or(name, |found| &found.model);
    let remedy = match Repo::parse(on_hub, DEFAULT_ENDPOINT) {
        Ok(_) => format!(": for the Hub's model write hf://{on_hub}"),
        Err(_) => String::from(", such as org/name"),
    };
    let message = format!("'{name}' is a path here, and pull takes a name on the Hub{remedy}");
    Err(UsageError(message).into())
}
