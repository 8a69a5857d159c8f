//! Ids of tokens, layers and experts. They are distinct types, so that one cannot be passed for
//! another.

use std::fmt;

/// A token of the model's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenId(pub u32);

/// A transformer layer, counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayerIdx(pub u16);

/// A routed expert within its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertId(pub u16);

/// Identifies one routed expert of the model, and so one record on the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertKey {
    /// The layer the expert belongs to.
    pub layer: LayerIdx,
    /// The expert within that layer.
    pub expert: ExpertId,
}

impl LayerIdx {
    /// The index as a subscript.
    pub fn idx(self) -> usize {
        usize::from(self.0)
    }
}

impl ExpertId {
    /// The index as a subscript.
    pub fn idx(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for ExpertKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expert {} of layer {}", self.expert.0, self.layer.0)
    }
}
