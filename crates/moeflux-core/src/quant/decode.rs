//! Decodes stored elements to `f32`, one at a time. Kernels are tested against this specification.

use super::{
    Affine, AffineBias, BlockType, Float, MatrixFormat, MatrixView, NF4_GROUP, e4m3_to_f32,
    nf4_pair,
};

/// Unpacks the integers of one group: `out.len()` of them from the stream of `bits`-wide integers
/// in `packed`, which holds exactly those.
#[inline(always)]
pub fn unpack_group(bits: u8, packed: &[u8], out: &mut [u8]) {
    // For widths whose integers never cross a byte, compilers vectorise these loops.
    match bits {
        4 => {
            for (out, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(packed) {
                *out = [byte & 15, byte >> 4];
            }
            return;
        }
        8 => return out.copy_from_slice(packed),
        _ => {}
    }
    let bits = usize::from(bits);
    let mask = (1u32 << bits) - 1;
    for (i, q) in out.iter_mut().enumerate() {
        let bit = i * bits;
        let low = u32::from(packed[bit / 8]);
        let high = packed.get(bit / 8 + 1).map_or(0, |byte| u32::from(*byte) << 8);
        *q = (((low | high) >> (bit % 8)) & mask) as u8;
    }
}

impl MatrixView<'_> {
    /// What products with the matrix are multiplied by: the scale that all of it shares, or 1.
    pub fn global_scale(&self) -> f32 {
        match self.format {
            MatrixFormat::Micro(micro) if micro.has_global_scale => Float::F32.read(self.biases, 0),
            _ => 1.0,
        }
    }

    /// The elements of one row, each rounded once: `scale * q + bias`, or
    /// `scale * element`.
    #[inline(always)]
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "a row has as many elements as columns");
        if let MatrixFormat::Transposed(float) = self.format {
            for (col, it) in out.iter_mut().enumerate() {
                *it = float.read(self.weight, col * self.rows + row);
            }
            return;
        }
        let row_bytes = self.format.row_bytes(self.cols);
        let weight = &self.weight[row * row_bytes..(row + 1) * row_bytes];
        match self.format {
            MatrixFormat::Dense(float) | MatrixFormat::Transposed(float) => {
                for (i, it) in out.iter_mut().enumerate() {
                    *it = float.read(weight, i);
                }
            }
            MatrixFormat::Affine(affine) => self.decode_affine_row(affine, weight, row, out),
            MatrixFormat::Micro(micro) => {
                let n_groups = micro.n_groups(self.cols);
                let global_scale = self.global_scale();
                for (col, it) in out.iter_mut().enumerate() {
                    let scale = self.scales[row * n_groups + col / micro.group_size];
                    let scale = micro.scale.to_f32(scale) * global_scale;
                    *it = micro.element.read(weight, col) * scale;
                }
            }
            MatrixFormat::Blocks(blocks) => {
                for (col, it) in out.iter_mut().enumerate() {
                    let scale = blocks.scale_index(row, col, self.cols);
                    *it = e4m3_to_f32(weight[col]) * blocks.scales.read(self.scales, scale);
                }
            }
            MatrixFormat::Nf4 => {
                let n_groups = self.cols / NF4_GROUP;
                for (col, it) in out.iter_mut().enumerate() {
                    let scale = Float::F32.read(self.scales, row * n_groups + col / NF4_GROUP);
                    *it = nf4_pair(weight[col / 2])[col % 2] * scale;
                }
            }
            MatrixFormat::Ggml(block_type) => decode_block_row(block_type, weight, out),
        }
    }

    #[inline(always)]
    fn decode_affine_row(&self, affine: Affine, weight: &[u8], row: usize, out: &mut [f32]) {
        let n_groups = affine.n_groups(self.cols);
        let group_bytes = affine.group_size * usize::from(affine.bits) / 8;
        let mut q = [0u8; 128];
        let q = &mut q[..affine.group_size];
        for (g, out) in out.chunks_exact_mut(affine.group_size).enumerate() {
            unpack_group(affine.bits, &weight[g * group_bytes..(g + 1) * group_bytes], q);
            let scale = affine.params.read(self.scales, row * n_groups + g);
            let bias = match affine.bias {
                AffineBias::Stored => affine.params.read(self.biases, row * n_groups + g),
                AffineBias::Symmetric => affine.symmetric_bias() * scale,
            };
            for (it, q) in out.iter_mut().zip(q.iter()) {
                *it = scale.mul_add(f32::from(*q), bias);
            }
        }
    }
}

fn decode_block_row(block_type: BlockType, weight: &[u8], out: &mut [f32]) {
    const MOST_COLS: usize = 256;
    let (mut codes, mut scales, mut biases) = ([0; MOST_COLS], [0.0; 16], [0.0; 16]);
    let (n, group) = (block_type.block_cols(), block_type.group_cols());
    let (codes, n_groups) = (&mut codes[..n], n / group);
    let (scales, biases) = (&mut scales[..n_groups], &mut biases[..n_groups]);
    let blocks = weight.chunks_exact(block_type.block_bytes());
    for (out, block) in out.chunks_exact_mut(n).zip(blocks) {
        block_type.decode(block, codes, scales, biases);
        for (col, (out, code)) in out.iter_mut().zip(&*codes).enumerate() {
            *out = scales[col / group].mul_add(f32::from(*code), biases[col / group]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacks_streams_of_every_width() {
        for bits in Affine::BITS {
            let want: Vec<u8> = (0..32u32).map(|i| ((i * 7 + 3) % (1 << bits)) as u8).collect();
            let mut packed = vec![0u8; 32 * usize::from(bits) / 8];
            for (i, q) in want.iter().enumerate() {
                for bit in 0..usize::from(bits) {
                    let at = i * usize::from(bits) + bit;
                    packed[at / 8] |= ((q >> bit) & 1) << (at % 8);
                }
            }
            let mut got = vec![0; 32];
            unpack_group(bits, &packed, &mut got);
            assert_eq!(got, want, "{bits} bits");
        }
    }
}
