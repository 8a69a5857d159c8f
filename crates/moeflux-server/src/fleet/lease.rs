//! The use of a model by a request.

use std::sync::Arc;

use super::loader::Loader;
use super::roster::Roster;
use super::state::Turn;
use crate::access;
use crate::error::ApiResult;
use crate::served::Served;

/// A use of a model, which is not unloaded before this is dropped.
pub(crate) struct Lease {
    roster: Arc<Roster>,
    served: Arc<Served>,
}

impl Lease {
    /// A use that the roster has counted.
    pub(super) fn new(roster: &Arc<Roster>, served: Arc<Served>) -> Lease {
        Lease { roster: Arc::clone(roster), served }
    }

    pub(crate) fn served(&self) -> &Arc<Served> {
        &self.served
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.roster.release(self.served.model_name());
    }
}

/// A request that waits. Dropped, it waits no more.
struct Ticket<'a> {
    roster: &'a Roster,
    number: u64,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.roster.leave(self.number);
    }
}

/// Waits until a model is loaded, and for the turn of its requests.
///
/// # Errors
/// Where the model cannot be loaded, and where too many requests wait.
pub(super) async fn wait(
    roster: &Arc<Roster>,
    loader: &Arc<Loader>,
    name: &Arc<str>,
) -> ApiResult<Arc<Served>> {
    let owner = access::current().and_then(|record| record.owner());
    let ticket = Ticket { roster, number: roster.enter(name, owner)? };
    loop {
        let changed = roster.changed();
        tokio::pin!(changed);
        changed.as_mut().enable();
        match roster.turn(ticket.number) {
            Turn::Comes(served) => return Ok(served),
            Turn::Fails(failure) => return Err(failure),
            Turn::Waits => loader.load_next(),
        }
        changed.await;
    }
}
