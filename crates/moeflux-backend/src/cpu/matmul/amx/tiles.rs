//! The tile registers through `asm!`: `std` has no intrinsics for them yet.
//!
//! Registers 0 to 3 hold sums, 4 and 5 weights, 6 and 7 activations:
//!
//! |           | x 0 (6) | x 1 (7) |
//! |-----------|---------|---------|
//! | w 0 (4)   | 0       | 1       |
//! | w 1 (5)   | 2       | 3       |

use std::arch::asm;
use std::marker::PhantomData;

/// Rows of a tile.
pub(super) const ROWS: usize = 16;
/// Tiles of weights that multiply together.
pub(super) const ROW_TILES: usize = 2;
/// Tiles of activations that multiply together, at most.
pub(super) const X_TILES: usize = 2;

/// A tile of sums: rows of weights, columns of activations.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Sums(pub(super) [[i32; 16]; ROWS]);

/// The sums of each tile of weights with each of activations.
pub(super) type SumTiles = [[Sums; X_TILES]; ROW_TILES];

impl Sums {
    pub(super) const ZERO: Sums = Sums([[0; 16]; ROWS]);
}

/// The tile registers of this thread, laid out for products of a certain depth.
pub(in crate::cpu) struct Tiles {
    depth: usize,
    /// They belong to this thread.
    not_send: PhantomData<*const ()>,
}

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Tiles {
    /// For products over `depth` columns, a multiple of 4 and at most 64.
    ///
    /// # Safety
    /// This process may use AMX, and this thread has no other `Tiles`.
    pub(in crate::cpu) unsafe fn new(depth: usize) -> Tiles {
        assert!(depth.is_multiple_of(4) && depth <= 64, "tiles of {depth} columns");
        let mut config = Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        for tile in 0..8 {
            let is_weights = matches!(tile, 4 | 5);
            let is_activations = matches!(tile, 6 | 7);
            config.row_bytes[tile] = if is_weights { depth as u16 } else { 64 };
            config.rows[tile] = if is_activations { depth as u8 / 4 } else { ROWS as u8 };
        }
        // SAFETY: the caller grants AMX, and the configuration is valid for palette 1. The
        // statement counts as one that reads memory, so the configuration is complete.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, preserves_flags)) };
        Tiles { depth, not_send: PhantomData }
    }

    /// Columns of one product.
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    fn bytes(&self) -> usize {
        self.depth * ROWS
    }

    /// Sets all sums to zero.
    #[inline(always)]
    pub(in crate::cpu) fn clear(&mut self) {
        // SAFETY: `self` proves that the tiles are configured.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                options(nostack, nomem, preserves_flags),
            );
        }
    }

    /// Adds the products of two tiles of weights (rows of `depth` unsigned
    /// bytes) with one or two of activations (`depth / 4` rows of four signed
    /// bytes each of sixteen activations).
    #[inline(always)]
    pub(super) fn multiply<const N: usize>(&mut self, w: [&[u8]; ROW_TILES], x: [&[u8]; N]) {
        const { assert!(N == 1 || N == 2) };
        assert!(w.iter().all(|it| it.len() >= self.bytes()), "tiles of weights");
        assert!(x.iter().all(|it| it.len() >= self.bytes()), "tiles of activations");
        if N == 1 {
            // SAFETY: the tiles are configured, and all that they load lies within the slices.
            unsafe {
                asm!(
                    "tileloadd tmm6, [{x0} + {line}]",
                    "tileloadd tmm4, [{w0} + {depth}]",
                    "tdpbusd tmm0, tmm4, tmm6",
                    "tileloadd tmm5, [{w1} + {depth}]",
                    "tdpbusd tmm2, tmm5, tmm6",
                    w0 = in(reg) w[0].as_ptr(),
                    w1 = in(reg) w[1].as_ptr(),
                    x0 = in(reg) x[0].as_ptr(),
                    depth = in(reg) self.depth,
                    line = in(reg) 64usize,
                    options(nostack, readonly, preserves_flags),
                );
            }
            return;
        }
        // SAFETY: the tiles are configured, and all that they load lies within the slices.
        unsafe {
            asm!(
                "tileloadd tmm6, [{x0} + {line}]",
                "tileloadd tmm4, [{w0} + {depth}]",
                "tdpbusd tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{x1} + {line}]",
                "tdpbusd tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{w1} + {depth}]",
                "tdpbusd tmm2, tmm5, tmm6",
                "tdpbusd tmm3, tmm5, tmm7",
                w0 = in(reg) w[0].as_ptr(),
                w1 = in(reg) w[1].as_ptr(),
                x0 = in(reg) x[0].as_ptr(),
                x1 = in(reg) x[N - 1].as_ptr(),
                depth = in(reg) self.depth,
                line = in(reg) 64usize,
                options(nostack, readonly, preserves_flags),
            );
        }
    }

    /// The four products of what the registers hold, whatever that is.
    #[inline(always)]
    pub(in crate::cpu) fn multiply_loaded(&mut self) {
        // SAFETY: the tiles are configured.
        unsafe {
            asm!(
                "tdpbusd tmm0, tmm4, tmm6",
                "tdpbusd tmm1, tmm4, tmm7",
                "tdpbusd tmm2, tmm5, tmm6",
                "tdpbusd tmm3, tmm5, tmm7",
                options(nostack, nomem, preserves_flags),
            );
        }
    }

    /// The sums with the first `N` tiles of activations.
    #[inline(always)]
    pub(super) fn store<const N: usize>(&self, out: &mut SumTiles) {
        let [[a, b], [c, d]] = out;
        if N == 2 {
            // SAFETY: the tiles are configured, and a tile of sums is as large as `Sums`.
            unsafe {
                asm!(
                    "tilestored [{b} + {line}], tmm1",
                    "tilestored [{d} + {line}], tmm3",
                    b = in(reg) b,
                    d = in(reg) d,
                    line = in(reg) 64usize,
                    options(nostack, preserves_flags),
                );
            }
        }
        // SAFETY: the tiles are configured, and a tile of sums is as large as `Sums`.
        unsafe {
            asm!(
                "tilestored [{a} + {line}], tmm0",
                "tilestored [{c} + {line}], tmm2",
                a = in(reg) a,
                c = in(reg) c,
                line = in(reg) 64usize,
                options(nostack, preserves_flags),
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: `self` proves that this thread may use AMX.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}
