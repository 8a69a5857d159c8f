//! Sessions as bytes. [`wire`] is the original system's format, which holds
//! little more than the caches; [`file`] is our own, which knows its model and
//! its tokens; [`store`] is a directory of such files.

mod file;
mod header;
mod host;
mod identity;
mod store;
mod wire;

pub(crate) use self::file::{Contents, model_of, read, write};
pub(crate) use self::host::Host;
pub(crate) use self::identity::identities;
pub(crate) use self::store::{PrefixCache, Stored};
pub(crate) use self::wire::WireShape;
