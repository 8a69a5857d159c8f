//! The binary from outside: arguments, files and signals in, text and exit codes out.

mod access_log;
mod bad_files;
mod bad_input;
mod bench;
mod checkpoints;
mod common;
mod damage;
mod demo;
mod doctor;
mod fewer_bits;
mod forecast;
mod gpu;
mod hostile_mutations;
mod hostile_text;
mod hub;
mod interrupts;
mod keeping;
mod keys;
mod launch;
mod limits;
mod models;
mod mutations;
mod packaging;
mod plan;
mod prompt;
mod prompts;
mod published;
mod reference;
mod results;
mod routing;
mod run;
mod sessions;
mod several_models;
mod stand_ins;
mod stdin;
mod terminal;
mod thinking;
mod tool_loops;
mod transports;
mod words;

#[path = "../../../moeflux-hub/tests/it/server.rs"]
#[expect(dead_code, reason = "another crate's tests use the rest")]
mod hub_server;
#[path = "../../../moeflux-engine/tests/it/common/mod.rs"]
#[expect(dead_code, reason = "another crate's tests use the rest")]
mod logits;
#[path = "../../../moeflux-text/tests/it/templates.rs"]
mod templates;
