//! The binary from outside: arguments, files and signals in, text and exit codes out.

mod bad_files;
mod bad_input;
mod bench;
mod checkpoints;
mod common;
mod damage;
mod demo;
mod fewer_bits;
mod forecast;
mod gpu;
mod hostile_mutations;
mod hostile_text;
mod hub;
mod interrupts;
mod keeping;
mod launch;
mod limits;
mod mutations;
mod prompt;
mod reference;
mod routing;
mod run;
mod sessions;
mod stdin;
mod terminal;
mod tool_loops;
mod words;

#[path = "../../../moeflux-hub/tests/it/server.rs"]
mod hub_server;
#[path = "../../../moeflux-engine/tests/it/common/mod.rs"]
mod logits;
#[path = "../../../moeflux-text/tests/it/templates.rs"]
mod templates;
