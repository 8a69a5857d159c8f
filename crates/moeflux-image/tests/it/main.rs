//! Pictures, sizes and patches against what the reference makes of them, and files that lie.

mod configs;
mod data;
mod formats;
mod goldens;
mod hostile;
mod properties;
mod resizes;
mod sizes;
