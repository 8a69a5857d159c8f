//! The tile registers through `asm!`: `std` has no intrinsics for them yet.
//!
//! Registers 0 and 1 hold the sums of the first and the second limb of the
//! activations, 4 weights, 6 and 7 the limbs.

use std::arch::asm;
use std::marker::PhantomData;

/// Rows of a tile.
pub(super) const ROWS: usize = 16;

/// A tile of sums: rows of weights, columns of activations.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Sums(pub(super) [[i32; 16]; ROWS]);

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

    /// Bytes of a tile of weights, and of one limb of a tile of activations.
    pub(super) fn bytes(&self) -> usize {
        self.depth * ROWS
    }

    /// Sets all sums to zero.
    #[inline(always)]
    pub(in crate::cpu) fn clear(&mut self) {
        // SAFETY: `self` proves that the tiles are configured.
        unsafe {
            asm!("tilezero tmm0", "tilezero tmm1", options(nostack, nomem, preserves_flags));
        }
    }

    /// Adds the products of a tile of weights (rows of `depth` unsigned bytes)
    /// with one or two limbs of a tile of activations, one after the other
    /// (`depth / 4` rows each of four signed bytes of sixteen activations).
    #[inline(always)]
    pub(super) fn multiply<const LIMBS: usize>(&mut self, w: &[u8], x: &[u8]) {
        const { assert!(LIMBS == 1 || LIMBS == 2) };
        assert!(w.len() >= self.bytes(), "a tile of weights");
        assert!(x.len() >= LIMBS * self.bytes(), "limbs of a tile of activations");
        if LIMBS == 1 {
            // SAFETY: the tiles are configured, and all that they load is within the slices.
            unsafe {
                asm!(
                    "tileloadd tmm4, [{w} + {depth}]",
                    "tileloadd tmm6, [{x} + {line}]",
                    "tdpbusd tmm0, tmm4, tmm6",
                    w = in(reg) w.as_ptr(),
                    x = in(reg) x.as_ptr(),
                    depth = in(reg) self.depth,
                    line = in(reg) 64usize,
                    options(nostack, readonly, preserves_flags),
                );
            }
            return;
        }
        // SAFETY: the tiles are configured, and all that they load is within the slices.
        unsafe {
            asm!(
                "tileloadd tmm4, [{w} + {depth}]",
                "tileloadd tmm6, [{x} + {line}]",
                "tdpbusd tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{low} + {line}]",
                "tdpbusd tmm1, tmm4, tmm7",
                w = in(reg) w.as_ptr(),
                x = in(reg) x.as_ptr(),
                low = in(reg) x[self.bytes()..].as_ptr(),
                depth = in(reg) self.depth,
                line = in(reg) 64usize,
                options(nostack, readonly, preserves_flags),
            );
        }
    }

    /// Two products of what the registers hold, whatever that is.
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

    /// The sums of the first `LIMBS` limbs.
    #[inline(always)]
    pub(super) fn store<const LIMBS: usize>(&self, out: &mut [Sums; 2]) {
        let [high, low] = out;
        // SAFETY: the tiles are configured, and a tile of sums is as large as `Sums`.
        unsafe {
            asm!(
                "tilestored [{high} + {line}], tmm0",
                high = in(reg) high,
                line = in(reg) 64usize,
                options(nostack, preserves_flags),
            );
        }
        if LIMBS == 2 {
            // SAFETY: the tiles are configured, and a tile of sums is as large as `Sums`.
            unsafe {
                asm!(
                    "tilestored [{low} + {line}], tmm1",
                    low = in(reg) low,
                    line = in(reg) 64usize,
                    options(nostack, preserves_flags),
                );
            }
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: `self` proves that this thread may use AMX.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}
