//! Properties of the source itself, checked by `cargo test`.
//!
//! Every check is a function from text to what it finds wrong, a test that runs
//! it over the work tree, and a test that shows it a text with the fault.

#[path = "tidy/arrows.rs"]
mod arrows;
#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/executables.rs"]
mod executables;
#[path = "tidy/families.rs"]
mod families;
#[path = "tidy/floors.rs"]
mod floors;
#[path = "tidy/lexer.rs"]
mod lexer;
#[path = "tidy/manifest.rs"]
mod manifest;
#[path = "tidy/profiles.rs"]
mod profiles;
#[path = "tidy/publishing.rs"]
mod publishing;
#[path = "tidy/sources.rs"]
mod sources;
#[path = "tidy/tree.rs"]
mod tree;
