//! Whole models over small checkpoints: logits, sessions, devices, plans.

mod common;
mod configs;
mod cut;
mod damaged_weights;
mod embedded;
mod embeddings;
mod golden;
mod gpu;
mod long_context;
mod no_calls;
mod packing;
mod prepared;
mod published;
mod rows;
mod same_bits;
mod scheduler;
mod sessions;
mod together;
