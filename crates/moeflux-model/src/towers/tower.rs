//! A tower: its parts one after the other.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use moeflux_backend::{
    Backend, CacheSpec, Cols, DeviceError, KvType, RotaryPositions, RowPosition, Sequence, Span,
};

use super::block::{Block, BlockPlan, Chunk, Scratch};
use super::end::{End, EndPlan, Rows};
use super::input::{Input, Picture, Source};
use super::positions::{Grid, Order, Table, TablePlan};
use super::rope::{AxialRope, RopePlan};
use super::stem::{Stem, StemPlan};
use crate::load::LoadError;
use crate::model::Build;

/// What a tower makes of a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Rows of the prompt, [`Tower::hidden`] floats each.
    pub rows: Vec<f32>,
    /// What is added to these rows after each of the first layers of the text, as many floats.
    pub deepstack: Vec<Vec<f32>>,
}

/// What a tower is built from.
#[derive(Clone, Debug)]
pub(crate) struct TowerPlan {
    /// The order in which pictures number their patches. Rows of the tower are in squares of those that it
    /// merges.
    pub(crate) order: Order,
    pub(crate) stem: StemPlan,
    pub(crate) table: Option<TablePlan>,
    pub(crate) rope: RopePlan,
    pub(crate) n_blocks: usize,
    /// What stands before the number of a block.
    pub(crate) blocks: &'static str,
    pub(crate) block: BlockPlan,
    pub(crate) end: EndPlan,
}

/// A vision tower, loaded. It drives a backend of its own.
#[derive(Debug)]
pub struct Tower {
    plan: TowerPlan,
    /// Rows of a chunk, whole squares.
    max_rows: usize,
    stem: Stem,
    table: Option<Table>,
    rope: AxialRope,
    blocks: Vec<Block>,
    end: End,
    patches: Cols,
    input: Input,
    scratch: Scratch,
    /// Buffers of the rows and the queries of chunks, of pictures so far.
    chunks: Vec<[Cols; 2]>,
}

impl Tower {
    /// Loads a tower, whose buffers have the rows of `build`.
    ///
    /// # Errors
    /// Where a tensor is missing, misshapen or unreadable.
    pub(crate) fn load(plan: TowerPlan, build: &mut Build<'_>) -> Result<Tower, LoadError> {
        let width = plan.block.width;
        let stem = Stem::load(&plan.stem, width, build.weights)?;
        let table = plan.table.map(|table| Table::load(table, width, build.weights)).transpose()?;
        let head_dim = plan.block.attention.head_dim;
        let rope = AxialRope::load(plan.rope, head_dim, build.backend());
        let blocks = (0..plan.n_blocks).map(|i| {
            let name = format!("{}.{i}", plan.blocks);
            Block::load(&plan.block, &name, build.weights)
        });
        let blocks = blocks.collect::<Result<_, _>>()?;
        let end = End::load(&plan.end, width, build)?;
        let patches = build.cols(plan.stem.inputs);
        let scratch = Scratch::new(&plan.block, build);
        let input = Input::new(plan.stem.inputs, width);
        let merged = plan.end.merge() * plan.end.merge();
        let max_rows = build.max_rows / merged * merged;
        Ok(Tower {
            plan,
            max_rows,
            stem,
            table,
            rope,
            blocks,
            end,
            patches,
            input,
            scratch,
            chunks: Vec::new(),
        })
    }

    /// Numbers of a patch.
    pub fn patch_len(&self) -> usize {
        self.plan.stem.inputs
    }

    /// Patches of a side of a square that becomes a row of the prompt.
    pub fn merge(&self) -> usize {
        self.plan.end.merge()
    }

    /// Floats of a row of the prompt.
    pub fn hidden(&self) -> usize {
        self.plan.end.hidden()
    }

    /// Layers of the text to which rows are added.
    pub fn n_deepstack(&self) -> usize {
        self.end.n_deepstack()
    }

    /// Whether a grid is one of whole squares that the tower has places for.
    pub fn takes(&self, grid: Grid) -> bool {
        let merge = self.merge();
        let are_whole = grid.rows.is_multiple_of(merge) && grid.columns.is_multiple_of(merge);
        let are_places = self.table.as_ref().is_none_or(|table| table.fits(grid));
        !grid.is_empty() && are_whole && are_places
    }

