//! Rows from the format of the source to that of the container.

use std::borrow::Cow;
use std::sync::mpsc::sync_channel;
use std::thread;

use moeflux_core::quant::{
    ErrorFeedback, MatrixFormat, MatrixView, QuantError, QuantiseError, QuantisedRows,
    feedback_rows, quantise_rows, quantise_rows_weighted,
};
use moeflux_core::threads::share_out;

use super::Rounding;

/// Elements that are quantised at once: what stays in a core's cache.
const BLOCK_ELEMENTS: usize = 64 << 10;

/// What the columns of a matrix multiply.
#[derive(Clone, Copy)]
pub(super) enum Inputs<'a> {
    /// Nothing is known of it.
    Unknown,
    /// How much each matters.
    Importance(&'a [f32]),
    /// How they depend on each other.
    ErrorFeedback(&'a ErrorFeedback),
}

/// Appends the rows of `view`, in `target` format, to `out`.
///
/// # Errors
/// Where an element cannot be quantised.
pub(super) fn convert_rows(
    view: &MatrixView<'_>,
    target: MatrixFormat,
    rounding: Rounding,
    inputs: Inputs<'_>,
    out: &mut QuantisedRows,
) -> Result<QuantError, QuantiseError> {
    let MatrixFormat::Affine(affine) = target else {
        append(view, out);
        return Ok(QuantError::default());
    };
    if view.format == target {
        append(view, out);
        return Ok(QuantError::default());
    }
    let mut error = QuantError::default();
    let rows_at_once = (BLOCK_ELEMENTS / view.cols).clamp(1, view.rows.max(1));
    let mut values = vec![0.0; rows_at_once * view.cols];
    let all_alike = vec![1.0; view.cols];
    for start in (0..view.rows).step_by(rows_at_once) {
        let n_rows = rows_at_once.min(view.rows - start);
        let values = &mut values[..n_rows * view.cols];
        decode_rows(view, start, values);
        let refuse = |err: QuantiseError| QuantiseError { idx: err.idx + start * view.cols, ..err };
        let quantised = match (rounding, inputs) {
            (Rounding::Nearest, _) => quantise_rows(values, affine, out),
            (Rounding::Fitted, Inputs::Unknown) => {
                quantise_rows_weighted(values, affine, &all_alike, out)
            }
            (Rounding::Fitted, Inputs::Importance(importance)) => {
                quantise_rows_weighted(values, affine, importance, out)
            }
            (Rounding::Fitted, Inputs::ErrorFeedback(feedback)) => {
                feedback_rows(values, affine, feedback, out)
            }
        };
        error.add(quantised.map_err(refuse)?);
    }
    Ok(error)
}

fn decode_rows(view: &MatrixView<'_>, start: usize, out: &mut [f32]) {
    if let MatrixFormat::Dense(float) = view.format {
        let bytes = &view.weight[start * view.cols * float.bytes()..];
        return float.decode(&bytes[..out.len() * float.bytes()], out);
    }
    for (i, row) in out.chunks_exact_mut(view.cols).enumerate() {
        view.decode_row(start + i, row);
    }
}

fn append(view: &MatrixView<'_>, out: &mut QuantisedRows) {
    out.weight.extend_from_slice(view.weight);
    out.scales.extend_from_slice(view.scales);
    out.biases.extend_from_slice(view.biases);
}

/// Converts rows on several threads; the bytes do not depend on how many.
pub(super) fn convert_rows_on(
    n_threads: usize,
    view: &MatrixView<'_>,
    target: MatrixFormat,
    rounding: Rounding,
) -> Result<(QuantisedRows, QuantError), QuantiseError> {
    let n_rows = view.rows.div_ceil(n_threads).max(1);
    let starts: Vec<usize> = (0..view.rows).step_by(n_rows).collect();
    let convert = |start: usize| {
        let part = view.slice_rows(start, n_rows.min(view.rows - start));
        let mut out = QuantisedRows::default();
        let refuse = |err: QuantiseError| QuantiseError { idx: err.idx + start * view.cols, ..err };
        convert_rows(&part, target, rounding, Inputs::Unknown, &mut out)
            .map(|error| (out, error))
            .map_err(refuse)
    };
    let parts = on_threads(&starts, |start| convert(*start));
    let (mut rows, mut error) = (QuantisedRows::default(), QuantError::default());
    for part in parts {
        let (mut part, part_error) = part?;
        rows.weight.append(&mut part.weight);
        rows.scales.append(&mut part.scales);
        rows.biases.append(&mut part.biases);
        error.add(part_error);
    }
    Ok((rows, error))
}

/// Runs `work` on each item, one thread an item; results in the items' order.
pub(super) fn on_threads<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    share_out(items.len(), items.iter().collect(), work)
}

