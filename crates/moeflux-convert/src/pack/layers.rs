//! A layer's file: the record of each expert, one after another.

use std::sync::Arc;

use moeflux_core::checkpoint::{Container, Extent, FileReader, FormatError};
use moeflux_core::quant::{MatrixView, QuantisedRows};
use moeflux_core::{
    ExpertId, ExpertLayout, ExpertParts, ExtentSource, FileIdx, GateUp, LayerBank, MatrixLayout,
    PartSpan, SourceFile,
};

use super::convert::{Inputs, PlainMatrix, agrees, convert_rows, in_order};
use super::plan::{LayerPlan, Plan};
use super::report::{FileReport, count};
use crate::error::PackError;
use crate::files::{FileWriter, Written};
use crate::importance::LayerImportance;

/// An expert's record, read extent by extent.
struct Record {
    layout: Arc<ExpertLayout>,
    extents: Vec<Vec<u8>>,
}

impl Record {
    fn read(reader: &FileReader, bank: &LayerBank, expert: usize) -> Result<Record, PackError> {
        let expert = ExpertId(u16::try_from(expert).expect("checkpoints have fewer experts"));
        let extent = |(source, len): (&ExtentSource, &usize)| {
            let (file, offset) = source.locate(expert);
            reader.read(Extent { file, offset, len: *len })
        };
        let extents = bank.sources.iter().zip(&bank.layout.extents).map(extent);
        Ok(Record { layout: bank.layout.clone(), extents: extents.collect::<Result<_, _>>()? })
    }

    fn part(&self, span: PartSpan) -> &[u8] {
        if span.len == 0 { &[] } else { &self.extents[span.extent][span.offset..][..span.len] }
    }

    fn matrix(&self, layout: &MatrixLayout) -> MatrixView<'_> {
        MatrixView {
            rows: layout.rows,
            cols: layout.cols,
            format: layout.format,
            weight: self.part(layout.weight),
            scales: self.part(layout.scales),
            biases: self.part(layout.biases),
        }
    }

    /// Refuses elements that are no finite numbers.
    fn check_finite(
        &self,
        plan: &Plan<'_>,
        layer: &LayerPlan,
        expert: usize,
    ) -> Result<(), PackError> {
        let id = ExpertId(u16::try_from(expert).expect("checkpoints have fewer experts"));
        let n_tensor_files = plan.checkpoint.files().len();
        for matrix in self.layout.matrices() {
            let parts = [matrix.weight, matrix.scales, matrix.biases];
            for (span, encoding) in parts.into_iter().zip(matrix.format.encodings()) {
                let Some(encoding) = encoding.filter(|_| span.len > 0) else { continue };
                let (file, start) = layer.bank.sources[span.extent].locate(id);
                let extent = Extent { file, offset: start + span.offset as u64, len: span.len };
                let (files, bytes) = (&plan.bank.files, self.part(span));
                let checked = plan.checkpoint.check_finite(files, encoding, extent, bytes);
                checked.map_err(|err| match err {
                    // Files of records have no tensors to name.
                    FormatError::NotFinite { path, element, value, .. }
                        if file.0 as usize >= n_tensor_files =>
                    {
                        let name = format!("of expert {expert} of layer {}", layer.idx);
                        FormatError::NotFinite { path, name, element, value }
                    }
                    err => err,
                })?;
            }
        }
        Ok(())
    }

    fn matrices(&self) -> ExpertParts<PlainMatrix<'_>> {
        let ExpertLayout { gate_up, down, .. } = &*self.layout;
        let whole = |matrix: &MatrixLayout| PlainMatrix::whole(&self.matrix(matrix));
        let [gate, up] = match gate_up {
            GateUp::Up(up) => return ExpertParts { gate: None, up: whole(up), down: whole(down) },
            GateUp::Split { gate, up } => [gate, up].map(whole),
            GateUp::Alternating(both) => {
                let both = self.matrix(both);
                [0, 1].map(|first| PlainMatrix::of_rows(&both, (first..both.rows).step_by(2)))
            }
            GateUp::Joined(both) => {
                let (both, half) = (self.matrix(both), both.rows / 2);
                [0, half].map(|first| PlainMatrix::of_rows(&both, first..first + half))
            }
        };
        ExpertParts::three([gate, up, whole(down)])
    }
}

