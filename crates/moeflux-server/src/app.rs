//! What the handler of a request has: the model that answers it, which stays loaded meanwhile.

use std::ops::Deref;
use std::sync::Arc;

use crate::fleet::Lease;
use crate::served::Served;

/// The model that answers a request. It is not unloaded before this is dropped.
pub(crate) struct App {
    lease: Lease,
}

impl App {
    pub(crate) fn new(lease: Lease) -> Arc<App> {
        Arc::new(App { lease })
    }
}

impl Deref for App {
    type Target = Served;

    fn deref(&self) -> &Served {
        self.lease.served()
    }
}
