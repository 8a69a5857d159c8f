//! Texts of a model that cannot be used, with what helps.

use anyhow::anyhow;
use moeflux_text::{TextError, Tokenizer};

use crate::error::UsageError;

/// A model that has no chat template, and what helps.
pub(crate) fn no_template(tokenizer: &Tokenizer) -> anyhow::Error {
    let names: Vec<&str> = tokenizer.chat_template_names().collect();
    let why = match names.as_slice() {
        [] => String::from("no chat template"),
        names => format!(
            "no default chat template, only {} (save one of them as chat_template.jinja)",
            names.join(", ")
        ),
    };
    let file = tokenizer.file();
    let model = file.parent().filter(|_| file.extension() != Some("gguf".as_ref()));
    let model = model.unwrap_or(file).display();
    let message = format!(
        "{model} has {why}, so it cannot chat: run --raw continues a text; a \
         chat_template.jinja beside its files would give it one"
    );
    UsageError(message).into()
}

/// An error of a text, with the file of the model that it comes from and what helps.
pub(crate) fn explain(tokenizer: &Tokenizer, err: TextError) -> anyhow::Error {
    match (&err, tokenizer.template_file()) {
        (
            TextError::Render(_)
            | TextError::NoPrompt
            | TextError::NoLastMessage
            | TextError::Ambiguous { .. },
            Some(file),
        ) => anyhow!(
            "{}: {err}; mend the template, or give the prompt as it is with run --raw",
            file.display()
        ),
        (TextError::Encode { .. }, _) => {
            anyhow!("{}: {err}; download the file again", tokenizer.file().display())
        }
        _ => err.into(),
    }
}
