//! Whole models over small checkpoints: logits, sessions, devices, plans.

mod cases;
mod common;
mod configs;
mod containers;
mod converted;
mod cut;
mod damaged_weights;
mod embedded;
mod embeddings;
mod golden;
mod gpu;
mod long_context;
mod model_pages;
mod no_calls;
mod packing;
mod page;
mod prepared;
mod published;
mod rows;
mod same_bits;
mod scheduler;
mod sessions;
mod spelled;
mod together;
mod tokenizers;
mod wrapped;
