//! Sessions as bytes. [`wire`] is the original system's format, which holds
//! little more than the caches; [`file`] is our own, which knows its model and
//! its tokens; [`image`] is the same in memory. [`cache`] finds both by their tokens: [`shelf`] has
//! images, [`drive`] is a directory of files.

mod cache;
mod drive;
mod file;
mod header;
mod host;
mod identity;
mod image;
mod lock;
mod names;
mod shelf;
mod warnings;
mod wire;

pub(crate) use self::cache::{Found, Leaving, Occasion, PrefixCache};
pub(crate) use self::file::{Contents, Loaded, model_of, read, write};
pub(crate) use self::host::{Facts, Host, ModelCard};
pub(crate) use self::identity::identities;
pub(crate) use self::wire::WireShape;
