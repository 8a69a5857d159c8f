//! What architectures share whose layers mix several streams of a residual.

use serde_json::json;

use super::keys::{Keys, number};
use crate::checkpoint::FormatError;

/// Writes how many streams there are, and how shares of them are found.
pub fn count(keys: &mut Keys<'_>) -> Result<(), FormatError> {
    keys.copy(&[
        number("hc_mult", "hyper_connection.count"),
        number("hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations"),
    ])?;
    let eps = keys.float("hyper_connection.epsilon")?;
    keys.put_from("hc_eps", "hyper_connection.epsilon", json!(eps));
    Ok(())
}
