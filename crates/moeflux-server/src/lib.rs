//! HTTP for an engine.

#![forbid(unsafe_code)]
