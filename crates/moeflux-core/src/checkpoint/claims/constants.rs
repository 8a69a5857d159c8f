//! Integers that a checkpoint holds although they follow from its config.

use super::Claims;
use crate::checkpoint::{Dtype, FormatError};
use crate::manifest::ConstantsDecl;

impl Claims<'_> {
    /// Claims a tensor of 64-bit integers, where there is one, and compares it with the declared
    /// values.
    ///
    /// # Errors
    /// If it cannot be read, or has another type, shape or value.
    pub fn constants(&mut self, decl: &ConstantsDecl) -> Result<(), FormatError> {
        if !self.checkpoint.holds(&decl.name) {
            return Ok(());
        }
        let tensor = self.claim(&decl.name)?;
        if tensor.dtype != Dtype::Other("I64".to_owned()) {
            return Err(self.unsupported_dtype(tensor));
        }
        let n = decl.values.len();
        if tensor.shape != [n] || tensor.extent.len != 8 * n {
            return Err(self.wrong_shape(tensor, format!("[{n}]")));
        }
        let bytes = self.checkpoint.reader().read(tensor.extent)?;
        let stored = bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let differs = |(_, (stored, value)): &(usize, (u64, &u64))| stored != *value;
        if let Some((i, (stored, value))) = stored.zip(&decl.values).enumerate().find(differs) {
            let what = format!("entry {i} is {stored}, by the config it is {value}");
            return Err(self.checkpoint.refuse_tensor(&decl.name, &what));
        }
        Ok(())
    }
}