/// Runs `work` on `0..n_items` on several threads while `take` gets the results,
/// in order, on this one; a thread is at most two results ahead.
pub(super) fn in_order<R: Send, E>(
    n_threads: usize,
    n_items: usize,
    work: impl Fn(usize) -> R + Sync,
    mut take: impl FnMut(R) -> Result<(), E>,
) -> Result<(), E> {
    let n_threads = n_threads.clamp(1, n_items.max(1));
    thread::scope(|scope| {
        let work = &work;
        let start = |first: usize| {
            let (sender, results) = sync_channel(1);
            let mut items = (first..n_items).step_by(n_threads);
            // `send` fails once the receiver is dropped, after `take` failed: the thread ends.
            let run = move || items.all(|item| sender.send(work(item)).is_ok());
            let thread = thread::Builder::new().spawn_scoped(scope, run).ok()?;
            Some((thread, results))
        };
        // What belongs to a thread that the system does not start is done by this one.
        let mut threads: Vec<_> = (0..n_threads).map(start).collect();
        for item in 0..n_items {
            let thread = &mut threads[item % n_threads];
            let received = thread.as_ref().map(|(_, results)| results.recv());
            match received {
                None => take(work(item))?,
                Some(Ok(result)) => take(result)?,
                Some(Err(_)) => {
                    let (thread, _) = thread.take().expect("taken once, when it panicked");
                    std::panic::resume_unwind(thread.join().expect_err("it sent too little"));
                }
            }
        }
        Ok(())
    })
}

/// The format of a matrix whose outputs come before its inputs.
pub(super) fn plain_format(format: MatrixFormat) -> MatrixFormat {
    match format {
        MatrixFormat::Transposed(float) => MatrixFormat::Dense(float),
        other => other,
    }
}

/// A matrix whose rows lie one after another.
pub(super) struct PlainMatrix<'a> {
    rows: usize,
    cols: usize,
    format: MatrixFormat,
    weight: Cow<'a, [u8]>,
    scales: Cow<'a, [u8]>,
    biases: Cow<'a, [u8]>,
}

impl<'a> PlainMatrix<'a> {
    /// All rows of a matrix.
    pub(super) fn whole(view: &MatrixView<'a>) -> PlainMatrix<'a> {
        if let MatrixFormat::Transposed(_) = view.format {
            return Self::of_rows(view, 0..view.rows);
        }
        PlainMatrix {
            rows: view.rows,
            cols: view.cols,
            format: view.format,
            weight: Cow::Borrowed(view.weight),
            scales: Cow::Borrowed(view.scales),
            biases: Cow::Borrowed(view.biases),
        }
    }

    /// Some rows.
    pub(super) fn of_rows(
        view: &MatrixView<'a>,
        rows: impl Iterator<Item = usize> + Clone,
    ) -> PlainMatrix<'a> {
        assert!(!matches!(view.format, MatrixFormat::Blocks(_)), "rows that share scales");
        let mut out = QuantisedRows::default();
        if let MatrixFormat::Transposed(float) = view.format {
            let size = float.bytes();
            for row in rows.clone() {
                for col in 0..view.cols {
                    let at = (col * view.rows + row) * size;
                    out.weight.extend_from_slice(&view.weight[at..at + size]);
                }
            }
        } else {
            rows.clone().for_each(|row| append(&view.slice_rows(row, 1), &mut out));
        }
        PlainMatrix {
            rows: rows.count(),
            cols: view.cols,
            format: plain_format(view.format),
            weight: Cow::Owned(out.weight),
            scales: Cow::Owned(out.scales),
            biases: Cow::Owned(out.biases),
        }
    }

    pub(super) fn view(&self) -> MatrixView<'_> {
        MatrixView {
            rows: self.rows,
            cols: self.cols,
            format: self.format,
            weight: &self.weight,
            scales: &self.scales,
            biases: &self.biases,
        }
    }
}

/// How far a row of the container may be from the source's, as a relative
/// root mean square, before it cannot be the same row.
fn tolerance(source: MatrixFormat, target: MatrixFormat) -> f64 {
    match target {
        MatrixFormat::Affine(affine) if source != target => {
            // A group may hold one large element, and its step follows that.
            let levels = f64::from((1u32 << affine.bits) - 1);
            ((affine.group_size as f64).sqrt() / levels + 0.02).min(0.9)
        }
        _ => 0.0,
    }
}

/// Whether the first, a middle and the last row of two matrices are the same
/// but for rounding.
pub(super) fn agrees(source: &MatrixView<'_>, written: &MatrixView<'_>) -> bool {
    let limit = tolerance(source.format, written.format);
    let (mut a, mut b) = (vec![0.0; source.cols], vec![0.0; source.cols]);
    [0, source.rows / 2, source.rows - 1].iter().all(|row| {
        source.decode_row(*row, &mut a);
        written.decode_row(*row, &mut b);
        let mut error = QuantError::default();
        for (a, b) in a.iter().zip(&b) {
            error.signal += f64::from(*a).powi(2);
            error.noise += (f64::from(*a) - f64::from(*b)).powi(2);
        }
        // Not a number is its own kind of disagreement, unless copied.
        error.relative_rms() <= limit || a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits())
    })
}

