//! All that a model's family reads of its files: there, readable, and finite numbers.

use std::collections::BTreeSet;
use std::path::Path;

use moeflux_core::checkpoint::{
    Checkpoint, CheckpointKind, Claims, Extent, FileReader, FormatError, IndicesSource,
    MatrixSource,
};
use moeflux_core::files::open_regular;
use moeflux_core::quant::Encoding;
use moeflux_core::{ExpertBank, ExpertId, FileIdx, RowTable, SourceFile};
use moeflux_model::{Declared, LoadError, TowerFiles, Variant};

use crate::error::ConvertError;
use crate::files::CHUNK_BYTES;
use crate::verify::run::Run;

/// Bytes that hold numbers of one kind.
struct Piece {
    extent: Extent,
    /// `None` where every code is a finite number.
    encoding: Option<Encoding>,
    /// The expert, where no tensor has the bytes for itself.
    expert: Option<String>,
}

pub(super) fn verify(checkpoint: &Checkpoint, run: &mut Run<'_, '_>) -> Result<(), ConvertError> {
    let declared = Declared::of(checkpoint, Variant::default())?;
    let mut claims = Claims::new(checkpoint);
    let (mut pieces, mut indices) = (Vec::new(), Vec::new());
    for decl in &declared.manifest.matrices {
        pieces.extend(of_matrix(&claims.matrix(decl).map_err(LoadError::from)?));
    }
    for decl in &declared.manifest.vectors {
        let source = claims.vector(decl).map_err(LoadError::from)?;
        let encoding = Some(Encoding::Float(source.float));
        pieces.push(Piece { extent: source.extent, encoding, expert: None });
    }
    for decl in &declared.manifest.indices {
        indices.push(claims.indices(decl).map_err(LoadError::from)?);
    }
    for decl in &declared.manifest.constants {
        claims.constants(decl).map_err(LoadError::from)?;
    }
    for decl in &declared.manifest.experts {
        claims.experts(decl).map_err(LoadError::from)?;
    }
    for decl in &declared.manifest.tables {
        pieces.extend(of_table(&claims.table(decl).map_err(LoadError::from)?));
    }
    claims.finish().map_err(LoadError::from)?;
    let bank = claims.into_bank();
    pieces.extend(of_experts(&bank, checkpoint.files().len()));
    run.checked("names, shapes and lengths of all tensors of the model");
    if checkpoint.kind() == CheckpointKind::Packed {
        // Packing has looked at the values, and checksums at the bytes since.
        return Ok(());
    }
    run.checked("that unquantised weights, scales and biases are finite numbers");
    run.expect(indices.iter().map(|source| source.extent.len as u64).sum());
    indices.iter().for_each(|source| check_indices(checkpoint, source, run));
    check_all(checkpoint, &bank, pieces, run);
    Ok(())
}

/// Reads a table of whole numbers.
fn check_indices(checkpoint: &Checkpoint, source: &IndicesSource, run: &mut Run<'_, '_>) {
    let path = &checkpoint.files()[source.extent.file.0 as usize].path;
    match source.read(checkpoint) {
        Ok(_) => run.read(path, source.extent.len as u64),
        Err(FormatError::Io { source, .. }) => run.damage(path, None, source.to_string()),
        Err(err) => run.damage(path, None, err.to_string()),
    }
}

/// The tensors of a vision tower, whose names, shapes and lengths were checked when it was opened.
pub(super) fn verify_tower(tower: &TowerFiles, run: &mut Run<'_, '_>) -> Result<(), ConvertError> {
    let checkpoint = tower.checkpoint();
    run.checked("names, shapes and lengths of all tensors of the vision tower");
    if checkpoint.kind() == CheckpointKind::Packed {
        return Ok(());
    }
    let mut claims = Claims::new(checkpoint);
    let mut pieces = Vec::new();
    for decl in &tower.manifest().matrices {
        pieces.extend(of_matrix(&claims.matrix(decl).map_err(LoadError::from)?));
    }
    for decl in &tower.manifest().vectors {
        let source = claims.vector(decl).map_err(LoadError::from)?;
        let encoding = Some(Encoding::Float(source.float));
        pieces.push(Piece { extent: source.extent, encoding, expert: None });
    }
    let bank = claims.into_bank();
    check_all(checkpoint, &bank, pieces, run);
    Ok(())
}

