//! What can go wrong between text and token ids.

use std::path::PathBuf;

use moeflux_core::checkpoint::FormatError;
use moeflux_core::{OptionId, json_problem};

/// Why a tokenizer could not be opened, or text not be encoded or rendered.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file of the model directory could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not the JSON that it should be.
    #[error("{} is not valid JSON: {}", path.display(), json_problem(source))]
    Json {
        /// The file.
        path: PathBuf,
        /// Where the parser stopped.
        source: serde_json::Error,
    },
    /// A model without a tokenizer.
    #[error(
        "{} has no tokenizer{}: put the model's tokenizer.json there, or its tiktoken.model, its \
         vocab.json with merges.txt, or sentencepiece's tokenizer.model",
        dir.display(),
        if there.is_empty() { String::new() } else { format!(" ({there})") }
    )]
    NoTokenizer {
        /// The model's directory.
        dir: PathBuf,
        /// What is there that is of no use, in words; may be empty.
        there: String,
    },
    /// A file of a vocabulary is damaged, or does not say all that is needed.
    #[error("{}: {what}", path.display())]
    Vocabulary {
        /// The file.
        path: PathBuf,
        /// What is wrong, and the remedy where that is not plain.
        what: String,
    },
    /// A checkpoint, or a key of its metadata, that cannot be used.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// `tokenizer.json` describes something that the tokenizer library refuses.
    #[error("{} is not a usable tokenizer: {source}; download it again", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The library's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A field has a value that means nothing here.
    #[error("{}: {field} is {value}, it must be {want}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// Name of the field.
        field: String,
        /// What the file says, shortened.
        value: String,
        /// What would be accepted.
        want: &'static str,
    },
    /// The text could not be encoded.
    #[error("cannot encode this text of {n_bytes} bytes: {source}")]
    Encode {
        /// Length of the text.
        n_bytes: usize,
        /// The library's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A text with more tokens than there may be.
    #[error(
        "prompt is too long: {}{n_tokens} tokens > {max_tokens} maximum ({})",
        if *is_exact { "" } else { "at least " },
        OptionId::Ctx
    )]
    TooLong {
        /// Tokens of the text, or a number below which they cannot come.
        n_tokens: usize,
        /// Whether it is the number of tokens.
        is_exact: bool,
        /// How many there may be.
        max_tokens: usize,
    },
    /// A long text that the tokenizer has to take at once.
    #[error(
        "{n_bytes} bytes of the text have no place at which the tokenizer can take them apart: at \
         most {max_bytes} are taken at once, put spaces or line ends in"
    )]
    Unbroken {
        /// Their number.
        n_bytes: usize,
        /// How many there may be.
        max_bytes: usize,
    },
    /// The chat template does not parse.
    #[error("the chat template does not parse: {0}")]
    TemplateSyntax(String),
    /// The chat template failed, or refused the conversation by `raise_exception`.
    #[error("the chat template refused the conversation: {0}")]
    Render(String),
    /// No process or thread can be started in which the chat template is rendered.
    #[error(
        "cannot start the process that renders chat templates ({0}): allow this process more \
         threads and processes"
    )]
    NoRenderer(String),
    /// Lists and objects within one another, deeper than templates are given them.
    #[error(
        "{what} is nested in more than {max_depth} levels of lists and objects: pass the inner \
         levels as text"
    )]
    TooNested {
        /// The message, or the part of the request.
        what: String,
        /// How many levels there may be.
        max_depth: usize,
    },
    /// A role that is not a plain word. Roles become markup, so they cannot be free text.
    #[error(
        "message {idx} has the role {role:?}: a role is 1 to 64 letters, digits, '_', '-' or '.'"
    )]
    Role {
        /// Position of the message, from zero.
        idx: usize,
        /// The role, shortened.
        role: String,
    },
    /// The template transforms text that looks like control tokens, so that their origin is lost.
    #[error(
        "the chat template rewrites {excerpt:?}, and what comes out cannot be told from its own \
         control tokens: remove the markup from that text"
    )]
    Ambiguous {
        /// The beginning of the text.
        excerpt: String,
    },
    /// The template writes nothing, or nothing that the tokenizer has tokens for.
    #[error("the chat template makes no prompt of the conversation: there is no token in it")]
    NoPrompt,
    /// Pictures are given to a model whose template or vocabulary knows none.
    #[error(
        "the chat template of this model writes no images, or its vocabulary has no token that stands for \
         one: leave images out"
    )]
    NoPictures,
    /// Messages have another number of parts that are pictures than there are pictures.
    #[error(
        "{n_pictures} images are given for {n_parts} parts of type image: give each part one, in their order"
    )]
    PictureCount {
        /// Parts that are pictures.
        n_parts: usize,
        /// Pictures.
        n_pictures: usize,
    },
    /// The template leaves pictures out, or writes some twice.
    #[error(
        "the chat template makes {n_written} images of the {n_pictures} up to message {idx} ({role}): leave \
         images out of it"
    )]
    PicturesWritten {
        /// Position of the message, from zero.
        idx: usize,
        /// Its role, shortened.
        role: String,
        /// Pictures up to there.
        n_pictures: usize,
        /// Placeholders in the prompt.
        n_written: usize,
    },
    /// The tokens of a prompt have other placeholders than its pictures have rows.
    #[error(
        "the prompt has {n_found} tokens in place of pictures, its {n_pictures} pictures have {n_rows} rows: \
         each picture takes as many in a row as it has rows"
    )]
    Placeholders {
        /// Placeholders of the prompt.
        n_found: usize,
        /// Rows of all pictures.
        n_rows: usize,
        /// Pictures.
        n_pictures: usize,
    },
    /// The template does not write the message that is to be gone on with.
    #[error("the chat template leaves the last message out, so that it cannot be continued")]
    NoLastMessage,
}

impl TextError {
    /// Counts tokens that stand before the text.
    pub(super) fn with_tokens_before(self, n_before: usize) -> TextError {
        match self {
            TextError::TooLong { n_tokens, is_exact, max_tokens } => TextError::TooLong {
                n_tokens: n_tokens.saturating_add(n_before),
                is_exact,
                max_tokens: max_tokens.saturating_add(n_before),
            },
            other => other,
        }
    }
}

/// A library's reason as one line of at most 240 characters.
pub(super) fn one_line(reason: &str) -> String {
    const MAX_CHARS: usize = 240;
    let mut chars = reason.chars().map(|c| if c.is_control() { ' ' } else { c });
    let line: String = chars.by_ref().take(MAX_CHARS).collect();
    if chars.next().is_some() { line + "…" } else { line }
}

/// The beginning of `text`, at most 60 characters, for error messages.
pub(super) fn excerpt(text: &str) -> String {
    let mut chars = text.chars();
    let head: String = chars.by_ref().take(60).collect();
    if chars.next().is_some() { head + "…" } else { head }
}
