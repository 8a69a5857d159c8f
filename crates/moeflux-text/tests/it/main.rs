//! Tokenizers, templates, tool syntaxes and grammars over files of families.

mod chat_model;
mod constrain;
mod history;
mod hostile_templates;
mod infill;
mod no_calls;
mod pictures;
mod round_trip;
mod schemas;
mod templates;
mod text;
mod thoughts;
