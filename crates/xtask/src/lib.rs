//! Checks of the source itself; they live in `tests/tidy.rs`.
