//! Kernels for floats of four bits (E2M1) and of eight (E4M3), written once for the vectors of AVX2
//! and AVX-512.

/// Defines `decode_e2m1`, `multiply_e2m1` and `multiply_e4m3` for an instruction set.
///
/// The module that calls it defines `Block`, sixteen floats in one or two vectors, with
/// `zeros`, `load`, `store` and `add_products` (a fused multiplication and addition); `decode`,
/// which turns eight bytes into a block with the `values` of a scale; and `decode_e4m3`, which
/// turns sixteen bytes of E4M3 into a block of their values divided by `E4M3_UNIT`, times `lanes` of
/// a factor.
macro_rules! small_kernels {
    ($features:literal) => {
        /// Elements times their group's scale; `packed` has two a byte.
        #[target_feature(enable = $features)]
        pub(in crate::cpu::matmul) fn decode_e2m1(
            micro: MicroScaled,
            packed: &[u8],
            scales: &[u8],
            out: &mut [f32],
        ) {
            let groups = out.chunks_exact_mut(micro.group_size);
            let packed = packed.chunks_exact(micro.group_size / 2);
            for ((out, packed), scale) in groups.zip(packed).zip(scales) {
                let values = values(micro.scale.to_f32(*scale));
                for (out, packed) in out.as_chunks_mut().0.iter_mut().zip(packed.as_chunks().0) {
                    store(out, decode(packed, values));
                }
            }
        }

        /// Adds the products of some rows with one of activations, column by column to
        /// the lanes; `packed` and `scales` have as many columns as `x`.
        #[target_feature(enable = $features)]
        pub(in crate::cpu::matmul) fn multiply_e2m1<const ROWS: usize>(
            micro: MicroScaled,
            packed: [&[u8]; ROWS],
            scales: [&[u8]; ROWS],
            x: &[f32],
            sums: &mut [[f32; 16]; ROWS],
        ) {
            match micro.group_size {
                16 => multiply::<16, ROWS>(micro, packed, scales, x, sums),
                _ => multiply::<32, ROWS>(micro, packed, scales, x, sums),
            }
        }

        /// [`multiply_e2m1`] for groups of `GROUP` columns.
        #[inline]
        #[target_feature(enable = $features)]
        fn multiply<const GROUP: usize, const ROWS: usize>(
            micro: MicroScaled,
            packed: [&[u8]; ROWS],
            scales: [&[u8]; ROWS],
            x: &[f32],
            sums: &mut [[f32; 16]; ROWS],
        ) {
            assert_eq!(micro.group_size, GROUP, "columns of a group");
            let mut acc = [zeros(); ROWS];
            for (acc, sums) in acc.iter_mut().zip(&*sums) {
                *acc = load(sums);
            }
            for (g, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
                let (x, _) = x.as_chunks();
                for r in 0..ROWS {
                    let values = values(micro.scale.to_f32(scales[r][g]));
                    let (packed, _) = packed[r][g * GROUP / 2..][..GROUP / 2].as_chunks();
                    for (x, packed) in x.iter().zip(packed) {
                        acc[r] = add_products(acc[r], decode(packed, values), load(x));
                    }
                }
            }
            for (acc, sums) in acc.iter().zip(sums) {
                store(sums, *acc);
            }
        }

        /// Adds the products of some rows of E4M3, a scale each, with one of activations, column by
        /// column to the lanes: sixteens of columns, as many as there are whole ones in `x`. Scales
        /// times [`E4M3_UNIT`] are finite.
        #[target_feature(enable = $features)]
        pub(in crate::cpu::matmul) fn multiply_e4m3<const ROWS: usize>(
            codes: [&[u8]; ROWS],
            scales: [f32; ROWS],
            x: &[f32],
            sums: &mut [[f32; 16]; ROWS],
        ) {
            let (x, _) = x.as_chunks::<16>();
            let mut rows: [&[[u8; 16]]; ROWS] = [&[]; ROWS];
            let (mut acc, mut factors) = ([zeros(); ROWS], [lanes(0.0); ROWS]);
            for r in 0..ROWS {
                rows[r] = &codes[r].as_chunks().0[..x.len()];
                acc[r] = load(&sums[r]);
                factors[r] = lanes(scales[r] * E4M3_UNIT);
            }
            for (i, x) in x.iter().enumerate() {
                let x = load(x);
                for r in 0..ROWS {
                    acc[r] = add_products(acc[r], decode_e4m3(&rows[r][i], factors[r]), x);
                }
            }
            for (acc, sums) in acc.iter().zip(sums) {
                store(sums, *acc);
            }
        }
    };
}

pub(super) use small_kernels;
