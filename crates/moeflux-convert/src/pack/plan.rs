//! What a container will hold, decided before anything is written.

use std::collections::BTreeMap;
use std::ops::Range;

use moeflux_core::checkpoint::{
    Checkpoint, Checksum, Claims, Config, Container, Dtype, FileReader, FormatError, IndicesSource,
    MatrixSource, PackedFile, PackedLayer, PartFormats, Precision, SourceIdentity, StoredFormat,
    VectorSource, part_checksum_hex, record_layout,
};
use moeflux_core::manifest::{ExpertsDecl, Manifest, MatrixDecl};
use moeflux_core::quant::{AffineBias, Float, MatrixFormat, NF4_GROUP};
use moeflux_core::{ExpertBank, ExpertLayout, ExpertParts, GateUp, LayerBank, MatrixLayout};
use moeflux_model::TowerFiles;

use super::convert::plain_format;
use super::tables::{self, TableTensor};
use super::{PackOptions, Rounding};
use crate::files::{TensorEntry, safetensors_header};
use crate::pack::layout::layer_path;

/// What a container will hold.
pub(crate) struct Plan<'a> {
    /// The file of the tensors.
    pub(super) file: &'static str,
    /// What stands before the names of tensors in it.
    pub(super) prefix: &'static str,
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) bank: ExpertBank,
    /// Reads the files of the bank, which are all of the source's.
    pub(crate) reader: FileReader,
    pub(super) matrices: Vec<MatrixPlan<'a>>,
    pub(crate) vectors: Vec<(TensorEntry, VectorSource)>,
    /// Resident tables of whole numbers.
    pub(super) indices: Vec<(TensorEntry, IndicesSource)>,
    /// Those of tables whose rows are read one by one.
    pub(super) tables: Vec<TableTensor>,
    /// The formats of those whose tensors do not say it.
    table_formats: BTreeMap<String, MatrixFormat>,
    pub(crate) layers: Vec<Option<LayerPlan>>,
    /// The beginning of the file of resident tensors.
    pub(super) header: Vec<u8>,
    pub(super) rounding: Rounding,
    resident_bytes: u64,
    /// As [`PackReport::undivided`](super::PackReport::undivided).
    pub(super) undivided: BTreeMap<usize, u64>,
}

/// A resident matrix: where it is, and what becomes of it.
pub(crate) struct MatrixPlan<'a> {
    pub(super) decl: &'a MatrixDecl,
    pub(super) source: MatrixSource,
    pub(super) target: MatrixFormat,
}

