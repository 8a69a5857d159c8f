//! The values of patches.

use std::ops::Range;

use super::identity::PictureId;
use super::layout::Layout;
use super::parameters::{Parameters, ValueOrder};
use crate::error::LayoutError;
use crate::memory::{reserved, zeroed};
use crate::picture::Picture;
use crate::resize::resize_into;

/// Which frames of a patch are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frames {
    /// All frames, as published: a still has the same values in each.
    All,
    /// One frame. A tower whose patch embedding is W = [W_0, W_1, ...] by frames takes it with the sum
    /// of these, W_0 + W_1 + ..., which is computed once when weights are loaded: W x is then the same
    /// but for rounding, with a fraction of the values.
    One,
}

/// Patches of a picture, one after another.
#[derive(Debug, Clone, PartialEq)]
pub struct Patches {
    /// Rows of patches.
    pub rows: usize,
    /// Columns of patches.
    pub columns: usize,
    /// `rows * columns` patches of [`crate::Processor::patch_values`], in the order of
    /// [`ValueOrder`].
    pub values: Vec<f32>,
}

/// A picture on its canvas, ready to be read as patches.
#[derive(Clone)]
pub struct Prepared {
    layout: Layout,
    patch_size: usize,
    merge_size: usize,
    n_frames: usize,
    order: ValueOrder,
    /// The value of each level, for red, green and blue.
    tables: Box<[[f32; 256]; 3]>,
    /// RGB, `layout.canvas()`.
    canvas: Vec<u8>,
}

impl std::fmt::Debug for Prepared {
    /// Without the pixels: logs hold no pictures.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl Prepared {
    pub(super) fn new(
        parameters: &Parameters,
        picture: &Picture,
        layout: &Layout,
    ) -> Result<Self, LayoutError> {
        assert_eq!(picture.size(), layout.source(), "a layout of another size");
        let row_bytes = 3 * layout.canvas().width;
        let mut canvas = zeroed(row_bytes * layout.canvas().height).map_err(no_memory)?;
        let (rgb, from) = (picture.rgb(), picture.size());
        resize_into(rgb, from, layout.resized(), &mut canvas, row_bytes).map_err(no_memory)?;
        Ok(Self {
            layout: *layout,
            patch_size: parameters.patch_size,
            merge_size: parameters.merge_size,
            n_frames: parameters.n_frames,
            order: parameters.order,
            tables: Box::new(parameters.levels.tables()),
            canvas,
        })
    }

    /// The layout that the picture was prepared with.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The resized picture on its canvas: RGB, rows from the top.
    pub fn canvas(&self) -> &[u8] {
        &self.canvas
    }

    /// What distinguishes this picture in keys: it depends on the canvas and the layout.
    pub fn id(&self) -> PictureId {
        PictureId::of(&self.canvas, &self.layout)
    }

    /// Patches of the picture.
    pub fn n_patches(&self) -> usize {
        self.layout.grid().n_patches()
    }

    /// Values of a patch.
    pub fn patch_values(&self, frames: Frames) -> usize {
        3 * self.n_written(frames) * self.patch_size * self.patch_size
    }

    fn n_written(&self, frames: Frames) -> usize {
        match frames {
            Frames::All => self.n_frames,
            Frames::One => 1,
        }
    }

    /// Row and column in the grid of the patch with this index, in the order of the patches.
    ///
    /// # Panics
    /// There is no such patch.
    pub fn place(&self, patch_idx: usize) -> (usize, usize) {
        assert!(patch_idx < self.n_patches(), "patch {patch_idx} of {}", self.n_patches());
        let (columns, merge) = (self.layout.grid().columns, self.merge_size);
        match self.order {
            ValueOrder::RowsThenChannels | ValueOrder::RowsChannelsLast => {
                (patch_idx / columns, patch_idx % columns)
            }
            ValueOrder::TokensThenChannels => {
                let (token, within) = (patch_idx / (merge * merge), patch_idx % (merge * merge));
                let tokens_a_row = columns / merge;
                let row = token / tokens_a_row * merge + within / merge;
                (row, token % tokens_a_row * merge + within % merge)
            }
        }
    }

    /// Writes a range of patches, one after another: `to` has [`Prepared::patch_values`] for each. So a
    /// tower takes a large picture in portions, whose memory it chooses.
    ///
    /// # Panics
    /// The range is not within the patches, or `to` has another length.
    pub fn write(&self, patches: Range<usize>, frames: Frames, to: &mut [f32]) {
        let n_values = self.patch_values(frames);
        assert!(patches.end <= self.n_patches(), "patches to {}", patches.end);
        assert_eq!(to.len(), patches.len() * n_values, "values of {} patches", patches.len());
        for (patch_idx, to) in patches.zip(to.chunks_exact_mut(n_values)) {
            self.write_patch(patch_idx, to);
        }
    }

    /// Writes one patch, with as many frames as there is room for.
    fn write_patch(&self, patch_idx: usize, to: &mut [f32]) {
        let (row, column) = self.place(patch_idx);
        let side = self.patch_size;
        let row_bytes = 3 * self.layout.canvas().width;
        let n_frames = to.len() / (3 * side * side);
        for y in 0..side {
            let at = (row * side + y) * row_bytes + 3 * column * side;
            let line = self.canvas[at..at + 3 * side].as_chunks::<3>().0;
            if self.order == ValueOrder::RowsChannelsLast {
                let to = &mut to[3 * y * side..3 * (y + 1) * side];
                for (to, pixel) in to.as_chunks_mut::<3>().0.iter_mut().zip(line) {
                    *to = [0, 1, 2].map(|channel| self.value(channel, pixel));
                }
                continue;
            }
            for channel in 0..3 {
                let start = (channel * n_frames * side + y) * side;
                for (to, pixel) in to[start..start + side].iter_mut().zip(line) {
                    *to = self.value(channel, pixel);
                }
            }
        }
        repeat_frames(to, n_frames, side * side, self.order);
    }

    fn value(&self, channel: usize, pixel: &[u8; 3]) -> f32 {
        self.tables[channel][usize::from(pixel[channel])]
    }

    /// All patches with all of their frames.
    pub(super) fn patches(&self) -> Result<Patches, LayoutError> {
        let grid = self.layout.grid();
        let n_values = self.n_patches() * self.patch_values(Frames::All);
        let mut values = reserved(n_values).map_err(no_memory)?;
        values.resize(n_values, 0.0);
        self.write(0..self.n_patches(), Frames::All, &mut values);
        Ok(Patches { rows: grid.rows, columns: grid.columns, values })
    }
}

/// Copies the first frame into the others.
fn repeat_frames(patch: &mut [f32], n_frames: usize, plane: usize, order: ValueOrder) {
    let frame = if order == ValueOrder::RowsChannelsLast { 3 * plane } else { plane };
    for group in patch.chunks_exact_mut(n_frames * frame) {
        for i in 1..n_frames {
            group.copy_within(..frame, i * frame);
        }
    }
}

fn no_memory(bytes: usize) -> LayoutError {
    LayoutError::OutOfMemory { bytes }
}
