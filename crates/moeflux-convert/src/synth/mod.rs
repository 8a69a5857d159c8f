//! Random-weight checkpoints of real shapes, for benchmarks: they read, plan
//! and run as the real ones do, and say nothing.

mod error;
mod fill;
mod gguf;
mod mix;
pub(crate) mod options;
mod plan;
mod shapes;
mod tables;
mod text;
mod tools;
mod work_dir;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;

use moeflux_core::checkpoint::{
    Config, Container, PackedFile, PackedLayer, SourceIdentity, part_checksum_hex,
};
use moeflux_core::manifest::Manifest;
use moeflux_core::quant::Affine;
use moeflux_model::DeclaredTower;
use serde_json::{Map, Value, json};

use crate::files::{CHUNK_BYTES, FileWriter, require_space, safetensors_header, write_atomically};
use crate::pack::plan::{container, layer_entry, record_ranges, resident_sums, tensor_ranges};
use crate::pack::{publish_container, require_empty};
use fill::{Fill, Noise};
use gguf::Piece;
use moeflux_core::WriteError;
use plan::{GATE_BITS, Made};

use text::Vocabulary;
use work_dir::WorkDir;

pub use crate::synth::options::SynthOptions;
pub use error::SynthError;
pub use mix::GgufMix;
pub use options::{SynthFormat, ToolFormat};
pub use shapes::{shape_family, shape_like, shape_names};
pub use work_dir::{marker_of, partial_of};

/// How far making up is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynthProgress<'a> {
    /// The file.
    pub file: &'a str,
    /// Bytes written so far.
    pub done: u64,
    /// All of them.
    pub total: u64,
}

/// Declares what a config's model is made of.
pub type ManifestOf<'a> = dyn Fn(&Config) -> Result<Manifest, Box<dyn Error + Send + Sync>> + 'a;

/// Is called with the progress of [`synth`].
pub type OnSynthProgress<'a> = dyn FnMut(SynthProgress<'_>) + 'a;

/// Longest shard of safetensors.
const SHARD_BYTES: u64 = 5_000_000_000;

/// Makes up a checkpoint of a shape in the new directory `out`; returns its
/// bytes. It has its name only once it is whole.
///
/// # Errors
/// Where shape or options do not exist, `out` holds something, or a file
/// cannot be written.
pub fn synth(
    shape: &str,
    out: &Path,
    options: &SynthOptions,
    manifest_of: &ManifestOf<'_>,
    progress: &mut OnSynthProgress<'_>,
) -> Result<u64, SynthError> {
    check(options)?;
    let Some(config) = shapes::config(shape, options) else {
        let known = shape_names().collect::<Vec<_>>().join(", ");
        return Err(SynthError::UnknownShape { name: shape.to_owned(), known });
    };
    let config = Config::from_value(&out.join("config.json"), config)?;
    let manifest = manifest_of(&config).map_err(SynthError::Manifest)?;
    if out.exists() {
        require_empty(out)?;
    }
    let mut parts = match options.format {
        SynthFormat::Gguf => gguf::parts(shape, &config, &manifest, options)?,
        SynthFormat::Mlx | SynthFormat::Packed | SynthFormat::Tool(_) => Vec::new(),
    };
    let tables = match options.format {
        // Among the tensors of its parts.
        SynthFormat::Gguf => Vec::new(),
        _ => tables::tensors(&manifest, &config, options)?,
    };
    let tower =
        DeclaredTower::of_config(&config).map_err(|err| SynthError::Manifest(err.into()))?;
    if let (SynthFormat::Gguf, Some(tower)) = (options.format, &tower) {
        parts.push(gguf::mmproj(&tower.mmproj, options.seed));
    }
    let tower = tower.filter(|_| options.format != SynthFormat::Gguf);
    let tower = tower.map_or_else(Vec::new, |tower| plan::tower(&tower.manifest, options.seed));
    let tower_bytes: u64 = tower.iter().map(|made| made.entry.n_bytes()).sum();
    let mut tensors = match options.format {
        SynthFormat::Tool(tool) => tools::tensors(&manifest, tool, tables.clone(), options.seed),
        _ => Vec::new(),
    };
    let path = WorkDir::claim(out)?;
    let total = match options.format {
        SynthFormat::Gguf => parts.iter().map(gguf::Part::n_bytes).sum(),
        SynthFormat::Mlx | SynthFormat::Packed => {
            total_bytes(&manifest, &tables, options) + tower_bytes
        }
        SynthFormat::Tool(_) => {
            let all = tensors.iter().map(|tensor| tensor.entry.n_bytes());
            all.sum::<u64>() + tower_bytes
        }
    };
    let holes = tables.iter().filter(|table| matches!(table.fill, Fill::Hole));
    let total = total - holes.map(|table| table.entry.n_bytes()).sum::<u64>();
    // Before the directory is made, so that a caller can arrange for its removal.
    progress(SynthProgress { file: "config.json", done: 0, total });
    let dir = WorkDir::create(path)?;
    if !options.is_hollow {
        require_space(&dir.path, total)?;
    }
    let mut making = Making {
        dir: &dir.path,
        options,
        manifest: &manifest,
        tables,
        tower,
        progress,
        done: 0,
        total,
        resident_sums: BTreeMap::new(),
    };
    match options.format {
        SynthFormat::Mlx => {
            making.text(&config)?;
            making.mlx(&config)?;
        }
        SynthFormat::Packed => {
            let mut files = making.text(&config)?;
            let layers = making.packed(&mut files)?;
            making.container(shape, &config, layers, files)?;
        }
        SynthFormat::Gguf => parts.iter().try_for_each(|part| making.gguf(part))?,
        SynthFormat::Tool(tool) => {
            making.text(&config)?;
            tensors.append(&mut making.tower_of_mlx());
            making.shards(tensors)?;
            let mut config = config.value().clone();
            config["quantization_config"] = tools::declaration(tool);
            making.config(&config)?;
        }
    }
    let done = making.done;
    dir.publish(out)?;
    Ok(done)
}

