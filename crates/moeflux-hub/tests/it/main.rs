//! Names and downloads against a Hub on the loopback address.

mod gguf;
mod hub;
mod lies;
mod server;
mod stored;
mod surroundings;
