//! `moeflux.json`: the description of a packed container.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::FormatError;
use super::checksum::part_checksum_of_hex;
use super::json::{is_plain_path, read_json};
use super::quantization::{Declared, QuantRules};
use super::record::{PartFormats, record_layout};
use crate::manifest::ExpertsDecl;
use crate::quant::{
    Affine, AffineBias, BlockType, Float, MatrixFormat, MicroScaled, NF4_GROUP, ScaledBlocks,
};
use crate::{ExpertLayout, ExpertParts, ShapedPart, SourceFile};

/// The description of a packed container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Container {
    /// Always [`Container::FORMAT`].
    pub format: String,
    /// Always [`Container::VERSION`].
    pub version: u32,
    /// The model family's name.
    pub family: String,
    /// The model's whole `config.json`.
    pub config: Value,
    /// The checkpoint that it was packed from.
    pub source: SourceIdentity,
    /// Format of every resident matrix, by canonical module name.
    pub tensors: BTreeMap<String, StoredFormat>,
    /// [`part_checksum_hex`](super::part_checksum_hex) of every resident tensor, by its name in the
    /// file; empty in containers that were packed without checksums.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resident_xxh3_64: BTreeMap<String, String>,
    /// Indexed by layer; `null` where a layer has no routed experts.
    pub layers: Vec<Option<PackedLayer>>,
    /// Every other file of the container.
    pub files: Vec<PackedFile>,
}

/// Identifies the checkpoint that a container was packed from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceIdentity {
    /// Names and lengths in bytes of the files.
    pub files: Vec<(String, u64)>,
    /// A checksum over names, lengths and tensor lists.
    pub fingerprint: String,
}

/// How a matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a matrix format is an object with `bits`, `group_size` and `params`, with `block` and \
                 `scales`, or with `mode`, `levels`, `ggml` or `float`, each of a known value"
)]
pub enum StoredFormat {
    /// The affine format of MLX.
    Affine {
        /// Bits of one integer.
        bits: u8,
        /// Columns that share a scale and a bias.
        group_size: usize,
        /// How scales and biases are stored.
        params: StoredFloat,
        /// Whether biases follow from the scales and are not stored.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        symmetric: bool,
    },
    /// Small floats in groups that share a scale.
    Micro {
        /// MLX's name of the format.
        mode: StoredMode,
    },
    /// E4M3 in blocks that share a scale.
    Blocks {
        /// Rows and columns of a block.
        block: [usize; 2],
        /// How scales are stored.
        scales: StoredFloat,
        /// Rows of the first block that are not the matrix's: it begins within a block where gate and up were
        /// quantised as one.
        #[serde(default, skip_serializing_if = "is_zero")]
        phase: usize,
    },
    /// Codes of a table in groups that share a scale.
    Levels {
        /// The name of the table.
        levels: StoredLevels,
    },
    /// Integers of ggml in blocks that hold their scales.
    Ggml {
        /// The name of the type.
        ggml: BlockType,
    },
    /// Unquantised.
    Dense {
        /// The type of an element.
        float: StoredFloat,
    },
}

/// A table of levels by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredLevels {
    /// `"nf4"`: [`MatrixFormat::Nf4`].
    Nf4,
}

/// A float type by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredFloat {
    /// `"f32"`.
    F32,
    /// `"f16"`.
    F16,
    /// `"bf16"`.
    Bf16,
}

/// A format of small floats by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoredMode {
    /// `"mxfp4"`.
    Mxfp4,
    /// `"nvfp4"`.
    Nvfp4,
    /// `"nvfp4-global"`: with a scale of the whole matrix.
    #[serde(rename = "nvfp4-global")]
    Nvfp4Global,
    /// `"mxfp8"`.
    Mxfp8,
}

/// The experts of one layer, which are a file of records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedLayer {
    /// Path of the file, relative to the container.
    pub file: String,
    /// Number of records in the file.
    pub n_experts: usize,
    /// `hidden_size`.
    pub hidden: usize,
    /// `moe_intermediate_size`.
    pub intermediate: usize,
    /// Format of the gate projection; absent of experts without a gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<StoredFormat>,
    /// Format of the up projection.
    pub up: StoredFormat,
    /// Format of the down projection.
    pub down: StoredFormat,
    /// Bytes of a record.
    pub record_bytes: u64,
    /// Bytes from one record to the next.
    pub stride_bytes: u64,
    /// [`part_checksum_hex`](super::part_checksum_hex) of each record, by expert; empty in
    /// containers that were packed without checksums.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub record_xxh3_64: Vec<String>,
}

