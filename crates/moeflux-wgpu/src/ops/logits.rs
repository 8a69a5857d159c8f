//! What the head says of rows: logits, or the highest of them alone.

use std::mem;

use moeflux_backend::{Buf, Cols, DeviceError, LogitsExtras, TokenLogit, Weight};
use moeflux_core::TokenId;

use crate::commands::grid::Grid;
use crate::commands::read::{begin_read, finish_read};
use crate::device::buffer::{Mem, MemRange};
use crate::kernels::basic::{TopLogitsMerge, TopLogitsPartial};
use crate::ops::matmul::jobs::{FEW_ROWS, jobs_of};
use crate::ops::matmul::products::{Products, run};
use crate::ops::matmul::source::Source;
use crate::state::gpu::{Activations, Wgpu};
use crate::state::prerecorded;
use crate::state::quantized_inputs::activation_quant;
use crate::words::{floats, word};

/// Bytes of logits that are read back together.
const LOGIT_BYTES: usize = 32 << 20;

/// Logits of a lane of `logits/top_logits_partial.wgsl`.
const PER_LANE: usize = 16;

/// Most of the highest logits that are found on the device: the 64 of the samplers that models
/// recommend, and some that are ruled out.
const MOST_TOP_LOGITS: usize = 80;

/// Keys of minus infinity, and of whatever is damaged: see `logits/top_logits_partial.wgsl`.
const NEVER: u32 = 0x007f_ffff;
const DAMAGED: u32 = u32::MAX;

pub(crate) fn logits(
    b: &mut Wgpu,
    rows: &[usize],
    x: Cols,
    head: Weight,
    mut extras: LogitsExtras<'_>,
) -> Result<Vec<f32>, DeviceError> {
    let vocab = b.matrix(head).rows;
    let n_rows = n_rows(rows);
    let mut all = Vec::new();
    for (part, is_last) in parts(rows, vocab) {
        let y = multiply(b, part, n_rows, x, head);
        let bytes = 4 * (part.len() * vocab) as u64;
        let extras = Extras::of_part(x.buf, &mut extras, is_last);
        let logits = read(b, y.range(0, bytes), extras, floats)?;
        if all.is_empty() {
            all = logits;
        } else {
            all.extend(logits);
        }
    }
    Ok(all)
}

fn n_rows(rows: &[usize]) -> usize {
    rows.iter().max().map_or(0, |row| row + 1)
}

/// Rows whose logits are computed together, and whether they are the last.
fn parts(rows: &[usize], vocab: usize) -> impl Iterator<Item = (&[usize], bool)> {
    let fit = (LOGIT_BYTES / (4 * vocab.max(1))).max(1);
    // Which kernel runs depends on all rows, and so do the bits.
    let is_few = rows.len() <= FEW_ROWS;
    let per_part = if is_few { fit.min(FEW_ROWS) } else { fit.max(FEW_ROWS + 1) };
    let n = rows.len().div_ceil(per_part);
    rows.chunks(per_part).enumerate().map(move |(i, rows)| (rows, i + 1 == n))
}

/// Computes the logits of some of `n_rows` rows.
fn multiply(b: &mut Wgpu, rows: &[usize], n_rows: usize, x: Cols, head: Weight) -> Mem {
    b.encoder.begin();
    let matrix = b.matrix(head).clone();
    let source = Source::of(b, x, n_rows);
    let y = b.scratch.logits.words(&mut b.encoder, rows.len() * matrix.rows);
    let lists = [rows.iter().enumerate().map(|(i, row)| (*row, i * matrix.rows)).collect()];
    let jobs = jobs_of(&matrix, 0, 0).collect();
    let (decoder, quant) = (matrix.decoder, activation_quant(matrix.decoder, matrix.inputs));
    let (chosen, most_few) = (None, FEW_ROWS);
    let products = Products { decoder, quant, lists: &lists, jobs, y: y.clone(), chosen, most_few };
    run(b, &source, products);
    y
}

pub(crate) fn top_logits(
    b: &mut Wgpu,
    rows: &[usize],
    n: usize,
    x: Cols,
    head: Weight,
    mut extras: LogitsExtras<'_>,
) -> Result<Option<Vec<Vec<TokenLogit>>>, DeviceError> {
    if !(1..=MOST_TOP_LOGITS).contains(&n) {
        return Ok(None);
    }
    let vocab = b.matrix(head).rows;
    let n_rows = n_rows(rows);
    let mut all = Some(Vec::new());
    for (part, is_last) in parts(rows, vocab) {
        let y = multiply(b, part, n_rows, x, head);
        let logits = groups(b, y, part.len(), vocab);
        let extras = Extras::of_part(x.buf, &mut extras, is_last);
        let found = match n {
            1 => likeliest(b, &logits, extras)?,
            _ => highest(b, &logits, n, extras)?,
        };
        all = all.zip(found).map(|(all, found)| [all, found].concat());
    }
    Ok(all)
}

/// Logits, and the best token of each group of a row.
struct GroupedLogits {
    y: Mem,
    n_rows: usize,
    vocab: usize,
    best: Mem,
    /// Groups of a row, and tokens of a group.
    n: usize,
    len: usize,
}

