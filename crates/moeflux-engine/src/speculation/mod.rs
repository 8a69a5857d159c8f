//! What speculative decoding measures, and what a session keeps for it.

pub(crate) mod limits;
pub(crate) mod mtp_history;
pub(crate) mod options;
pub(crate) mod rates;
pub(crate) mod state;
