//! What the stores of experts and of rows share: files on a drive, reads of their blocks, and the
//! threads that run these.
//!
//! [`Files`] are opened once and checked. [`Drive`] reads whole [`Blocks`] of them, and says what
//! went wrong. A store is a [`Desk`] behind the lock of [`Shared`]: it knows where each record is
//! and who waits for it, and decides which read begins next. [`Readers`] are the threads that run
//! the reads, without the lock. [`BusyTime`] measures how long the drive had work. Nothing here
//! knows what a record is.

mod busy;
mod desk;
mod direct;
mod files;
mod read;

pub(crate) use busy::BusyTime;
#[cfg(test)]
pub(crate) use desk::N_LOCKS;
pub(crate) use desk::{Desk, Readers, Shared, Threads, Wake};
pub use direct::{open_direct, read_at};
pub(crate) use files::{Files, Native, Opened, Source, System, Wanted};
pub(crate) use read::{Blocks, Drive, Failure};