/// The experts of a layer: where they are, and what becomes of them.
pub(crate) struct LayerPlan {
    pub(crate) idx: usize,
    /// Whether the model runs without it: a layer of multi-token prediction.
    pub(crate) is_optional: bool,
    pub(crate) packed: PackedLayer,
    pub(super) bank: LayerBank,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(
        checkpoint: &'a Checkpoint,
        manifest: &'a Manifest,
        options: &PackOptions,
    ) -> Result<Plan<'a>, FormatError> {
        let mut claims = Claims::new(checkpoint);
        let mut matrices: Vec<MatrixPlan<'a>> = Vec::new();
        for decl in &manifest.matrices {
            let source = claims.matrix(decl)?;
            if !matrices.iter().any(|matrix| matrix.decl.name == decl.name) {
                let target = source.format;
                matrices.push(MatrixPlan { decl, source, target });
            }
        }
        let mut vectors = Vec::new();
        for decl in &manifest.vectors {
            let source = claims.vector(decl)?;
            let (name, shape) = (decl.name.clone(), source.shape.clone());
            let entry = TensorEntry { name, dtype: Dtype::Float(source.float), shape };
            if !vectors.iter().any(|(known, _)| *known == entry) {
                vectors.push((entry, source));
            }
        }
        let mut indices = Vec::new();
        for decl in &manifest.indices {
            let source = claims.indices(decl)?;
            let (name, dtype, shape) =
                (decl.name.clone(), source.dtype.clone(), source.shape.to_vec());
            indices.push((TensorEntry { name, dtype, shape }, source));
        }
        for decl in &manifest.constants {
            claims.constants(decl)?;
        }
        let mut banks = Vec::with_capacity(manifest.experts.len());
        for decl in &manifest.experts {
            banks.push((decl, claims.experts(decl)?));
        }
        let options = &options.for_source(precision(checkpoint, &matrices, &banks));
        let mut left: BTreeMap<usize, u64> = BTreeMap::new();
        for MatrixPlan { decl, source, target } in &mut matrices {
            if options.leaves_resident(decl, source.format) {
                *left.entry(decl.cols).or_default() += 1;
            }
            *target = options.resident_format(decl, source.format);
        }
        let mut packed = BTreeMap::new();
        for (decl, bank) in &banks {
            count_left(&mut left, decl, bank, options);
            let is_optional = checkpoint.is_optional(&decl.prefix);
            packed.insert(decl.layer.idx(), (is_optional, packed_layer(decl, bank, options)));
        }
        let (mut tables, mut table_formats) = (Vec::new(), BTreeMap::new());
        for decl in &manifest.tables {
            let table = claims.table(decl)?;
            tables.extend(tables::tensors(&table));
            table_formats.extend(tables::format(&table));
        }
        claims.finish()?;
        let bank = claims.into_bank();
        let layer = |(idx, bank): (usize, &Option<LayerBank>)| {
            let (is_optional, packed) = packed.remove(&idx)?;
            Some(LayerPlan { idx, is_optional, packed, bank: bank.clone()? })
        };
        let layers = bank.layers.iter().enumerate().map(layer).collect();
        let entries = entries(&matrices, &vectors, &indices, &tables, "");
        let header = safetensors_header(&entries);
        let data: u64 = entries.iter().map(TensorEntry::n_bytes).sum();
        let resident_bytes = header.len() as u64 + data;
        let reader = FileReader::new(&bank.files);
        let rounding = options.rounding;
        Ok(Plan {
            file: Container::RESIDENT,
            prefix: "",
            checkpoint,
            reader,
            bank,
            matrices,
            vectors,
            indices,
            tables,
            table_formats,
            layers,
            header,
            rounding,
            resident_bytes,
            undivided: left,
        })
    }

    /// What a container will hold of a vision tower: its tensors as they are, in a file of their own.
    pub(super) fn of_tower(tower: &'a TowerFiles) -> Result<Plan<'a>, FormatError> {
        let plan = Plan::new(tower.checkpoint(), tower.manifest(), &PackOptions::unquantised())?;
        let prefix = Container::TOWER_PREFIX;
        let entries = entries(&plan.matrices, &plan.vectors, &plan.indices, &plan.tables, prefix);
        let header = safetensors_header(&entries);
        let data: u64 = entries.iter().map(TensorEntry::n_bytes).sum();
        let resident_bytes = header.len() as u64 + data;
        Ok(Plan { file: Container::TOWER, prefix, header, resident_bytes, ..plan })
    }

    /// Tells a model from others of its shape, however its matrices are stored: a
    /// hash of the tensors that every container keeps as they are.
    pub(crate) fn model_key(&self) -> Result<String, FormatError> {
        let mut checksum = Checksum::default();
        for (entry, source) in &self.vectors {
            checksum.update(format!("{} {:?}\n", entry.name, entry.shape).as_bytes());
            let bytes = self.reader.read(source.extent)?;
            let mut values = vec![0.0; bytes.len() / source.float.bytes()];
            source.float.decode(&bytes, &mut values);
            values.iter().for_each(|value| checksum.update(&value.to_le_bytes()));
        }
        Ok(checksum.hex())
    }

    /// The files of weights and their lengths.
    pub(super) fn files(&self) -> impl Iterator<Item = (String, u64)> + use<'_, 'a> {
        let len = |layer: &PackedLayer| layer.stride_bytes * layer.n_experts as u64;
        let layers = self.layers.iter().flatten();
        let layers = layers.map(move |layer| (layer.packed.file.clone(), len(&layer.packed)));
        layers.chain([(self.file.to_owned(), self.resident_bytes)])
    }

    /// The resident tensors in the order in which they are written.
    fn entries(&self) -> Vec<TensorEntry> {
        entries(&self.matrices, &self.vectors, &self.indices, &self.tables, self.prefix)
    }

    /// The parts of a file that have checksums of their own: its records, or its tensors.
    pub(super) fn parts(&self, path: &str) -> Vec<Range<u64>> {
        if path == self.file {
            return tensor_ranges(&self.header, &self.entries());
        }
        let layer = self.layers.iter().flatten().find(|layer| layer.packed.file == path);
        layer.map_or(Vec::new(), |layer| record_ranges(&layer.packed))
    }

    /// What `moeflux.json` will say; `sums` are the checksums of the parts of each file.
    pub(super) fn container(
        &self,
        config: &Config,
        source: SourceIdentity,
        files: Vec<PackedFile>,
        sums: &BTreeMap<String, Vec<u64>>,
    ) -> Container {
        let tensor = |matrix: &MatrixPlan<'_>| (matrix.decl.name.clone(), matrix.target.into());
        let layer = |layer: &Option<LayerPlan>| {
            let mut packed = layer.as_ref()?.packed.clone();
            let sums = sums.get(&packed.file).map_or(&[][..], Vec::as_slice);
            packed.record_xxh3_64 = sums.iter().map(|sum| part_checksum_hex(*sum)).collect();
            Some(packed)
        };
        let mut tensors: BTreeMap<String, StoredFormat> =
            self.matrices.iter().map(tensor).collect();
        let of_tables = self.table_formats.iter();
        tensors.extend(of_tables.map(|(name, format)| (name.clone(), (*format).into())));
        let layers = self.layers.iter().map(layer).collect();
        let mut container = container(config, source, tensors, layers, files);
        let sums = sums.get(Container::RESIDENT).map_or(&[][..], Vec::as_slice);
        container.resident_xxh3_64 = resident_sums(&self.entries(), sums);
        container
    }

    /// Adds a vision tower to what `moeflux.json` will say. Of its matrices, those in blocks have their
    /// formats there, by the names that the tower's plan has.
    pub(super) fn add_tower(&self, container: &mut Container, sums: &BTreeMap<String, Vec<u64>>) {
        let is_quantised = |matrix: &&MatrixPlan<'_>| {
            !matches!(matrix.target, MatrixFormat::Dense(_) | MatrixFormat::Transposed(_))
        };
        let tensor = |matrix: &MatrixPlan<'_>| (matrix.decl.name.clone(), matrix.target.into());
        container.tensors.extend(self.matrices.iter().filter(is_quantised).map(tensor));
        let sums = sums.get(self.file).map_or(&[][..], Vec::as_slice);
        container.resident_xxh3_64.extend(resident_sums(&self.entries(), sums));
    }
}

