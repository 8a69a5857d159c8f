//! `moeflux completions`: a script for a shell, made from the command line.

use anyhow::Result;
use clap_complete::Shell as Generator;

use super::print;
use crate::args::{CompletionsArgs, Shell};
use crate::help;

pub(crate) fn run(args: &CompletionsArgs) -> Result<()> {
    let generator = match args.shell {
        Shell::Bash => Generator::Bash,
        Shell::Elvish => Generator::Elvish,
        Shell::Fish => Generator::Fish,
        Shell::Power => Generator::PowerShell,
        Shell::Zsh => Generator::Zsh,
    };
    // Collected first: the generator panics where its output fails, as it does when `head` ends.
    let mut script = Vec::new();
    clap_complete::generate(generator, &mut help::command(), "moeflux", &mut script);
    print(&String::from_utf8(script)?)?;
    Ok(())
}