/// A file of the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedFile {
    /// Path of the file, relative to the container, with forward slashes.
    pub path: String,
    /// Length in bytes.
    pub bytes: u64,
    /// XXH3-128 of its bytes, as 32 hexadecimal digits.
    pub xxh3_128: String,
}

/// The file of a layer's experts, with its layout.
pub(super) struct LayerOfFile {
    pub(super) file: SourceFile,
    pub(super) layout: ExpertLayout,
    pub(super) stride: u64,
    pub(super) checksums: Option<Arc<[u64]>>,
}

impl Container {
    /// The value of `format`.
    pub const FORMAT: &str = "moeflux";
    /// The version that this program writes and reads.
    pub const VERSION: u32 = 1;
    /// Name of the file with the container's description.
    pub const FILE: &str = "moeflux.json";
    /// Name of the journal, which exists until the container is complete.
    pub const JOURNAL: &str = "moeflux.pack.json";
    /// Name of the file with the resident tensors.
    pub const RESIDENT: &str = "resident.safetensors";
    /// Name of the file with the tensors of the vision tower, where the source has them among its own.
    pub const TOWER: &str = "vision.safetensors";
    /// What stands before their names there.
    pub const TOWER_PREFIX: &str = "vision_tower.";
    /// Name of the copy of the vision tower's GGUF file, where the source has one.
    pub const MMPROJ: &str = "mmproj.gguf";
    /// Strides of records are multiples of this many bytes.
    pub const ALIGNMENT: usize = 4096;

    /// Parses and checks the text of a `moeflux.json`; errors name `path`.
    ///
    /// # Errors
    /// If it has another format or version, or is inconsistent.
    pub fn from_slice(path: &Path, bytes: &[u8]) -> Result<Container, FormatError> {
        let value: Value = serde_json::from_slice(bytes).map_err(FormatError::json(path))?;
        if value.get("format").and_then(Value::as_str) != Some(Self::FORMAT) {
            return Err(FormatError::malformed(path, "format is not \"moeflux\""));
        }
        let version = value.get("version").and_then(Value::as_u64);
        if version != Some(u64::from(Self::VERSION)) {
            let version = version.map_or("none".to_owned(), |version| version.to_string());
            let what = format!("container version {version} (this program reads version 1)");
            return Err(FormatError::unsupported(path, what));
        }
        let container: Container =
            serde_json::from_value(value).map_err(FormatError::json(path))?;
        container.check().map_err(|what| FormatError::malformed(path, what))?;
        Ok(container)
    }

    /// Reads and checks the `moeflux.json` at `path`.
    ///
    /// # Errors
    /// The errors of [`Container::from_slice`], and those of reading the file.
    pub fn read(path: &Path) -> Result<Container, FormatError> {
        Container::from_slice(path, &read_json(path)?)
    }

    /// The entry of a file.
    pub fn file(&self, path: &str) -> Option<&PackedFile> {
        self.files.iter().find(|file| file.path == path)
    }