fn check(options: &SynthOptions) -> Result<(), SynthError> {
    let refuse = |what, value, allowed: String| Err(SynthError::Option { what, value, allowed });
    if options.bits != 16 && !Affine::BITS.contains(&options.bits) {
        return refuse("bits", usize::from(options.bits), format!("{:?} and 16", Affine::BITS));
    }
    if !Affine::GROUP_SIZES.contains(&options.group_size) {
        return refuse("group size", options.group_size, format!("{:?}", Affine::GROUP_SIZES));
    }
    if options.is_hollow && options.format == SynthFormat::Packed {
        return refuse("hollow containers", 1, String::from("0: their checksums would be wrong"));
    }
    if options.has_sparse_tables && options.format == SynthFormat::Packed {
        return refuse("sparse containers", 1, String::from("0: their checksums would be wrong"));
    }
    if options.has_sparse_tables && options.format == SynthFormat::Gguf {
        return refuse("sparse GGUF files", 1, String::from("0: choose another format"));
    }
    match options.n_layers {
        Some(n) if !(1..=1000).contains(&n) => refuse("layers", n, "1 to 1000".to_owned()),
        _ => Ok(()),
    }
}

fn total_bytes(manifest: &Manifest, tables: &[Made], options: &SynthOptions) -> u64 {
    let of = |all: &[Made]| all.iter().map(|made| made.entry.n_bytes()).sum::<u64>();
    let experts = manifest.experts.iter().map(|expert| match options.format {
        SynthFormat::Mlx | SynthFormat::Gguf | SynthFormat::Tool(_) => {
            of(&plan::stacked(expert, options))
        }
        SynthFormat::Packed => {
            let layer = layer_entry(expert, plan::expert_formats(options, expert));
            layer.stride_bytes * layer.n_experts as u64
        }
    });
    of(&plan::resident(manifest, options)) + of(tables) + experts.sum::<u64>()
}

/// One checkpoint in the making.
struct Making<'a, 'p> {
    dir: &'a Path,
    options: &'a SynthOptions,
    manifest: &'a Manifest,
    /// The tensors of tables, until they are written.
    tables: Vec<Made>,
    /// The tensors of the vision tower, until they are written.
    tower: Vec<Made>,
    progress: &'a mut OnSynthProgress<'p>,
    done: u64,
    total: u64,
    /// Checksums of the tensors of all files of tensors.
    resident_sums: BTreeMap<String, String>,
}

