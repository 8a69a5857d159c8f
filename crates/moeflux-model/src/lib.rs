//! Models as families of shared layers: token ids and positions in, hidden states out.
//!
//! A [`Family`] reads a config and declares weights; the same declaration serves a loader, a
//! survey of what a checkpoint must hold ([`Declared`]) and the packer. A [`Model`] runs its
//! layers on any [`Backend`](moeflux_backend::Backend), with experts from an
//! [`ExpertStore`](moeflux_store::ExpertStore). It knows no session, no sampling and no thread.

#![forbid(unsafe_code)]

mod declared;
mod decoders;
mod families;
mod find_mmproj;
mod forward_error;
mod layers;
mod load;
mod model;
mod moe_lists;
mod observe;
mod read_weights;
mod rows;
mod shape;
mod step;
mod tower_files;
mod towers;

pub use declared::{Declared, bank, row_bank};
pub use families::{FAMILIES, Family, PublishedShape, dialects, open_checkpoint};
pub use find_mmproj::find_mmproj;
pub use forward_error::ForwardError;
pub use layers::moe::SCORES_PER_EXPERT;
pub use load::{HostVector, LoadError, Loaded, Loader, Weights};
pub use model::{Build, Model, Variant, WithMtp};
pub use moe_lists::MoeLists;
pub use observe::{ExpertObserver, RoutingObserver};
pub use read_weights::check_finite_matrix;
pub use rows::{NoRows, RowIds, RowSource};
pub use shape::ModelShape;
pub use step::{EmbeddedRow, Step};
pub use tower_files::{DeclaredTower, TowerFiles, TowerShape};
pub use towers::{Grid, MmprojShape, Picture, Seen, Tower};
