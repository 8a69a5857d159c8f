//! The one thing here that the compiler cannot check.

/// The word that `wgpu` wants to hear before it hands out cooperative matrices.
#[expect(unsafe_code, reason = "wgpu asks for it")]
pub(crate) fn features() -> wgpu::ExperimentalFeatures {
    // SAFETY: wgpu warns of features whose misuse it may not catch. Of these only cooperative
    // matrices are asked for, where the adapter lists them, and the one kernel that has them
    // keeps their rules: its matrices are of a listed size, all loads and stores are in workgroup
    // memory inside squares of 16 rows, of which its arrays have as many as its subgroups take,
    // and no subgroup is divided there.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}