impl Making<'_, '_> {
    /// Tokenizer and chat template.
    fn text(&self, config: &Config) -> Result<Vec<PackedFile>, SynthError> {
        let vocabulary = Vocabulary::of(config)?;
        let file = |(name, bytes): (&str, Vec<u8>)| self.file(name, &bytes);
        vocabulary.files().into_iter().map(file).collect()
    }

    fn file(&self, name: &str, bytes: &[u8]) -> Result<PackedFile, SynthError> {
        let written = write_atomically(&self.dir.join(name), bytes)?;
        let (bytes, xxh3_128) = (written.n_bytes, written.checksum.clone());
        written.publish()?;
        Ok(PackedFile { path: name.to_owned(), bytes, xxh3_128 })
    }

    /// Makes the bytes of a tensor; `salt` tells experts apart.
    fn tensor(
        &mut self,
        file: &str,
        made: &Made,
        salt: usize,
        writer: &mut FileWriter,
    ) -> Result<(), SynthError> {
        let n_bytes = made.entry.n_bytes();
        let noise = match (&made.fill, salt) {
            (Fill::Cycle(_), _) | (_, 0) => made.noise,
            _ => Noise::of(self.options.seed, &format!("{} {salt}", made.entry.name)),
        };
        let mut buffer = vec![0; n_bytes.min(CHUNK_BYTES as u64) as usize];
        for offset in (0..n_bytes).step_by(CHUNK_BYTES) {
            let len = buffer.len().min((n_bytes - offset) as usize);
            made.fill.make(noise, offset, &mut buffer[..len]);
            writer.write(&buffer[..len])?;
            self.advance(file, len as u64);
        }
        Ok(())
    }

    fn advance(&mut self, file: &str, n: u64) {
        self.done += n;
        (self.progress)(SynthProgress { file, done: self.done, total: self.total });
    }

    fn safetensors(&mut self, name: &str, tensors: &[Made]) -> Result<PackedFile, SynthError> {
        let entries: Vec<_> = tensors.iter().map(|tensor| tensor.entry.clone()).collect();
        let header = safetensors_header(&entries);
        let is_hole = |tensor: &Made| matches!(tensor.fill, Fill::Hole);
        if self.options.is_hollow || tensors.iter().all(is_hole) {
            let data = tensors.iter().map(|tensor| tensor.entry.n_bytes()).sum::<u64>();
            let pieces = [Piece { offset: 0, bytes: &header }];
            return self.hollow(name, &pieces, header.len() as u64 + data);
        }
        let parts = tensor_ranges(&header, &entries);
        let mut writer = FileWriter::create_with_parts(&self.dir.join(name), parts)?;
        writer.write(&header)?;
        for tensor in tensors {
            self.tensor(name, tensor, 0, &mut writer)?;
        }
        let written = writer.finish()?;
        let (bytes, xxh3_128) = (written.n_bytes, written.checksum.clone());
        self.resident_sums.extend(resident_sums(&entries, &written.parts));
        written.publish()?;
        Ok(PackedFile { path: name.to_owned(), bytes, xxh3_128 })
    }

    /// A GGUF file.
    fn gguf(&mut self, part: &gguf::Part) -> Result<(), SynthError> {
        let name = &part.name;
        if self.options.is_hollow {
            self.hollow(name, &part.read_when_opened(), part.n_bytes())?;
            return Ok(());
        }
        let mut writer = FileWriter::create(&self.dir.join(name))?;
        writer.write(&part.header)?;
        self.advance(name, part.header.len() as u64);
        for tensor in &part.tensors {
            self.tensor(name, &tensor.made, 0, &mut writer)?;
            writer.pad(gguf::ALIGNMENT)?;
            self.advance(name, tensor.padded_bytes() - tensor.made.entry.n_bytes());
        }
        Ok(writer.finish()?.publish()?)
    }