    /// Looks at a picture. `progress` is called before every block with the number of blocks done and
    /// of all, and may end the work; then there is no result.
    ///
    /// # Errors
    /// A failure of the device.
    ///
    /// # Panics
    /// Where the tower does not [take](Tower::takes) the grid, and where buffers have fewer rows than a square
    /// that becomes a row of the prompt.
    pub fn look(
        &mut self,
        picture: Picture<'_>,
        backend: &mut dyn Backend,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Option<Seen>, DeviceError> {
        assert!(self.takes(picture.grid), "a grid of whole squares");
        assert!(self.max_rows > 0, "buffers have the rows of a square");
        let attention = self.plan.block.attention;
        let (n_heads, dim) = (attention.n_heads, attention.head_dim);
        let sequence = backend.new_sequence(&[CacheSpec::Pages {
            n_heads,
            k_dim: dim,
            v_dim: dim,
            dtype: KvType::F32,
            window: None,
        }]);
        let seen = self.look_with(picture, sequence, backend, progress);
        backend.drop_sequence(sequence);
        seen
    }

    fn look_with(
        &mut self,
        picture: Picture<'_>,
        sequence: Sequence,
        backend: &mut dyn Backend,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Option<Seen>, DeviceError> {
        let chunks = self.begin(picture, sequence, backend);
        let Tower { plan, scratch, .. } = &*self;
        let rows = Rows { chunks: &chunks, scratch };
        let mut deepstack = Vec::new();
        for (i, block) in self.blocks.iter().enumerate() {
            if progress(i, self.blocks.len()).is_break() {
                return Ok(None);
            }
            backend.truncate_sequence(sequence, 0);
            for chunk in &chunks {
                block.prepare(&plan.block, backend, chunk, scratch, &self.rope);
            }
            for chunk in &chunks {
                block.run(&plan.block, backend, chunk, scratch);
            }
            deepstack.extend(self.end.after_block(i, &rows, backend)?);
        }
        Ok(Some(Seen { rows: self.end.run(&rows, backend)?, deepstack }))
    }

    /// Writes the rows of a picture's patches, chunk by chunk.
    fn begin(
        &mut self,
        picture: Picture<'_>,
        sequence: Sequence,
        backend: &mut dyn Backend,
    ) -> Vec<Chunk> {
        let n_patches = picture.grid.len();
        let n_chunks = n_patches.div_ceil(self.max_rows);
        self.allocate(n_chunks, backend);
        let rows = self.order();
        let source = Source {
            picture,
            order: self.plan.order,
            rows,
            stem: &self.stem,
            table: self.table.as_ref().map(|table| table.on(picture.grid)),
        };
        let mut chunks = Vec::new();
        for (nth, first) in (0..n_patches).step_by(self.max_rows).enumerate() {
            let its = first..n_patches.min(first + self.max_rows);
            let [hidden, queries] = self.chunks[nth];
            let (numbers, places) = self.input.prepare(&source, its.clone());
            backend.write(self.patches.buf, numbers);
            self.stem.run(backend, its.len(), self.patches, hidden);
            if let Some(places) = places {
                backend.write(self.scratch.given.buf, places);
                backend.add(its.len(), hidden, self.scratch.given);
            }
            chunks.push(Chunk { hidden, queries, span: span(sequence, picture.grid, rows, its) });
        }
        chunks
    }

    /// Allocates buffers for that many chunks, where there are not as many.
    fn allocate(&mut self, n_chunks: usize, backend: &mut dyn Backend) {
        let heads = self.plan.block.attention.n_heads * self.plan.block.attention.head_dim;
        while self.chunks.len() < n_chunks {
            let lens = [self.plan.block.width, heads];
            let buffers =
                lens.map(|len| Cols { buf: backend.alloc(self.max_rows, len), start: 0, len });
            self.chunks.push(buffers);
        }
    }

    /// The order of the rows of blocks.
    fn order(&self) -> Order {
        Order::Squares { merge: self.merge() }
    }
}

fn span(sequence: Sequence, grid: Grid, order: Order, its: Range<usize>) -> Span {
    let position = |nth: usize| {
        let [row, column] = order.place(grid, nth);
        let part = |at: usize| u32::try_from(at).expect("a grid of 32 bits");
        RowPosition { temporal: 0, height: part(row), width: part(column) }
    };
    let positions: Arc<[RowPosition]> = its.clone().map(position).collect();
    Span {
        rotary: RotaryPositions::Each(positions),
        ahead_to: grid.len(),
        ..Span::new(sequence, 0..its.len(), its.start)
    }
}