    fn check(&self) -> Result<(), String> {
        if self.layers.len() > 1000 {
            return Err(format!("{} layers; at most 1000 are allowed", self.layers.len()));
        }
        let mut seen = BTreeSet::new();
        for file in &self.files {
            let PackedFile { path, xxh3_128, .. } = file;
            if !is_plain_path(path) || !seen.insert(path.as_str()) {
                return Err(format!("file {path:?} is not a plain path below the container, once"));
            }
            if xxh3_128.len() != 32 || !xxh3_128.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(format!(
                    "checksum {xxh3_128:?} of {path} is not 32 hexadecimal digits"
                ));
            }
        }
        if self.file(Self::RESIDENT).is_none() {
            return Err(format!("{} is not among its files", Self::RESIDENT));
        }
        for (name, format) in &self.tensors {
            let format = format.to_format();
            let group_size = match format {
                MatrixFormat::Affine(affine) => affine.group_size,
                MatrixFormat::Micro(micro) => micro.group_size,
                MatrixFormat::Ggml(block_type) => block_type.block_cols(),
                MatrixFormat::Nf4 => NF4_GROUP,
                MatrixFormat::Dense(_) | MatrixFormat::Transposed(_) | MatrixFormat::Blocks(_) => 1,
            };
            if !format.is_supported(group_size) {
                return Err(format!("{name} has {format:?}, which no kernel reads"));
            }
        }
        for (name, sum) in &self.resident_xxh3_64 {
            if part_checksum_of_hex(sum).is_none() {
                return Err(format!("checksum {sum:?} of {name} is not 16 hexadecimal digits"));
            }
        }
        self.layers.iter().flatten().try_for_each(|layer| self.check_layer(layer))
    }

    fn check_layer(&self, layer: &PackedLayer) -> Result<(), String> {
        let name = &layer.file;
        let within = |value: usize, what: &str, max: usize| match value {
            0 => Err(format!("{name} has no {what}")),
            _ if value > max => Err(format!("{name} has {value} {what}; at most {max}")),
            _ => Ok(()),
        };
        within(layer.n_experts, "experts", 65_535)?;
        within(layer.hidden, "hidden columns", 1 << 17)?;
        within(layer.intermediate, "intermediate columns", 1 << 20)?;
        for ShapedPart { part: format, cols, .. } in
            layer.formats().shaped(layer.hidden, layer.intermediate)
        {
            if !format.is_supported(cols) {
                return Err(format!(
                    "{name} has {cols} columns of {format:?}, which no kernel reads"
                ));
            }
        }
        let n_sums = layer.record_xxh3_64.len();
        if n_sums != 0 && layer.record_checksums().is_none() {
            let n_experts = layer.n_experts;
            return Err(format!(
                "{name} has {n_sums} checksums of records; {n_experts} of 16 hexadecimal digits \
                 were expected"
            ));
        }
        let record = layer.layout().record_bytes();
        let stride = record.next_multiple_of(Self::ALIGNMENT) as u64;
        if (layer.record_bytes, layer.stride_bytes) != (record as u64, stride) {
            let have = (layer.record_bytes, layer.stride_bytes);
            return Err(format!(
                "{name} has records {have:?}, its shapes make ({record}, {stride})"
            ));
        }
        let bytes = stride.checked_mul(layer.n_experts as u64);
        let file = self.file(name).ok_or_else(|| format!("{name} is not among its files"))?;
        if bytes != Some(file.bytes) {
            let n_experts = layer.n_experts;
            return Err(format!(
                "{name} has {} bytes, {n_experts} records of {stride} were expected",
                file.bytes
            ));
        }
        Ok(())
    }

    /// The file of a layer's experts, checked against the family's declaration.
    pub(super) fn layer(
        &self,
        root: &Path,
        decl: &ExpertsDecl,
    ) -> Result<LayerOfFile, FormatError> {
        let path = root.join(Self::FILE);
        let fail = |what| FormatError::malformed(&path, what);
        let idx = decl.layer.idx();
        let Some(layer) = self.layers.get(idx).and_then(Option::as_ref) else {
            return Err(fail(format!("layer {idx} has no experts, the config says that it has")));
        };
        let have = (layer.n_experts, layer.hidden, layer.intermediate);
        let want = (decl.n_experts, decl.hidden, decl.intermediate);
        if have != want {
            return Err(fail(format!(
                "layer {idx} has experts {have:?}, the config asks {want:?}"
            )));
        }
        let [have, want] = [layer.gate.is_some(), decl.matrices.names().gate.is_some()];
        if have != want {
            let with = |has_gate| if has_gate { "with" } else { "without" };
            return Err(fail(format!(
                "layer {idx} has experts {} a gate, the config asks for them {} one",
                with(have),
                with(want)
            )));
        }
        let len = layer.stride_bytes * layer.n_experts as u64;
        let file = SourceFile::new(root.join(&layer.file), len);
        Ok(LayerOfFile {
            file,
            layout: layer.layout(),
            stride: layer.stride_bytes,
            checksums: layer.record_checksums(),
        })
    }

    /// The checksum of a resident tensor; `None` if the container has none.
    pub(super) fn resident_checksum(&self, name: &str) -> Option<u64> {
        part_checksum_of_hex(self.resident_xxh3_64.get(name)?)
    }

    /// The declared formats of resident matrices, to check the tensors against.
    pub(super) fn rules(&self) -> QuantRules {
        let rule = |format: &StoredFormat| Declared::of_format(format.to_format());
        let modules = self.tensors.iter().map(|(name, tensor)| (name.clone(), rule(tensor)));
        let is_symmetric =
            |format: &StoredFormat| matches!(format, StoredFormat::Affine { symmetric: true, .. });
        let symmetric = self.tensors.iter().filter(|(_, format)| is_symmetric(format));
        QuantRules {
            modules: modules.collect(),
            symmetric: symmetric.map(|(name, _)| name.clone()).collect(),
            ..QuantRules::default()
        }
    }
}

