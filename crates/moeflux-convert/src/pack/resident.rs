//! The file of resident tensors: safetensors, matrices in blocks of rows.

use moeflux_core::checkpoint::{Extent, FileReader, FormatError, MatrixSource, VectorSource};
use moeflux_core::quant::{Encoding, QuantError};
use moeflux_core::{FileIdx, SourceFile};
use moeflux_model::check_finite_matrix;

use super::convert::{agrees, convert_rows_on};
use super::plan::{MatrixPlan, Plan, matrix_entries};
use super::report::{FileReport, count, kind_of};
use super::tables::TableContent;
use crate::error::PackError;
use crate::files::{CHUNK_BYTES, FileWriter, TensorEntry, Written};

/// Bytes of the source that are converted at once.
const BLOCK_BYTES: usize = 16 << 20;

/// Writes all resident tensors in the plan's order.
pub(super) fn write(
    plan: &Plan<'_>,
    n_threads: usize,
    writer: &mut FileWriter,
    advance: &mut dyn FnMut(u64),
) -> Result<FileReport, PackError> {
    let mut report = FileReport::new();
    writer.write(&plan.header)?;
    advance(plan.header.len() as u64);
    for matrix in &plan.matrices {
        let MatrixPlan { decl, source, target } = matrix;
        let error = if source.format == *target {
            copy_matrix(plan, source, writer)?;
            QuantError::default()
        } else {
            write_converted(plan, matrix, n_threads, writer)?
        };
        let bytes_in = source.format.matrix_bytes(decl.rows, decl.cols);
        let bytes_out = target.matrix_bytes(decl.rows, decl.cols);
        count(&mut report, kind_of(decl), bytes_in, bytes_out, error);
        advance(bytes_out as u64);
    }
    for (_, VectorSource { extent, float, .. }) in &plan.vectors {
        copy(plan, *extent, Some(Encoding::Float(*float)), writer)?;
        count(&mut report, "vectors", extent.len, extent.len, QuantError::default());
        advance(extent.len as u64);
    }
    for (_, source) in &plan.indices {
        let bytes = source.extent.len;
        source.read(plan.checkpoint)?;
        copy(plan, source.extent, None, writer)?;
        count(&mut report, "tables", bytes, bytes, QuantError::default());
        advance(bytes as u64);
    }
    for table in &plan.tables {
        let n_bytes = table.entry.n_bytes() as usize;
        match &table.content {
            TableContent::Rows(extent, encoding) => copy(plan, *extent, Some(*encoding), writer)?,
            TableContent::Scale(scale) => writer.write(&scale.to_le_bytes())?,
        }
        count(&mut report, "tables", n_bytes, n_bytes, QuantError::default());
        advance(n_bytes as u64);
    }
    Ok(report)
}

fn copy_matrix(
    plan: &Plan<'_>,
    source: &MatrixSource,
    writer: &mut FileWriter,
) -> Result<(), PackError> {
    let extents = [source.weight, source.scales, source.biases];
    let mut parts = extents.into_iter().zip(source.format.encodings());
    parts.try_for_each(|(extent, encoding)| copy(plan, extent, encoding, writer))
}

/// Copies bytes, refusing elements that are no finite numbers.
fn copy(
    plan: &Plan<'_>,
    extent: Extent,
    encoding: Option<Encoding>,
    writer: &mut FileWriter,
) -> Result<(), PackError> {
    let unit = encoding.map_or(1, Encoding::unit_bytes);
    let chunk_bytes = CHUNK_BYTES / unit * unit;
    let mut buffer = vec![0; chunk_bytes.min(extent.len)];
    for start in (0..extent.len).step_by(chunk_bytes) {
        let part = &mut buffer[..chunk_bytes.min(extent.len - start)];
        let offset = extent.offset + start as u64;
        plan.reader.read_at(extent.file, offset, part)?;
        if let Some(encoding) = encoding {
            let extent = Extent { offset, len: part.len(), ..extent };
            plan.checkpoint.check_finite(&plan.bank.files, encoding, extent, part)?;
        }
        writer.write(part)?;
    }
    Ok(())
}

/// Quantises block by block. Scales and biases wait in memory for the end of
/// the weights: a sixteenth of these, or less, with more bits.
fn write_converted(
    plan: &Plan<'_>,
    matrix: &MatrixPlan<'_>,
    n_threads: usize,
    writer: &mut FileWriter,
) -> Result<QuantError, PackError> {
    let MatrixPlan { decl, source, target } = matrix;
    let (mut scales, mut biases) = (Vec::new(), Vec::new());
    let mut error = QuantError::default();
    let n_rows = (BLOCK_BYTES / source.format.row_bytes(decl.cols)).max(1);
    for start in (0..decl.rows).step_by(n_rows) {
        let block = source.rows(start, n_rows.min(decl.rows - start));
        let bytes = block.read(&plan.reader)?;
        check_finite_matrix(plan.checkpoint, &plan.bank.files, &block, &bytes)?;
        let converted = convert_rows_on(n_threads, &bytes.view(&block), *target, plan.rounding);
        let (mut rows, block_error) =
            converted.map_err(|source| PackError::Quantise { name: decl.name.clone(), source })?;
        writer.write(&rows.weight)?;
        scales.append(&mut rows.scales);
        biases.append(&mut rows.biases);
        error.add(block_error);
    }
    writer.write(&scales)?;
    writer.write(&biases)?;
    Ok(error)
}

/// Compares rows of each matrix of the file with the source: first, middle
/// and last.
pub(super) fn check(plan: &Plan<'_>, written: &Written) -> Result<(), PackError> {
    let file = SourceFile::new(written.partial.clone(), written.n_bytes);
    let reader = FileReader::new(&[file]);
    let mut offset = plan.header.len() as u64;
    for MatrixPlan { decl, source, target } in &plan.matrices {
        let mut parts = matrix_entries(&decl.name, &[decl.rows], decl.cols, *target).into_iter();
        let mut extent = || -> Extent {
            let len = parts.next().map_or(0, |entry: TensorEntry| entry.n_bytes());
            offset += len;
            Extent { file: FileIdx(0), offset: offset - len, len: len as usize }
        };
        let (weight, scales, biases) = (extent(), extent(), extent());
        let packed = MatrixSource { format: *target, weight, scales, biases, ..*source };
        for row in [0, decl.rows / 2, decl.rows - 1] {
            if !row_agrees(plan, &reader, &source.rows(row, 1), &packed.rows(row, 1))? {
                let what = format!("row {row} of {} is not what its source says", decl.name);
                return Err(PackError::damaged(&written.partial, what));
            }
        }
    }
    Ok(())
}

fn row_agrees(
    plan: &Plan<'_>,
    reader: &FileReader,
    source: &MatrixSource,
    packed: &MatrixSource,
) -> Result<bool, FormatError> {
    let (a, b) = (source.read(&plan.reader)?, packed.read(reader)?);
    Ok(agrees(&a.view(source), &b.view(packed)))
}
