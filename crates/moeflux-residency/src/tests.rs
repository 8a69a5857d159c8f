//! Residency on a simulated device: its memory is a table of what was copied where.

mod admission;
mod fake;
mod fake_staging;
mod layers;
mod slots;
mod staging;
