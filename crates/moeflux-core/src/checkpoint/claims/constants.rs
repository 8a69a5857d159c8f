//! Integers that a checkpoint holds although they follow from its config.

use super::claimed::Claimed;
use crate::checkpoint::{Dtype, FormatError};
use crate::manifest::ConstantsDecl;

/// Claims a tensor of integers; see [`Claims::constants`](super::Claims::constants).
pub(super) fn constants(
    claimed: &mut Claimed<'_>,
    decl: &ConstantsDecl,
) -> Result<(), FormatError> {
    if !claimed.checkpoint.holds(&decl.name) {
        return Ok(());
    }
    let tensor = claimed.claim(&decl.name)?;
    if tensor.dtype != Dtype::I64 {
        return Err(claimed.unsupported_dtype(tensor));
    }
    let n = decl.values.len();
    if tensor.shape != [n] || tensor.extent.len != 8 * n {
        return Err(claimed.wrong_shape(tensor, format!("[{n}]")));
    }
    let bytes = claimed.checkpoint.reader().read(tensor.extent)?;
    let stored = bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
    let differs = |(_, (stored, value)): &(usize, (u64, &u64))| stored != *value;
    if let Some((i, (stored, value))) = stored.zip(&decl.values).enumerate().find(differs) {
        let what = format!("entry {i} is {stored}, by the config it is {value}");
        return Err(claimed.checkpoint.refuse_tensor(&decl.name, &what));
    }
    Ok(())
}
