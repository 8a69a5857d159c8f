//! What an instruction set does with a vector of 32-bit lanes, which are rows of the matrix.
//!
//! Kernels that take [`Lanes`] are written once. They are `#[inline(always)]` and have no closures:
//! only a function that enables an instruction set may become one with its intrinsics, a generic
//! one cannot enable any, and so all of it has to end up in a function that does.

/// Vectors of an instruction set. Holding a value is the proof that the machine has it.
pub(super) trait Lanes: Copy {
    /// A vector of floats.
    type Floats: Copy;
    /// A vector of integers.
    type Words: Copy;

    /// `value` in all lanes.
    fn floats(self, value: f32) -> Self::Floats;
    /// `value` in all lanes.
    fn words(self, value: u32) -> Self::Words;

    /// `a & b`.
    fn and(self, a: Self::Words, b: Self::Words) -> Self::Words;
    /// `a | b`.
    fn or(self, a: Self::Words, b: Self::Words) -> Self::Words;
    /// `a << by`.
    fn shift_left(self, a: Self::Words, by: usize) -> Self::Words;
    /// `a >> by`.
    fn shift_right(self, a: Self::Words, by: usize) -> Self::Words;
    /// `a >> by` of numbers with a sign.
    fn shift_right_signed(self, a: Self::Words, by: usize) -> Self::Words;
    /// The same bits.
    fn as_floats(self, a: Self::Words) -> Self::Floats;
    /// The numbers, which have a sign, as floats.
    fn to_floats(self, a: Self::Words) -> Self::Floats;

    /// `a + b`.
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a - b`.
    fn subtract(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b`.
    fn multiply(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    fn multiply_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;

    /// The two `f16` of each lane, the lower one first.
    fn f16_pair(self, a: Self::Words) -> [Self::Floats; 2];
    /// What lanes of E8M0 stand for; above them there is nothing.
    fn powers(self, exponents: Self::Words) -> Self::Floats;
    /// What lanes of E4M3 stand for; above them there is nothing.
    fn e4m3(self, codes: Self::Words) -> Self::Floats;
    /// Half of what lanes of E8M0 stand for; 255 is a power like the others.
    fn half_powers(self, exponents: Self::Words) -> Self::Floats;
    /// Half of what bytes of E4M3 stand for without their sign; the byte 0x7f reads as zero.
    fn half_ue4m3(self, codes: Self::Words) -> Self::Floats;
}

/// The same bytes of as many rows as a vector has lanes.
pub(super) trait RowBytes<L: Lanes>: Copy {
    /// The four bytes at `at` of each row.
    fn word(self, isa: L, at: usize) -> L::Words;
    /// The sixteen bytes at `at` of each row.
    fn four_words(self, isa: L, at: usize) -> [L::Words; 4];
}

/// Implements functions of a trait whose values are such a proof, as those of [`Lanes`], by instructions.
macro_rules! by_instructions {
    ($(
        fn $name:ident $(<$(const $generic:ident: $of:ty),*>)? ($($arg:ident: $ty:ty),*) -> $out:ty {
            $($body:tt)*
        }
    )*) => {$(
        #[inline(always)]
        fn $name $(<$(const $generic: $of),*>)? (self, $($arg: $ty),*) -> $out {
            // SAFETY: holding `self` proves that the machine has these instructions.
            unsafe { $($body)* }
        }
    )*};
}

pub(super) use by_instructions;
