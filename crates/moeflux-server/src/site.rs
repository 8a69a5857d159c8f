//! What a server is: what all requests share, and its models.

use std::sync::Arc;

use crate::common::Common;
use crate::fleet::Fleet;

pub(crate) struct Site {
    pub(crate) common: Arc<Common>,
    pub(crate) fleet: Arc<Fleet>,
}