/// How a checkpoint's weights are stored: as its config says, or, where that says nothing, as GGUF
/// files do, by what is stored.
fn precision(
    checkpoint: &Checkpoint,
    matrices: &[MatrixPlan<'_>],
    banks: &[(&ExpertsDecl, LayerBank)],
) -> Precision {
    let declared = checkpoint.precision();
    if declared != Precision::Floats {
        return declared;
    }
    let resident = matrices.iter().map(|matrix| matrix.source.format);
    let of_experts = banks.iter().flat_map(|(_, bank)| bank.layout.matrices());
    let formats = resident.chain(of_experts.map(|matrix| matrix.format));
    let of_format = |format| match format {
        MatrixFormat::Dense(_) | MatrixFormat::Transposed(_) => 0,
        MatrixFormat::Blocks(_) => 1,
        MatrixFormat::Affine(_)
        | MatrixFormat::Micro(_)
        | MatrixFormat::Nf4
        | MatrixFormat::Ggml(_) => 2,
    };
    match formats.map(of_format).max() {
        None | Some(0) => Precision::Floats,
        Some(1) => Precision::Eights,
        Some(_) => Precision::Quantised,
    }
}

/// Where the tensors of a safetensors file lie in it.
pub(crate) fn tensor_ranges(header: &[u8], entries: &[TensorEntry]) -> Vec<Range<u64>> {
    let mut end = header.len() as u64;
    let mut range = |entry: &TensorEntry| {
        let start = end;
        end += entry.n_bytes();
        start..end
    };
    entries.iter().map(&mut range).collect()
}

/// Where the records of a layer lie in its file.
pub(crate) fn record_ranges(layer: &PackedLayer) -> Vec<Range<u64>> {
    let starts = (0..layer.n_experts as u64).map(|expert| expert * layer.stride_bytes);
    starts.map(|start| start..start + layer.record_bytes).collect()
}

/// Checksums of tensors by their names.
pub(crate) fn resident_sums(entries: &[TensorEntry], sums: &[u64]) -> BTreeMap<String, String> {
    let named = entries.iter().zip(sums);
    named.map(|(entry, sum)| (entry.name.clone(), part_checksum_hex(*sum))).collect()
}

/// A container that this program writes.
pub(crate) fn container(
    config: &Config,
    source: SourceIdentity,
    tensors: BTreeMap<String, StoredFormat>,
    layers: Vec<Option<PackedLayer>>,
    files: Vec<PackedFile>,
) -> Container {
    let model_type = config.value().get("model_type").and_then(|value| value.as_str());
    Container {
        format: Container::FORMAT.to_owned(),
        version: Container::VERSION,
        family: model_type.unwrap_or_default().to_owned(),
        config: config.value().clone(),
        source,
        tensors,
        resident_xxh3_64: BTreeMap::new(),
        layers,
        files,
    }
}

/// Counts the matrices of experts that stay as they are only because groups do
/// not divide their columns.
fn count_left(
    left: &mut BTreeMap<usize, u64>,
    decl: &ExpertsDecl,
    bank: &LayerBank,
    options: &PackOptions,
) {
    let ExpertParts { gate, up, down } = parts_of(&bank.layout);
    // Gate and up are stored alike.
    let n_first = 1 + gate.iter().count() as u64;
    for (matrix, is_down, n) in [(gate.unwrap_or(up), false, n_first), (down, true, 1)] {
        if options.leaves_expert(is_down, plain_format(matrix.format), matrix.cols) {
            *left.entry(matrix.cols).or_default() += n * decl.n_experts as u64;
        }
    }
}

fn packed_layer(decl: &ExpertsDecl, bank: &LayerBank, options: &PackOptions) -> PackedLayer {
    let target =
        |matrix: &MatrixLayout| options.expert_format(plain_format(matrix.format), matrix.cols);
    let ExpertParts { gate, up, down } = parts_of(&bank.layout);
    let down = options.down_format(plain_format(down.format), down.cols);
    layer_entry(decl, ExpertParts { gate: gate.map(target), up: target(up), down })
}

/// The matrix that has each part.
fn parts_of(layout: &ExpertLayout) -> ExpertParts<&MatrixLayout> {
    let (gate, up) = match &layout.gate_up {
        GateUp::Up(up) => (None, up),
        GateUp::Split { gate, up } => (Some(gate), up),
        GateUp::Alternating(both) | GateUp::Joined(both) => (Some(both), both),
    };
    ExpertParts { gate, up, down: &layout.down }
}

/// The entry of a layer whose experts have these formats.
pub(crate) fn layer_entry(decl: &ExpertsDecl, formats: PartFormats) -> PackedLayer {
    let record = record_layout(decl.hidden, decl.intermediate, formats).record_bytes();
    let ExpertParts { gate, up, down } = formats.map(StoredFormat::from);
    PackedLayer {
        file: layer_path(decl.layer.idx()),
        n_experts: decl.n_experts,
        hidden: decl.hidden,
        intermediate: decl.intermediate,
        gate,
        up,
        down,
        record_bytes: record as u64,
        stride_bytes: record.next_multiple_of(Container::ALIGNMENT) as u64,
        record_xxh3_64: Vec::new(),
    }
}

/// The tensors of a matrix in safetensors: weight, scales, biases, as many as
/// the format has.
pub(crate) fn matrix_entries(
    module: &str,
    outer: &[usize],
    cols: usize,
    format: MatrixFormat,
) -> Vec<TensorEntry> {
    let entry = |part: &str, dtype: Dtype, inner: usize| TensorEntry {
        name: format!("{module}.{part}"),
        dtype,
        shape: outer.iter().copied().chain([inner]).collect(),
    };
    match format {
        MatrixFormat::Transposed(_) => panic!("containers hold outputs before inputs"),
        MatrixFormat::Micro(micro) => {
            let mut entries = vec![
                entry("weight", Dtype::U32, format.row_bytes(cols) / 4),
                entry("scales", Dtype::U8, micro.n_groups(cols)),
            ];
            if micro.has_global_scale {
                let (name, dtype) = (format!("{module}.global_scale"), Dtype::Float(Float::F32));
                entries.push(TensorEntry { name, dtype, shape: vec![1] });
            }
            entries
        }
        MatrixFormat::Blocks(blocks) => {
            let mut scales =
                entry("weight_scale_inv", Dtype::Float(blocks.scales), blocks.n_col_blocks(cols));
            if let [.., rows, _] = scales.shape.as_mut_slice() {
                *rows = blocks.n_row_blocks(*rows);
            }
            vec![entry("weight", Dtype::F8E4M3, cols), scales]
        }
        MatrixFormat::Nf4 => vec![
            entry("weight", Dtype::U8, format.row_bytes(cols)),
            entry("scales", Dtype::Float(Float::F32), cols / NF4_GROUP),
        ],
        MatrixFormat::Dense(float) => vec![entry("weight", Dtype::Float(float), cols)],
        MatrixFormat::Ggml(_) => vec![entry("weight", Dtype::U8, format.row_bytes(cols))],
        MatrixFormat::Affine(affine) => {
            let (words, n_groups) = (format.row_bytes(cols) / 4, affine.n_groups(cols));
            let params = Dtype::Float(affine.params);
            let mut entries =
                vec![entry("weight", Dtype::U32, words), entry("scales", params.clone(), n_groups)];
            if affine.bias == AffineBias::Stored {
                entries.push(entry("biases", params, n_groups));
            }
            entries
        }
    }
}

/// The resident tensors in the order in which they are written: matrices, vectors, whole numbers, tables.
fn entries(
    matrices: &[MatrixPlan<'_>],
    vectors: &[(TensorEntry, VectorSource)],
    indices: &[(TensorEntry, IndicesSource)],
    tables: &[TableTensor],
    prefix: &str,
) -> Vec<TensorEntry> {
    let of_matrix = |matrix: &MatrixPlan<'_>| {
        matrix_entries(&matrix.decl.name, &[matrix.decl.rows], matrix.decl.cols, matrix.target)
    };
    let matrices = matrices.iter().flat_map(of_matrix);
    let vectors = vectors.iter().map(|(entry, _)| entry.clone());
    let indices = indices.iter().map(|(entry, _)| entry.clone());
    let tables = tables.iter().map(|table| table.entry.clone());
    let all = matrices.chain(vectors).chain(indices).chain(tables);
    let named =
        |entry: TensorEntry| TensorEntry { name: format!("{prefix}{}", entry.name), ..entry };
    all.map(named).collect()
}
