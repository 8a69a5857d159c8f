//! The files of a packed container against its checksums.

use std::fs;
use std::ops::Range;
use std::path::Path;

use moeflux_core::checkpoint::{
    Container, PackedFile, PackedLayer, open_safetensors, part_checksum_hex,
};
use moeflux_model::LoadError;

use crate::error::ConvertError;
use crate::files::checksums_of;
use crate::pack::plan::record_ranges;
use crate::verify::run::Run;

/// A part of a file that has a checksum of its own.
struct Part {
    name: String,
    range: Range<u64>,
    checksum: String,
}

pub(super) fn verify(root: &Path, run: &mut Run<'_, '_>) -> Result<(), ConvertError> {
    let path = root.join(Container::FILE);
    let container = Container::read(&path).map_err(LoadError::from)?;
    run.checked("every file against the checksums of moeflux.json (XXH3-128)");
    run.expect(container.files.iter().map(|file| file.bytes).sum());
    for file in &container.files {
        verify_file(root, &container, file, run);
    }
    Ok(())
}

fn verify_file(root: &Path, container: &Container, file: &PackedFile, run: &mut Run<'_, '_>) {
    let path = root.join(&file.path);
    match fs::metadata(&path) {
        Err(err) => return run.damage(&path, None, err.to_string()),
        Ok(facts) if !facts.is_file() => return run.damage(&path, None, "is no regular file"),
        Ok(facts) if facts.len() != file.bytes => {
            let what = format!("{} bytes, {} were packed", facts.len(), file.bytes);
            return run.damage(&path, None, what);
        }
        Ok(_) => run.found.n_files += 1,
    }
    let parts = parts_of(&path, container, file);
    let ranges = parts.iter().map(|part| part.range.clone()).collect();
    let sums = match checksums_of(&path, ranges, &mut |n_bytes| run.read(&path, n_bytes)) {
        Ok(sums) => sums,
        Err(err) => return run.unreadable(&path, &err),
    };
    let found = parts.iter().zip(sums.parts());
    let odd: Vec<&Part> = found
        .filter(|(part, sum)| !part.checksum.eq_ignore_ascii_case(&part_checksum_hex(**sum)))
        .map(|(part, _)| part)
        .collect();
    for part in &odd {
        let what = "does not have the checksum that it was packed with";
        run.damage(&path, Some(part.name.clone()), what);
    }
    if odd.is_empty() && !sums.hex().eq_ignore_ascii_case(&file.xxh3_128) {
        let what = format!("its checksum is {}, {} was packed", sums.hex(), file.xxh3_128);
        run.damage(&path, None, what);
    }
}

/// The parts of a file, ascending; none where the container has no checksums of them.
fn parts_of(path: &Path, container: &Container, file: &PackedFile) -> Vec<Part> {
    if [Container::RESIDENT, Container::TOWER].contains(&file.path.as_str()) {
        return tensors_of(path, container);
    }
    let layers = container.layers.iter().enumerate();
    let layer = layers.filter_map(|(idx, layer)| Some((idx, layer.as_ref()?)));
    let layer = layer.into_iter().find(|(_, layer)| layer.file == file.path);
    layer.map_or(Vec::new(), |(idx, layer)| records_of(idx, layer))
}

fn records_of(idx: usize, layer: &PackedLayer) -> Vec<Part> {
    let ranges = record_ranges(layer).into_iter().zip(&layer.record_xxh3_64);
    let part = |(expert, (range, checksum)): (usize, (Range<u64>, &String))| {
        let name = format!("expert {expert} of layer {idx}");
        Part { name, range, checksum: checksum.clone() }
    };
    ranges.enumerate().map(part).collect()
}

/// A damaged header names no tensors; the checksum of the file then tells.
fn tensors_of(path: &Path, container: &Container) -> Vec<Part> {
    let Ok((_, header)) = open_safetensors(path) else { return Vec::new() };
    let part = |tensor: moeflux_core::checkpoint::Tensor| {
        let checksum = container.resident_xxh3_64.get(&tensor.stored_name)?.clone();
        let range = tensor.extent.offset..tensor.extent.offset + tensor.extent.len as u64;
        Some(Part { name: format!("tensor {}", tensor.stored_name), range, checksum })
    };
    header.tensors.into_iter().filter_map(part).collect()
}
