//! Attention over pages of keys and values, and the selection of positions. `attend` decides
//! which kernel takes which rows: `tiles` few rows of several sequences, `rows` many rows that
//! share their keys, `coop_matrix` the same on cooperative matrices.

mod attend;
mod coop_matrix;
mod entries;
mod inputs;
mod places;
mod pools;
mod rows;
mod select;
mod shape;
mod store;
mod tiles;

pub(crate) use attend::{append, attention, gated_attention};
pub(crate) use entries::pool_entries;
pub(crate) use select::select_positions;
