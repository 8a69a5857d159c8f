//! `prompt`.

use std::path::PathBuf;

use clap::Args;

use super::pictures::PictureArgs;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moeflux prompt -m ./model --request request.json
  moeflux prompt -m org/name --request - --json < request.json")]
pub(crate) struct PromptArgs {
    /// Body of an OpenAI chat request, in JSON; - reads standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) request: PathBuf,
    /// Print JSON: also tokens, syntax and grammar
    #[arg(long)]
    pub(crate) json: bool,
    /// Folder, GGUF file, org/name, org/name:Q4_K_M [demo model]
    #[arg(long, short, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) pictures: PictureArgs,
}
