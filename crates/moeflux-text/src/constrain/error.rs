//! Why answers cannot be constrained.

/// Why an answer cannot be constrained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// The vocabulary is not one that grammars can work with.
    #[error("this model's vocabulary cannot be constrained: {0}")]
    Vocabulary(String),
    /// The grammar is not supported, or too large.
    #[error("{0}")]
    Grammar(String),
    /// A part of the schema that answers must have cannot be enforced.
    #[error("{}{}{reason}", .path, if .path.is_empty() { "" } else { ": " })]
    Schema {
        /// Where it is, such as `properties.to.items.pattern`; empty for the whole schema.
        path: String,
        /// Why, as half a sentence.
        reason: String,
    },
    /// The answer has left the grammar.
    #[error("the grammar cannot go on: {0}")]
    Step(String),
}
