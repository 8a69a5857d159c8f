//! Banks in which the bytes of each extent depend on its layer, expert and index.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use moeflux_core::quant::{Float, MatrixFormat};
use moeflux_core::{
    ExpertBank, ExpertId, ExpertKey, ExpertLayout, ExtentSource, FileIdx, GateUp, LayerBank,
    LayerIdx, MatrixLayout, PartSpan, SourceFile, SplitMix64,
};

/// How a layer's experts are stored.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    /// The layer has no experts.
    Dense,
    /// One record after another, `stride` bytes each.
    Packed { n_experts: u16, extents: Vec<usize>, stride: usize },
    /// The first extents of all experts, then all second ones, after a header of odd length.
    Stacked { n_experts: u16, extents: Vec<usize> },
    /// Extents in two files, in falling order.
    Listed { n_experts: u16, extents: Vec<usize> },
}

pub(super) fn packed(n_experts: u16) -> Shape {
    Shape::Packed { n_experts, extents: vec![3000, 100, 900], stride: 4096 }
}

pub(super) fn stacked(n_experts: u16) -> Shape {
    Shape::Stacked { n_experts, extents: vec![5000, 77, 77, 5000, 77, 77, 4999, 80, 81] }
}

pub(super) fn listed(n_experts: u16) -> Shape {
    Shape::Listed { n_experts, extents: vec![1, 4096, 2500, 0, 33] }
}

/// The bytes of an expert's extent.
pub(super) fn spelled(key: ExpertKey, extent: usize, len: usize) -> Vec<u8> {
    let seed = (u64::from(key.layer.0) << 40) + (u64::from(key.expert.0) << 20) + extent as u64;
    SplitMix64::new(seed).bytes(len)
}

/// Writes the files of a bank, named `layer-N-M`.
pub(super) fn write(dir: &Path, shape: &[Shape]) -> ExpertBank {
    let mut bank = ExpertBank::default();
    for (layer, shape) in (0..).zip(shape) {
        let layer = write_layer(dir, &mut bank.files, LayerIdx(layer), shape);
        bank.layers.push(layer);
    }
    bank
}

fn write_layer(
    dir: &Path,
    files: &mut Vec<SourceFile>,
    layer: LayerIdx,
    shape: &Shape,
) -> Option<LayerBank> {
    let first = u32::try_from(files.len()).unwrap();
    let bytes =
        |expert, extent, len| spelled(ExpertKey { layer, expert: ExpertId(expert) }, extent, len);
    let (n_experts, extents, contents, sources) = match shape {
        Shape::Dense => return None,
        Shape::Packed { n_experts, extents, stride } => {
            let mut content = Vec::new();
            for expert in 0..*n_experts {
                for (extent, &len) in extents.iter().enumerate() {
                    content.extend(bytes(expert, extent, len));
                }
                content.resize((usize::from(expert) + 1) * stride, 0);
            }
            let mut base = 0;
            let mut sources = Vec::new();
            for &len in extents {
                let (file, stride) = (FileIdx(first), *stride as u64);
                sources.push(ExtentSource::Strided { file, base, stride });
                base += len as u64;
            }
            (*n_experts, extents, vec![content], sources)
        }
        Shape::Stacked { n_experts, extents } => {
            let mut content = vec![0xAA; 4013];
            let mut sources = Vec::new();
            for (extent, &len) in extents.iter().enumerate() {
                let (file, base, stride) = (FileIdx(first), content.len() as u64, len as u64);
                sources.push(ExtentSource::Strided { file, base, stride });
                (0..*n_experts).for_each(|expert| content.extend(bytes(expert, extent, len)));
            }
            (*n_experts, extents, vec![content], sources)
        }
        Shape::Listed { n_experts, extents } => {
            let mut contents = vec![vec![1; 3], vec![2; 4095]];
            let mut sources = Vec::new();
            for (extent, &len) in extents.iter().enumerate() {
                let mut entries = vec![(FileIdx(0), 0); usize::from(*n_experts)];
                for expert in (0..*n_experts).rev() {
                    let which = (usize::from(expert) + extent) % 2;
                    let file = FileIdx(first + u32::try_from(which).unwrap());
                    entries[usize::from(expert)] = (file, contents[which].len() as u64);
                    contents[which].extend(bytes(expert, extent, len));
                }
                sources.push(ExtentSource::Listed(entries));
            }
            (*n_experts, extents, contents, sources)
        }
    };
    for (part, content) in contents.iter().enumerate() {
        let path = dir.join(format!("layer-{}-{part}", layer.0));
        fs::write(&path, content).unwrap();
        files.push(SourceFile::new(path, content.len() as u64));
    }
    Some(LayerBank {
        n_experts: usize::from(n_experts),
        layout: Arc::new(layout(extents)),
        sources,
        checksums: None,
    })
}

/// A layout of which only the extents matter: the store reads nothing else of it.
fn layout(extents: &[usize]) -> ExpertLayout {
    let none = PartSpan { extent: 0, offset: 0, len: 0 };
    let format = MatrixFormat::Dense(Float::F32);
    let matrix =
        MatrixLayout { rows: 0, cols: 0, format, weight: none, scales: none, biases: none };
    let gate_up = GateUp::Split { gate: matrix, up: matrix };
    ExpertLayout { extents: extents.to_vec(), gate_up, down: matrix }
}