fn groups(b: &mut Wgpu, y: Mem, n_rows: usize, vocab: usize) -> GroupedLogits {
    let len = PER_LANE * b.encoder.context().lanes as usize;
    let n = vocab.div_ceil(len);
    let best = b.scratch.likeliest[0].words(&mut b.encoder, 2 * n_rows * n);
    b.encoder.dispatch(
        TopLogitsPartial { per_lane: word(PER_LANE) },
        &[word(vocab), word(n), word(n_rows * n)],
        &[&y, &best],
        Grid::Linear(n_rows * n),
    );
    GroupedLogits { y, n_rows, vocab, best, n, len }
}

/// The likeliest token of each row.
fn likeliest(
    b: &mut Wgpu,
    logits: &GroupedLogits,
    extras: Extras<'_>,
) -> Result<Option<Vec<Vec<TokenLogit>>>, DeviceError> {
    let row_bytes = 8 * logits.n;
    read(b, logits.best.range(0, (row_bytes * logits.n_rows) as u64), extras, |bytes| {
        bytes.chunks_exact(row_bytes).map(|row| best_of(row).map(|best| vec![best])).collect()
    })
}

/// The `n` highest logits of each row, out of the groups that have them.
fn highest(
    b: &mut Wgpu,
    logits: &GroupedLogits,
    n: usize,
    extras: Extras<'_>,
) -> Result<Option<Vec<Vec<TokenLogit>>>, DeviceError> {
    let GroupedLogits { y, n_rows, vocab, best, n: n_groups, len } = logits;
    let row_words = n * (1 + len);
    let leading = b.scratch.likeliest[1].words(&mut b.encoder, n_rows * row_words);
    b.encoder.dispatch(
        TopLogitsMerge { most: word(MOST_TOP_LOGITS) },
        &[*vocab, *n_groups, *len, n, *n_rows].map(word),
        &[y, best, &leading],
        Grid::Linear(*n_rows),
    );
    read(b, leading.range(0, 4 * (n_rows * row_words) as u64), extras, |bytes| {
        let words = bytes.as_chunks::<4>().0;
        words.chunks_exact(row_words).map(|row| first_of(row, *len, n)).collect()
    })
}

/// What is wanted in addition to an answer.
struct Extras<'a> {
    /// The hidden states.
    states: Buf,
    wanted: LogitsExtras<'a>,
}

impl<'a> Extras<'a> {
    /// All of it with the last part of the answer.
    fn of_part(states: Buf, extras: &mut LogitsExtras<'a>, is_last: bool) -> Extras<'a> {
        let wanted = if is_last { mem::take(extras) } else { LogitsExtras::default() };
        Extras { states, wanted }
    }
}

/// Reads back what is the last of a step, and what is wanted in addition to it.
fn read<T>(
    b: &mut Wgpu,
    answer: MemRange<'_>,
    Extras { states, wanted }: Extras<'_>,
    of: impl FnOnce(&[u8]) -> T,
) -> Result<T, DeviceError> {
    let Activations { mem: states, width, .. } = b.buf(states).clone();
    let more = 4 * (width * wanted.hidden_rows.as_ref().map_or(0, |rows| rows.n)) as u64;
    let asked = begin_read(&mut b.encoder, &[answer, states.range(0, more)])?;
    if let Some(step) = wanted.next_step {
        prerecorded::record(b, step);
    }
    finish_read(&mut b.encoder, asked, |all| {
        let (answer, more) = all.split_at(answer.bytes as usize);
        if let Some(hidden) = wanted.hidden_rows {
            *hidden.into = floats(more);
        }
        of(answer)
    })
}

/// The best of the best of groups, of equal ones the first; nothing where logits are
/// damaged, or all of them minus infinity.
fn best_of(bytes: &[u8]) -> Option<TokenLogit> {
    let pair = |bytes: &[u8; 8]| {
        let both = u64::from_le_bytes(*bytes);
        (both as u32, (both >> 32) as u32)
    };
    let all = bytes.as_chunks::<8>().0.iter().map(pair);
    let best = |best: (u32, u32), next: (u32, u32)| if next.0 > best.0 { next } else { best };
    let (key, token) = all.fold((0, 0), best);
    let is_negative = key >> 31 == 0;
    let logit = f32::from_bits(if is_negative { !key } else { key ^ (1 << 31) });
    (key > NEVER && key != DAMAGED).then_some(TokenLogit { token: TokenId(token), logit })
}

/// The `n` highest of some groups of logits, in order; nothing where they are damaged,
/// or all of them minus infinity.
fn first_of(words: &[[u8; 4]], per_group: usize, n: usize) -> Option<Vec<TokenLogit>> {
    let mut top = Vec::new();
    for group in words.chunks_exact(1 + per_group) {
        let first = u32::from_le_bytes(group[0]).wrapping_mul(per_group as u32);
        for (i, bytes) in (0..).zip(&group[1..]) {
            let logit = f32::from_le_bytes(*bytes);
            if logit.is_nan() || logit == f32::INFINITY {
                return None;
            }
            if logit > f32::NEG_INFINITY {
                top.push(TokenLogit { token: TokenId(first.wrapping_add(i)), logit });
            }
        }
    }
    if n < top.len() {
        top.select_nth_unstable_by(n, TokenLogit::order);
        top.truncate(n);
    }
    top.sort_unstable_by(TokenLogit::order);
    (!top.is_empty()).then_some(top)
}