#[cfg(test)]
mod tests {
    use moeflux_core::quant::{Affine, Float, MicroScaled};

    use super::*;

    fn dense(rows: usize, cols: usize) -> Vec<u8> {
        let value = |i: usize| ((i * 7919) % 1000) as f32 / 500.0 - 1.0;
        (0..rows * cols).flat_map(|i| value(i).to_le_bytes()).collect()
    }

    fn view(bytes: &[u8], rows: usize, cols: usize) -> MatrixView<'_> {
        let format = MatrixFormat::Dense(Float::F32);
        MatrixView { rows, cols, format, weight: bytes, scales: &[], biases: &[] }
    }

    const FITTED: Rounding = Rounding::Fitted;
    const TARGET: Affine = Affine::new(4, 64, Float::BF16);

    #[test]
    fn bytes_do_not_depend_on_the_number_of_threads() {
        let bytes = dense(13, 128);
        let view = view(&bytes, 13, 128);
        let target = MatrixFormat::Affine(TARGET);
        let (one, _) = convert_rows_on(1, &view, target, FITTED).unwrap();
        for n_threads in [2, 3, 8, 20] {
            assert_eq!(
                convert_rows_on(n_threads, &view, target, FITTED).unwrap().0,
                one,
                "{n_threads}"
            );
        }
        assert!(agrees(&view, &one.view(128, TARGET)));
    }

    #[test]
    fn every_other_row_of_any_format_is_what_it_was() {
        let bytes = dense(12, 64);
        let scales: Vec<u8> = (100..124).collect();
        let micro = MatrixFormat::Micro(MicroScaled::MXFP4);
        let views = [
            view(&bytes, 12, 64),
            MatrixView { format: MatrixFormat::Transposed(Float::F32), ..view(&bytes, 12, 64) },
            MatrixView {
                format: micro,
                weight: &bytes[..12 * 32],
                scales: &scales,
                ..view(&bytes, 12, 64)
            },
        ];
        for view in views {
            view.assert_sizes();
            for (step, first) in [(1, 0), (2, 0), (2, 1)] {
                let part = PlainMatrix::of_rows(&view, (first..12).step_by(step));
                let part = part.view();
                part.assert_sizes();
                assert_eq!(part.rows, 12 / step);
                let (mut a, mut b) = ([0.0; 64], [0.0; 64]);
                for row in 0..part.rows {
                    view.decode_row(first + row * step, &mut a);
                    part.decode_row(row, &mut b);
                    assert_eq!(a, b, "{:?} row {row} of {step}", view.format);
                }
            }
        }
    }

    #[test]
    fn results_come_in_order_until_one_is_refused() {
        for n_threads in [1, 2, 3, 9] {
            let mut taken = Vec::new();
            let done = in_order(
                n_threads,
                7,
                |i| i * i,
                |square| {
                    taken.push(square);
                    Ok::<(), ()>(())
                },
            );
            assert_eq!((done, taken), (Ok(()), vec![0, 1, 4, 9, 16, 25, 36]));
            let mut n_taken = 0;
            let refuse = |i| {
                n_taken += usize::from(i != 3);
                if i == 3 { Err(i) } else { Ok(()) }
            };
            assert_eq!(in_order(n_threads, 1000, |i| i, refuse), Err(3));
            assert_eq!(n_taken, 3);
        }
        assert_eq!(in_order(2, 0, |i| i, Err), Ok(()));
    }

    #[test]
    #[should_panic(expected = "the fifth")]
    fn a_panic_reaches_the_caller() {
        let work = |i| assert!(i != 4, "the fifth");
        let _ = in_order(2, 9, work, |()| Ok::<(), ()>(()));
    }

    #[test]
    fn tells_another_row_from_rounding() {
        let bytes = dense(3, 128);
        let view = view(&bytes, 3, 128);
        let (mut rows, _) =
            convert_rows_on(1, &view, MatrixFormat::Affine(TARGET), FITTED).unwrap();
        rows.weight.rotate_left(4);
        assert!(!agrees(&view, &rows.view(128, TARGET)));
    }

    #[test]
    fn names_the_element_that_cannot_be_quantised() {
        let mut bytes = dense(13, 128);
        bytes[(9 * 128 + 5) * 4..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
        let got = convert_rows_on(2, &view(&bytes, 13, 128), MatrixFormat::Affine(TARGET), FITTED);
        assert_eq!(got.unwrap_err().idx, 9 * 128 + 5);
    }
}