impl PackedLayer {
    /// Formats of the matrices.
    pub fn formats(&self) -> PartFormats {
        let (gate, up, down) = (self.gate, self.up, self.down);
        ExpertParts { gate, up, down }.map(StoredFormat::to_format)
    }

    /// The checksum of every record, by expert; `None` if the container has none.
    pub fn record_checksums(&self) -> Option<Arc<[u64]>> {
        let sums = self.record_xxh3_64.iter().map(|sum| part_checksum_of_hex(sum));
        let sums: Arc<[u64]> = sums.collect::<Option<_>>()?;
        (sums.len() == self.n_experts).then_some(sums)
    }

    /// The layout of each record.
    pub fn layout(&self) -> ExpertLayout {
        record_layout(self.hidden, self.intermediate, self.formats())
    }
}

impl StoredFormat {
    /// The format as [`MatrixFormat`].
    pub fn to_format(self) -> MatrixFormat {
        match self {
            StoredFormat::Dense { float } => MatrixFormat::Dense(float.to_float()),
            StoredFormat::Affine { bits, group_size, params, symmetric } => {
                let bias = if symmetric { AffineBias::Symmetric } else { AffineBias::Stored };
                let params = params.to_float();
                MatrixFormat::Affine(Affine { bits, group_size, params, bias })
            }
            StoredFormat::Micro { mode } => MatrixFormat::Micro(mode.to_micro()),
            StoredFormat::Blocks { block: [rows, cols], scales, phase } => {
                let blocks = ScaledBlocks::new(rows, cols, scales.to_float());
                MatrixFormat::Blocks(ScaledBlocks { phase, ..blocks })
            }
            StoredFormat::Levels { levels: StoredLevels::Nf4 } => MatrixFormat::Nf4,
            StoredFormat::Ggml { ggml } => MatrixFormat::Ggml(ggml),
        }
    }
}

fn is_zero(phase: &usize) -> bool {
    *phase == 0
}

impl From<MatrixFormat> for StoredFormat {
    /// # Panics
    /// If containers do not hold the format: transposed matrices, and small floats without a name.
    fn from(format: MatrixFormat) -> StoredFormat {
        match format {
            MatrixFormat::Dense(float) => StoredFormat::Dense { float: float.into() },
            MatrixFormat::Affine(Affine { bits, group_size, params, bias }) => {
                let symmetric = bias == AffineBias::Symmetric;
                StoredFormat::Affine { bits, group_size, params: params.into(), symmetric }
            }
            MatrixFormat::Micro(micro) => {
                let mode = StoredMode::ALL.into_iter().find(|mode| mode.to_micro() == micro);
                StoredFormat::Micro { mode: mode.expect("a format that has a name") }
            }
            MatrixFormat::Blocks(ScaledBlocks { block_rows, block_cols, scales, phase }) => {
                let block = [block_rows, block_cols];
                StoredFormat::Blocks { block, scales: scales.into(), phase }
            }
            MatrixFormat::Nf4 => StoredFormat::Levels { levels: StoredLevels::Nf4 },
            MatrixFormat::Ggml(ggml) => StoredFormat::Ggml { ggml },
            MatrixFormat::Transposed(_) => panic!("containers hold outputs before inputs"),
        }
    }
}

impl StoredMode {
    const ALL: [StoredMode; 4] =
        [StoredMode::Mxfp4, StoredMode::Nvfp4, StoredMode::Nvfp4Global, StoredMode::Mxfp8];

    fn to_micro(self) -> MicroScaled {
        match self {
            StoredMode::Mxfp4 => MicroScaled::MXFP4,
            StoredMode::Nvfp4 => MicroScaled::NVFP4,
            StoredMode::Nvfp4Global => MicroScaled::NVFP4_GLOBAL,
            StoredMode::Mxfp8 => MicroScaled::MXFP8,
        }
    }
}

impl StoredFloat {
    fn to_float(self) -> Float {
        match self {
            StoredFloat::F32 => Float::F32,
            StoredFloat::F16 => Float::F16,
            StoredFloat::Bf16 => Float::BF16,
        }
    }
}

impl From<Float> for StoredFloat {
    fn from(float: Float) -> StoredFloat {
        match float {
            Float::F32 => StoredFloat::F32,
            Float::F16 => StoredFloat::F16,
            Float::BF16 => StoredFloat::Bf16,
        }
    }
}
