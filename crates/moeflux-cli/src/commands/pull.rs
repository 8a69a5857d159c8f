//! `moeflux pull`: a model from the Hub into its cache.

use std::path::Path;

use anyhow::Result;

use super::print;
use crate::args::PullArgs;
use crate::error::UsageError;
use crate::locate::{self, Pulled};

pub(crate) fn run(args: &PullArgs) -> Result<()> {
    for name in &args.names {
        if Path::new(name).exists() {
            let message = format!(
                "'{name}' is here: pull takes a name on the Hub (hf://{name} is one in any case)"
            );
            return Err(UsageError(message).into());
        }
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