    /// A file of the right size that has these pieces and holes around them.
    fn hollow(
        &mut self,
        name: &str,
        pieces: &[Piece<'_>],
        bytes: u64,
    ) -> Result<PackedFile, SynthError> {
        let path = self.dir.join(name);
        fs::write(&path, []).map_err(WriteError::at(&path))?;
        if cfg!(windows) {
            leave_holes(&path);
        }
        let write = || {
            let mut file = fs::OpenOptions::new().write(true).open(&path)?;
            for piece in pieces {
                file.seek(SeekFrom::Start(piece.offset))?;
                file.write_all(piece.bytes)?;
            }
            file.set_len(bytes)
        };
        write().map_err(WriteError::at(&path))?;
        Ok(PackedFile { path: name.to_owned(), bytes, xxh3_128: String::new() })
    }

    /// Shards, their index, and a config with MLX's quantisation block.
    fn mlx(&mut self, config: &Config) -> Result<(), SynthError> {
        let experts =
            self.manifest.experts.iter().flat_map(|expert| plan::stacked(expert, self.options));
        let mut all: Vec<Made> = plan::resident(self.manifest, self.options);
        all.extend(experts);
        all.append(&mut self.tables);
        for made in &mut all {
            made.entry.name = mlx_name(&made.entry.name);
        }
        all.append(&mut self.tower_of_mlx());
        self.shards(all)?;
        let mut config = config.value().clone();
        if self.options.bits != 16 || self.options.has_mxfp4_experts {
            let block = self.quantization();
            config["quantization"] = block.clone();
            config["quantization_config"] = block;
        }
        self.config(&config)
    }

    /// The tensors of the vision tower under the names that MLX gives them, taken.
    fn tower_of_mlx(&mut self) -> Vec<Made> {
        let mut tower = std::mem::take(&mut self.tower);
        for made in &mut tower {
            let name = &mut made.entry.name;
            if !["embed_vision.", "mm_projector."].iter().any(|part| name.starts_with(part)) {
                name.insert_str(0, "vision_tower.");
            }
        }
        tower
    }

    fn config(&self, config: &Value) -> Result<(), SynthError> {
        let text = serde_json::to_vec_pretty(config).expect("a config is plain data");
        self.file("config.json", &text)?;
        Ok(())
    }

    /// Shards of these tensors, and their index.
    fn shards(&mut self, all: Vec<Made>) -> Result<(), SynthError> {
        let shards = into_shards(all);
        let (mut weight_map, mut total) = (Map::new(), 0);
        for (i, shard) in shards.iter().enumerate() {
            let name = format!("model-{:05}-of-{:05}.safetensors", i + 1, shards.len());
            self.safetensors(&name, shard)?;
            for made in shard {
                weight_map.insert(made.entry.name.clone(), json!(name));
                total += made.entry.n_bytes();
            }
        }
        let index = json!({"metadata": {"total_size": total}, "weight_map": weight_map});
        self.file("model.safetensors.index.json", index.to_string().as_bytes())?;
        Ok(())
    }

    fn quantization(&self) -> Value {
        let SynthOptions { bits, group_size, has_mxfp4_experts, .. } = self.options;
        let mxfp4 = || json!({"group_size": 32, "bits": 4, "mode": "mxfp4"});
        if *bits == 16 {
            return mxfp4();
        }
        let mut block = json!({"group_size": group_size, "bits": bits, "mode": "affine"});
        for decl in self.manifest.experts.iter().filter(|_| *has_mxfp4_experts) {
            for made in plan::stacked(decl, self.options) {
                if let Some(module) = made.entry.name.strip_suffix(".weight") {
                    block[mlx_name(module)] = mxfp4();
                }
            }
        }
        for decl in self.manifest.matrices.iter().filter(|matrix| plan::is_gate(&matrix.name)) {
            block[mlx_name(&decl.name)] = json!({"group_size": group_size, "bits": GATE_BITS});
        }
        block
    }

    /// Resident tensors and layer files of a container.
    fn packed(
        &mut self,
        files: &mut Vec<PackedFile>,
    ) -> Result<BTreeMap<usize, PackedLayer>, SynthError> {
        let folder = self.dir.join("packed_experts");
        fs::create_dir_all(&folder).map_err(WriteError::at(&folder))?;
        let mut resident = plan::resident(self.manifest, self.options);
        resident.append(&mut self.tables);
        files.push(self.safetensors(Container::RESIDENT, &resident)?);
        let mut tower = std::mem::take(&mut self.tower);
        if !tower.is_empty() {
            for made in &mut tower {
                made.entry.name.insert_str(0, Container::TOWER_PREFIX);
            }
            files.push(self.safetensors(Container::TOWER, &tower)?);
        }
        let mut layers = BTreeMap::new();
        for decl in &self.manifest.experts {
            let mut layer = layer_entry(decl, plan::expert_formats(self.options, decl));
            let record = plan::record(decl, self.options);
            let name = layer.file.clone();
            let parts = record_ranges(&layer);
            let mut writer = FileWriter::create_with_parts(&self.dir.join(&name), parts)?;
            for expert in 0..decl.n_experts {
                for made in &record {
                    self.tensor(&name, made, expert + 1, &mut writer)?;
                }
                writer.pad(Container::ALIGNMENT)?;
                self.advance(&name, layer.stride_bytes - layer.record_bytes);
            }
            let written = writer.finish()?;
            let (bytes, xxh3_128) = (written.n_bytes, written.checksum.clone());
            layer.record_xxh3_64 =
                written.parts.iter().map(|sum| part_checksum_hex(*sum)).collect();
            written.publish()?;
            files.push(PackedFile { path: name, bytes, xxh3_128 });
            layers.insert(decl.layer.idx(), layer);
        }
        Ok(layers)
    }

    fn container(
        &self,
        shape: &str,
        config: &Config,
        mut layers: BTreeMap<usize, PackedLayer>,
        files: Vec<PackedFile>,
    ) -> Result<(), SynthError> {
        let fingerprint = format!("synthetic {shape}, seed {}", self.options.seed);
        let source = SourceIdentity { files: Vec::new(), fingerprint };
        let n_layers = config.usize("num_hidden_layers")?;
        let n_layers = layers.keys().last().map_or(n_layers, |key| n_layers.max(key + 1));
        let layers = (0..n_layers).map(|idx| layers.remove(&idx)).collect();
        let format = |decl: &moeflux_core::manifest::MatrixDecl| {
            (decl.name.clone(), plan::matrix_format(self.options, decl).into())
        };
        let tensors = self.manifest.matrices.iter().map(format).collect();
        let mut container = container(config, source, tensors, layers, files);
        container.resident_xxh3_64.clone_from(&self.resident_sums);
        Ok(publish_container(self.dir, &container)?)
    }
}

/// The name that MLX gives to a tensor.
fn mlx_name(canonical: &str) -> String {
    if canonical.starts_with("lm_head") {
        format!("language_model.{canonical}")
    } else {
        format!("language_model.model.{canonical}")
    }
}

/// Tensors in files of up to [`SHARD_BYTES`]. Holes are in files of their own.
fn into_shards(all: Vec<Made>) -> Vec<Vec<Made>> {
    let (holes, others): (Vec<Made>, Vec<Made>) =
        all.into_iter().partition(|made| matches!(made.fill, Fill::Hole));
    let mut shards = in_order(others);
    shards.append(&mut in_order(holes));
    shards
}

fn in_order(all: Vec<Made>) -> Vec<Vec<Made>> {
    let mut shards: Vec<Vec<Made>> = Vec::new();
    let mut n_free = 0;
    for made in all {
        let n_bytes = made.entry.n_bytes();
        if n_bytes > n_free || shards.is_empty() {
            shards.push(Vec::new());
            n_free = SHARD_BYTES;
        }
        n_free = n_free.saturating_sub(n_bytes);
        shards.last_mut().expect("pushed above").push(made);
    }
    shards
}

/// Asks Windows to keep no room for what is not written to a file, as other
/// systems do by themselves. A drive that cannot do that needs the room.
fn leave_holes(path: &Path) {
    let _ = Command::new("fsutil").args(["sparse", "setflag"]).arg(path).output();
}

#[cfg(test)]
mod tests;