/// Reads all pieces of files that can be opened.
fn check_all(
    checkpoint: &Checkpoint,
    bank: &ExpertBank,
    mut pieces: Vec<Piece>,
    run: &mut Run<'_, '_>,
) {
    run.expect(pieces.iter().map(|piece| piece.extent.len as u64).sum());
    let needed: BTreeSet<FileIdx> =
        pieces.iter().flat_map(|piece| read_for(piece, &bank.files)).collect();
    let closed = unopened(&bank.files, &needed, run);
    pieces.retain(|piece| read_for(piece, &bank.files).all(|idx| !closed.contains(&idx)));
    run.found.n_files = run.found.n_files.max(needed.len() - closed.len());
    let reader = FileReader::new(&bank.files);
    let mut buffer = vec![0; CHUNK_BYTES];
    for piece in &pieces {
        check(checkpoint, &bank.files, &reader, piece, &mut buffer, run);
    }
}

/// The files that are read for a piece: its own, or those of the tensors that it is computed from.
fn read_for(piece: &Piece, files: &[SourceFile]) -> impl Iterator<Item = FileIdx> + use<> {
    let inputs = match &files[piece.extent.file.0 as usize].derived {
        Some(derived) => derived.inputs(piece.extent.offset),
        None => vec![piece.extent],
    };
    inputs.into_iter().map(|extent| extent.file)
}

/// Files that cannot be opened: one damage each, whatever they should hold.
fn unopened(
    files: &[SourceFile],
    needed: &BTreeSet<FileIdx>,
    run: &mut Run<'_, '_>,
) -> BTreeSet<FileIdx> {
    let mut closed = BTreeSet::new();
    for idx in needed {
        let path = &files[idx.0 as usize].path;
        if let Err(err) = open_regular(path) {
            run.damage(path, None, err.to_string());
            closed.insert(*idx);
        }
    }
    closed
}

fn of_matrix(source: &MatrixSource) -> impl Iterator<Item = Piece> + use<> {
    let extents = [source.weight, source.scales, source.biases];
    let parts = extents.into_iter().zip(source.format.encodings());
    parts.map(|(extent, encoding)| Piece { extent, encoding, expert: None })
}

fn of_table(table: &RowTable) -> impl Iterator<Item = Piece> + use<'_> {
    let encoding = Some(table.encoding.encoding());
    table.extents().map(move |extent| Piece { extent, encoding, expert: None })
}

/// The parts of all experts; `n_tensor_files` of the bank's files have names for them.
fn of_experts(bank: &ExpertBank, n_tensor_files: usize) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let layers = bank.layers.iter().enumerate();
    for (idx, layer) in layers.filter_map(|(idx, layer)| Some((idx, layer.as_ref()?))) {
        for expert in (0..).map(ExpertId).take(layer.n_experts) {
            for matrix in layer.layout.matrices() {
                let spans = [matrix.weight, matrix.scales, matrix.biases];
                for (span, encoding) in spans.into_iter().zip(matrix.format.encodings()) {
                    if span.len == 0 {
                        continue;
                    }
                    let (file, start) = layer.sources[span.extent].locate(expert);
                    let extent = Extent { file, offset: start + span.offset as u64, len: span.len };
                    let is_named = (file.0 as usize) < n_tensor_files;
                    let expert = (!is_named).then(|| format!("expert {} of layer {idx}", expert.0));
                    pieces.push(Piece { extent, encoding, expert });
                }
            }
        }
    }
    pieces
}

/// Reads a piece until something is wrong with it.
fn check(
    checkpoint: &Checkpoint,
    files: &[SourceFile],
    reader: &FileReader,
    piece: &Piece,
    buffer: &mut [u8],
    run: &mut Run<'_, '_>,
) {
    let path = &files[piece.extent.file.0 as usize].path;
    let unit = piece.encoding.map_or(1, Encoding::unit_bytes);
    let chunk_bytes = CHUNK_BYTES / unit * unit;
    for start in (0..piece.extent.len).step_by(chunk_bytes) {
        let len = chunk_bytes.min(piece.extent.len - start);
        let offset = piece.extent.offset + start as u64;
        let part = &mut buffer[..len];
        let read = reader.read_at(piece.extent.file, offset, part);
        if read.is_ok() {
            run.read(path, len as u64);
        }
        let checked = read.and_then(|()| match piece.encoding {
            Some(encoding) => {
                let extent = Extent { offset, len, ..piece.extent };
                checkpoint.check_finite(files, encoding, extent, part)
            }
            None => Ok(()),
        });
        if let Err(err) = checked {
            return note(path, piece, err, run);
        }
    }
}

fn note(path: &Path, piece: &Piece, err: FormatError, run: &mut Run<'_, '_>) {
    match err {
        FormatError::NotFinite { name, element, value, .. } => {
            let part = piece.expert.clone().unwrap_or_else(|| format!("tensor {name}"));
            run.damage(path, Some(part), format!("element {element} is {value}"));
        }
        FormatError::Io { source, .. } => {
            run.damage(path, piece.expert.clone(), source.to_string());
        }
        err => run.damage(path, piece.expert.clone(), err.to_string()),
    }
}
