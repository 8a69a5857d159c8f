//! Element types that are not quantised.

/// An unquantised element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Float {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    BF16,
}

impl Float {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Float::F32 => 4,
            Float::F16 | Float::BF16 => 2,
        }
    }
}
