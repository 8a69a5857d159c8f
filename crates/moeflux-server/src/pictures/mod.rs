//! Pictures of requests: where their bytes come from, what they may take, and how a model sees them.
//!
//! Reading a request collects where its pictures are, in the order in which they stand in its messages. Then
//! their bytes are had and held against limits by their headers, and decoded once there is room. What the
//! model's tower makes of them is computed when the rest of the request has been found to be good.

mod address;
mod collect;
mod fetch;
mod look;
mod open;
mod source;

pub(crate) use collect::{PictureFields, Pictures};
pub(crate) use look::Looks;
pub(crate) use open::{count_rows, open, rows_of};
pub(crate) use source::Source;