/// A record in the container's format.
struct Converted {
    bytes: Vec<u8>,
    report: FileReport,
}

/// Writes the records of a layer while the next ones are made.
pub(super) fn write(
    plan: &Plan<'_>,
    layer: &LayerPlan,
    importance: Option<&LayerImportance>,
    n_threads: usize,
    writer: &mut FileWriter,
    advance: &mut dyn FnMut(u64),
) -> Result<FileReport, PackError> {
    let mut total = super::PackReport::default();
    let make = |expert| convert(plan, layer, importance, expert);
    in_order(n_threads, layer.packed.n_experts, make, |record| {
        let record = record?;
        writer.write(&record.bytes)?;
        writer.pad(Container::ALIGNMENT)?;
        total.add_file(&record.report);
        advance(layer.packed.stride_bytes);
        Ok::<(), PackError>(())
    })?;
    Ok(total.kinds)
}

fn convert(
    plan: &Plan<'_>,
    layer: &LayerPlan,
    importance: Option<&LayerImportance>,
    expert: usize,
) -> Result<Converted, PackError> {
    let record = Record::read(&plan.reader, &layer.bank, expert)?;
    record.check_finite(plan, layer, expert)?;
    let mut bytes = Vec::with_capacity(layer.packed.record_bytes as usize);
    let mut report = FileReport::new();
    let parts = record.matrices();
    let gate = parts.gate.as_ref().map(|_| ("gate_proj", false));
    let names = ExpertParts { gate, up: ("up_proj", false), down: ("down_proj", true) };
    let importance = importance.map(|importance| importance.of_expert(expert));
    let matrices = parts.into_iter().zip(layer.packed.formats());
    for ((matrix, target), (part, is_down)) in matrices.zip(names) {
        let inputs = match &importance {
            None => Inputs::Unknown,
            // Gate and up have the same inputs.
            Some((Some(first), _)) if !is_down => Inputs::ErrorFeedback(first),
            Some((_, columns)) => Inputs::Importance(&columns[usize::from(is_down)]),
        };
        let view = matrix.view();
        let mut rows = QuantisedRows::default();
        let error =
            convert_rows(&view, target, plan.rounding, inputs, &mut rows).map_err(|source| {
                let name = format!("{part} of expert {expert} of layer {}", layer.idx);
                PackError::Quantise { name, source }
            })?;
        let before = bytes.len();
        bytes.append(&mut rows.weight);
        bytes.append(&mut rows.scales);
        bytes.append(&mut rows.biases);
        let bytes_in = view.format.matrix_bytes(view.rows, view.cols);
        count(&mut report, "experts", bytes_in, bytes.len() - before, error);
    }
    Ok(Converted { bytes, report })
}

/// Compares experts of the file with the source: first, middle and last.
pub(super) fn check(
    plan: &Plan<'_>,
    layer: &LayerPlan,
    written: &Written,
) -> Result<(), PackError> {
    let file = SourceFile::new(written.partial.clone(), written.n_bytes);
    let reader = FileReader::new(&[file]);
    let stride = layer.packed.stride_bytes;
    let n_experts = layer.packed.n_experts;
    let bank = LayerBank {
        n_experts,
        layout: Arc::new(layer.packed.layout()),
        sources: vec![ExtentSource::Strided { file: FileIdx(0), base: 0, stride }],
        checksums: None,
    };
    for expert in [0, n_experts / 2, n_experts - 1] {
        let source = Record::read(&plan.reader, &layer.bank, expert)?;
        let record = Record::read(&reader, &bank, expert)?;
        let pairs = source.matrices().into_iter().zip(record.matrices());
        for (source, record) in pairs {
            if !agrees(&source.view(), &record.view()) {
                let what = format!("expert {expert} is not what its source says");
                return Err(PackError::damaged(&written.partial, what));
            }
        }
    }
    Ok(())
}
