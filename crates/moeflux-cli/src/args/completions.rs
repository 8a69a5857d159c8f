//! `completions`.

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux completions bash > ~/.local/share/bash-completion/completions/moeflux
  moeflux completions zsh > ~/.zfunc/_moeflux    with ~/.zfunc in fpath
  moeflux completions fish > ~/.config/fish/completions/moeflux.fish
  moeflux completions powershell >> $PROFILE")]
pub(crate) struct CompletionsArgs {
    /// bash, elvish, fish, powershell or zsh
    #[arg(value_enum, value_name = "SHELL", hide_possible_values = true)]
    pub(crate) shell: Shell,
}

/// Shells with completion of arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Elvish,
    Fish,
    #[value(name = "powershell", alias = "pwsh")]
    Power,
    Zsh,
}
