//! A row of activations that is being rounded.

/// Where one row goes.
pub(super) struct RoundedRow<'a> {
    /// Both limbs or one, `q_stride` apart.
    pub(super) q: &'a mut [i8],
    pub(super) q_stride: usize,
    /// Empty where no kernel reads them.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "only kernels of x86-64 read pairs")
    )]
    pub(super) pairs: &'a mut [i32],
    pub(super) s: &'a mut [f32],
    pub(super) st: &'a mut [f32],
}
