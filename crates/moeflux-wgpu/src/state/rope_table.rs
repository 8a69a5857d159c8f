//! Sines and cosines of positions on the device.

use moeflux_backend::{RopeSpec, Span};

use crate::commands::encoder::Encoder;
use crate::device::buffer::Mem;

/// Batches whose tables are kept: a tower rotates the chunks of a picture in turns, block after block.
const KEPT: usize = 16;

/// Words from which a table has a buffer of its own: it would come along with every batch of commands. Few
/// in tests, so that these see both.
const LARGE: usize = if cfg!(test) { 1 << 10 } else { 1 << 15 };

/// Rotary frequencies, and tables of the last batches.
#[derive(Debug)]
pub(crate) struct RopeTables {
    pub(crate) spec: RopeSpec,
    /// The last one used comes last.
    tables: Vec<RopeTable>,
}

/// The table of a batch.
#[derive(Debug)]
pub(crate) struct RopeTable {
    spans: Vec<Span>,
    /// `(rows, pairs)`: sine and cosine, as bits.
    words: Vec<u32>,
    /// Where the table is in the arena, during that submission.
    place: Option<(u64, u32)>,
    buffer: Option<Mem>,
}

impl RopeTables {
    pub(crate) fn new(spec: RopeSpec) -> RopeTables {
        RopeTables { spec, tables: Vec::new() }
    }

    pub(crate) fn n_pairs(&self) -> usize {
        self.spec.inv_freq.len()
    }

    /// The table of `spans`.
    pub(crate) fn of(&mut self, spans: &[Span]) -> &mut RopeTable {
        let place = self.tables.iter().rposition(|table| table.spans == spans);
        let table = match place {
            Some(place) => self.tables.remove(place),
            None => {
                if self.tables.len() == KEPT {
                    self.tables.remove(0);
                }
                let words = words(&self.spec, spans);
                RopeTable { spans: spans.to_vec(), words, place: None, buffer: None }
            }
        };
        self.tables.push(table);
        self.tables.last_mut().expect("one was pushed")
    }
}

impl RopeTable {
    /// Where the table is in the arena, into which it goes where it is not there; valid for the op that has
    /// begun.
    pub(crate) fn place(&mut self, encoder: &mut Encoder) -> u32 {
        let generation = encoder.generation();
        let place = match self.place {
            Some((since, place)) if since == generation => place,
            _ => encoder.list(&self.words),
        };
        self.place = Some((generation, place));
        place
    }

    /// The buffer of a large table.
    pub(crate) fn buffer(&mut self, encoder: &mut Encoder) -> Option<Mem> {
        if self.words.len() < LARGE {
            return None;
        }
        if self.buffer.is_some() {
            return self.buffer.clone();
        }
        let bytes = bytemuck::cast_slice(&self.words);
        let buffer = encoder.buffers.lasting_storage(bytes.len() as u64, "rotary table");
        encoder.write(&buffer, 0, bytes);
        // Without memory nothing was written, which must not be found by a later step.
        self.buffer = (!encoder.buffers.is_out_of_memory()).then(|| buffer.clone());
        Some(buffer)
    }
}

/// Angles are reduced in double precision, which devices need not have.
fn words(spec: &RopeSpec, spans: &[Span]) -> Vec<u32> {
    let positions = spans.iter().flat_map(Span::rotary_positions);
    let angles = positions.flat_map(|position| spec.angles(position));
    let words = angles.flat_map(|angle| {
        let (sin, cos) = f64::from(angle).sin_cos();
        [sin, cos].map(|value| (value as f32 * spec.scale).to_bits())
    });
    words.collect()
}
