//! What the head says of a row: logits, or the likeliest token alone.

use moeflux_backend::{Ahead, Cols, DeviceError, Weight};
use moeflux_core::TokenId;

use super::products::{FEW_ROWS, Products, Source, jobs_of, run};
use super::rounding::digits;
use super::{floats, word};
use crate::ahead;
use crate::backend::Wgpu;
use crate::encoder::{Grid, Mem};
use crate::shader::{Shader, Variant};

/// Bytes of logits that are read back together.
const LOGIT_BYTES: usize = 32 << 20;

/// Logits of a lane of `likeliest.wgsl`.
const PER_LANE: usize = 16;

/// Keys of minus infinity, and of whatever is damaged: see `likeliest.wgsl`.
const NEVER: u32 = 0x007f_ffff;
const DAMAGED: u32 = u32::MAX;

pub(crate) fn logits(
    b: &mut Wgpu,
    rows: &[usize],
    (x, head): (Cols, Weight),
    mut ahead: Option<Ahead<'_>>,
) -> Result<Vec<f32>, DeviceError> {
    let vocab = b.matrix(head).rows;
    let n_rows = rows.iter().max().map_or(0, |it| it + 1);
    let per_part = (LOGIT_BYTES / (4 * vocab.max(1))).max(1);
    let mut all = Vec::new();
    // Which kernel runs depends on all rows, and so do the bits.
    let is_few = rows.len() <= FEW_ROWS;
    let per_part = if is_few { per_part.min(FEW_ROWS) } else { per_part.max(FEW_ROWS + 1) };
    let mut rest = rows;
    while !rest.is_empty() {
        let (part, behind) = rest.split_at(per_part.min(rest.len()));
        rest = behind;
        let y = multiply(b, part, (x, n_rows), head);
        let bytes = 4 * (part.len() * vocab) as u64;
        let ahead = ahead.take_if(|_| rest.is_empty());
        let logits = read(b, (&y, bytes), ahead, floats)?;
        if all.is_empty() {
            all = logits;
        } else {
            all.extend(logits);
        }
    }
    Ok(all)
}

/// Computes the logits of some of so many rows.
fn multiply(b: &mut Wgpu, rows: &[usize], (x, n_rows): (Cols, usize), head: Weight) -> Mem {
    b.encoder.begin();
    let matrix = b.matrix(head).clone();
    let source = Source::of(b, x, n_rows);
    let y = b.scratch.logits.words(&mut b.encoder, rows.len() * matrix.rows);
    let lists = [rows.iter().enumerate().map(|(i, row)| (*row, i * matrix.rows)).collect()];
    let jobs = jobs_of(&matrix, 0, 0).collect();
    let (decoder, digits) = (matrix.decoder, digits(matrix.decoder, matrix.inputs));
    let products = Products { decoder, digits, lists: &lists, jobs, y: y.clone(), chosen: None };
    run(b, &source, products);
    y
}

pub(crate) fn likeliest(
    b: &mut Wgpu,
    row: usize,
    (x, head): (Cols, Weight),
    ahead: Option<Ahead<'_>>,
) -> Result<Option<TokenId>, DeviceError> {
    let vocab = b.matrix(head).rows;
    let y = multiply(b, &[row], (x, row + 1), head);
    let n_groups = vocab.div_ceil(PER_LANE * b.encoder.context().lanes as usize);
    let best = b.scratch.likeliest.words(&mut b.encoder, 2 * n_groups);
    b.encoder.dispatch(
        Variant::new(Shader::Likeliest, &[word(PER_LANE)]),
        &[word(vocab)],
        &[&y, &best],
        Grid::Linear(n_groups),
    );
    read(b, (&best, 8 * n_groups as u64), ahead, best_of)
}

/// Reads back what is the last of a step; the next one may be recorded meanwhile.
fn read<T>(
    b: &mut Wgpu,
    (mem, bytes): (&Mem, u64),
    next: Option<Ahead<'_>>,
    of: impl FnOnce(&[u8]) -> T,
) -> Result<T, DeviceError> {
    let asked = b.encoder.ask(&[(mem, 0, bytes)])?;
    if let Some(next) = next {
        ahead::record(b, next);
    }
    b.encoder.answer(asked, of)
}

/// The best of the best of workgroups, of equal ones the first; nothing where logits
/// are damaged, or all of them minus infinity.
fn best_of(bytes: &[u8]) -> Option<TokenId> {
    let pair = |it: &[u8; 8]| {
        let both = u64::from_le_bytes(*it);
        (both as u32, (both >> 32) as u32)
    };
    let all = bytes.as_chunks::<8>().0.iter().map(pair);
    let best = |best: (u32, u32), it: (u32, u32)| if it.0 > best.0 { it } else { best };
    let (key, token) = all.fold((0, 0), best);
    (key > NEVER && key != DAMAGED).then_some(TokenId(token))
}
