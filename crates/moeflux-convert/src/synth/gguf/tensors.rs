//! Which tensors a synthetic GGUF file has: those that a family declares, under the names and in
//! the shapes that llama.cpp's converter gives them.

use moeflux_core::checkpoint::{Config, Dtype, FormatError};
use moeflux_core::gguf::StoredNames;
use moeflux_core::manifest::{
    ExpertsDecl, IndicesDecl, Manifest, MatrixDecl, Role, TableDecl, VectorDecl,
};
use moeflux_core::quant::{BlockType, Float, MatrixFormat};
use moeflux_core::{ExpertParts, ShapedPart};

use crate::files::TensorEntry;
use crate::synth::fill::{Fill, Indices, Noise, vector};
use crate::synth::mix::{GgufMix, LayerOf, Use};
use crate::synth::plan::{Made, gain, is_gate};

/// The tensor with what the frequencies of full layers are divided by.
const DIVISORS: &str = "rope_freqs.weight";

/// What tensors are aligned to.
pub(in crate::synth) const ALIGNMENT: usize = 32;

/// A tensor as it is stored.
pub(in crate::synth) struct Stored {
    /// Its bytes, under its name in the file.
    pub(in crate::synth) made: Made,
    /// Its dimensions, the outermost first.
    pub(super) shape: Vec<usize>,
    pub(super) kind: Kind,
    /// Whether readers look at its elements when they open the file, and not only at its shape.
    is_read_when_opened: bool,
}

/// How elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Plain(Float),
    Blocks(BlockType),
    /// Whole numbers of 32 bits.
    Integers,
}

impl Stored {
    /// A tensor of a vision tower: matrices in BF16, the rest as floats of 32 bits.
    pub(super) fn of_tower(name: &str, shape: &[usize], seed: u64) -> Stored {
        let is_matrix = shape.len() >= 2 && !name.contains("position");
        let kind = Kind::Plain(if is_matrix { Float::BF16 } else { Float::F32 });
        let noise = Noise::of(seed, name);
        let n: usize = shape.iter().product();
        let fill = if is_matrix {
            let cols = n / shape[0].max(1);
            let [fill, ..] = Fill::matrix(kind.format(), 1.0 / (cols as f32).sqrt(), noise);
            fill
        } else {
            Fill::cycle(vector(name, n, Float::F32, noise))
        };
        let dtype = Dtype::Float(if is_matrix { Float::BF16 } else { Float::F32 });
        let entry = TensorEntry { name: name.to_owned(), dtype, shape: shape.to_vec() };
        let made = Made { entry, fill, noise };
        Stored { made, shape: shape.to_vec(), kind, is_read_when_opened: false }
    }

    /// Bytes from its start to that of the next tensor.
    pub(in crate::synth) fn padded_bytes(&self) -> u64 {
        self.made.entry.n_bytes().next_multiple_of(ALIGNMENT as u64)
    }

    /// Its bytes, if readers look at them when they open the file.
    pub(super) fn read_when_opened(&self) -> Option<&[u8]> {
        match &self.made.fill {
            Fill::Cycle(bytes) if self.is_read_when_opened => Some(bytes),
            _ => None,
        }
    }
}

impl Kind {
    /// The number of the type in files.
    pub(super) fn id(self) -> u32 {
        match self {
            Kind::Plain(Float::F32) => 0,
            Kind::Plain(Float::F16) => 1,
            Kind::Plain(Float::BF16) => 30,
            Kind::Blocks(block) => block.id(),
            Kind::Integers => 26,
        }
    }

    fn format(self) -> MatrixFormat {
        match self {
            Kind::Plain(float) => MatrixFormat::Dense(float),
            Kind::Blocks(block) => MatrixFormat::Ggml(block),
            Kind::Integers => panic!("matrices have floats"),
        }
    }
}

/// What tensors are made for.
pub(super) struct Maker<'a> {
    pub(super) config: &'a Config,
    pub(super) names: StoredNames,
    pub(super) mix: GgufMix,
    pub(super) n_layers: usize,
    pub(super) seed: u64,
}

/// A matrix, or a stack of matrices, in the file.
struct Shaped {
    name: String,
    /// Dimensions without the columns.
    outer: Vec<usize>,
    cols: usize,
}

impl Maker<'_> {
    /// All tensors of a model.
    pub(super) fn all(&self, manifest: &Manifest) -> Result<Vec<Stored>, FormatError> {
        let mut all: Vec<Stored> = self.divisors()?.into_iter().collect();
        for decl in &manifest.matrices {
            for shaped in self.shapes(decl)? {
                all.push(self.matrix(decl, shaped));
            }
        }
        for decl in &manifest.vectors {
            all.extend(self.vector(decl));
        }
        all.extend(manifest.indices.iter().map(|decl| self.indices(decl)));
        for decl in &manifest.experts {
            all.extend(self.experts(decl));
        }
        all.extend(manifest.tables.iter().map(|decl| self.table(decl)));
        Ok(all)
    }

    /// What the frequencies of full layers are divided by, where a part of their pairs turns: 1, and
    /// for the other pairs so much that they do not turn.
    fn divisors(&self) -> Result<Option<Stored>, FormatError> {
        let full = self.config.get_rope("full_attention");
        let part = full.and_then(|full| full["partial_rotary_factor"].as_f64());
        let Some(part) = part else { return Ok(None) };
        let n_pairs = self.config.usize("global_head_dim")? / 2;
        let n_turning = (part * n_pairs as f64) as usize;
        let values = (0..n_pairs).map(|pair| if pair < n_turning { 1.0_f32 } else { 1e30 });
        let bytes = values.flat_map(f32::to_le_bytes).collect();
        let divisors = self.floats(DIVISORS.to_owned(), vec![n_pairs], bytes);
        Ok(Some(Stored { is_read_when_opened: true, ..divisors }))
    }

    /// The name in the file. Families declare nothing that files have no name for.
    fn name(&self, canonical: &str) -> String {
        self.names.stored(canonical).unwrap_or_else(|| canonical.to_owned())
    }

    /// The tensors that a declared matrix is stored as.
    fn shapes(&self, decl: &MatrixDecl) -> Result<Vec<Shaped>, FormatError> {
        let number = |key: &str| self.config.usize(key);
        let shaped = |module: &str, outer: &[usize], cols| Shaped {
            name: self.name(&format!("{module}.weight")),
            outer: outer.to_vec(),
            cols,
        };
        if let Some(block) = decl.name.strip_suffix("kv_b_proj") {
            let (n_heads, rank) = (number("num_attention_heads")?, decl.cols);
            let (nope, values) = (number("qk_nope_head_dim")?, number("v_head_dim")?);
            return Ok(vec![
                shaped(&format!("{block}embed_q"), &[n_heads, rank], nope),
                shaped(&format!("{block}unembed_out"), &[n_heads, values], rank),
            ]);
        }
        if let Some(block) = decl.name.strip_suffix("in_proj_qkvz") {
            let n_gates = number("linear_num_value_heads")? * number("linear_value_head_dim")?;
            return Ok(vec![
                shaped(&format!("{block}in_proj_qkv"), &[decl.rows - n_gates], decl.cols),
                shaped(&format!("{block}in_proj_z"), &[n_gates], decl.cols),
            ]);
        }
        if let Some(block) = decl.name.strip_suffix("index_qk_proj") {
            let k_rows = number("indexer_head_dim")?;
            return Ok(vec![
                shaped(&format!("{block}q_proj"), &[decl.rows - k_rows], decl.cols),
                shaped(&format!("{block}k_proj"), &[k_rows], decl.cols),
            ]);
        }
        if let Some(block) = decl.name.strip_suffix("query_key_value")
            && self.names.stored(&format!("{}.weight", decl.name)).is_none()
        {
            let head_dim = number("head_dim")?;
            let kv_rows = head_dim * number("num_key_value_heads")?;
            let part = |part: &str, rows| shaped(&format!("{block}{part}"), &[rows], decl.cols);
            return Ok(vec![
                part("q_proj", head_dim * number("num_attention_heads")?),
                part("k_proj", kv_rows),
                part("v_proj", kv_rows),
            ]);
        }
        Ok(vec![shaped(&decl.name, &[decl.rows], decl.cols)])
    }

    fn matrix(&self, decl: &MatrixDecl, shaped: Shaped) -> Stored {
        let purpose = match decl.role {
            Role::Embedding => Use::Embedding,
            Role::Head => Use::Head,
            _ => purpose(&shaped.name),
        };
        // What the converter keeps, quantisers keep as well.
        let is_kept = is_gate(&decl.name) || decl.name.ends_with(".indexer.weights_proj");
        let layer = layer_of(&shaped.name);
        let kind =
            if is_kept { Kind::Plain(Float::F32) } else { self.kind(purpose, layer, shaped.cols) };
        let std = gain(decl) / (shaped.cols as f32).sqrt();
        self.filled(shaped, kind, std)
    }

    /// A table of whole numbers.
    fn indices(&self, decl: &IndicesDecl) -> Stored {
        let IndicesDecl { rows, cols, below, .. } = *decl;
        let (name, shape) = (self.name(&decl.name), vec![rows, cols]);
        let noise = Noise::of(self.seed, &decl.name);
        let fill = Fill::Indices(Indices { cols, below, width: 4 });
        let entry = TensorEntry { name, dtype: Dtype::I32, shape: shape.clone() };
        let made = Made { entry, fill, noise };
        Stored { made, shape, kind: Kind::Integers, is_read_when_opened: false }
    }

    /// A table, whose elements have a standard deviation of 1.
    fn table(&self, decl: &TableDecl) -> Stored {
        let name = self.name(&format!("{}.weight", decl.name));
        let kind = self.kind(Use::Embedding, 0, decl.cols);
        self.filled(Shaped { name, outer: vec![decl.rows], cols: decl.cols }, kind, 1.0)
    }

    fn kind(&self, purpose: Use, layer: usize, cols: usize) -> Kind {
        let layer = LayerOf { idx: layer, n: self.n_layers };
        let block = self.mix.block_type(purpose, layer, cols);
        block.map_or(Kind::Plain(Float::F16), Kind::Blocks)
    }

    fn filled(&self, shaped: Shaped, kind: Kind, std: f32) -> Stored {
        let Shaped { name, outer, cols } = shaped;
        let noise = Noise::of(self.seed, &name);
        let rows: usize = outer.iter().product();
        let [fill, ..] = Fill::matrix(kind.format(), std, noise);
        let entry = TensorEntry {
            name,
            dtype: Dtype::U8,
            shape: vec![rows, kind.format().row_bytes(cols)],
        };
        let shape = outer.into_iter().chain([cols]).collect();
        Stored { made: Made { entry, fill, noise }, shape, kind, is_read_when_opened: false }
    }

    fn experts(&self, decl: &ExpertsDecl) -> ExpertParts<Stored> {
        let layer = decl.layer.idx();
        let gate = decl.matrices.names().gate.map(|_| ("gate", Use::GateUp));
        let names = ExpertParts { gate, up: ("up", Use::GateUp), down: ("down", Use::Down) };
        let of_part = |ShapedPart { part: (part, purpose), rows, cols }| {
            let name = format!("blk.{layer}.ffn_{part}_exps.weight");
            let kind = self.kind(purpose, layer, cols);
            let shaped = Shaped { name, outer: vec![decl.n_experts, rows], cols };
            self.filled(shaped, kind, 1.0 / (cols as f32).sqrt())
        };
        names.shaped(decl.hidden, decl.intermediate).map(of_part)
    }

    fn vector(&self, decl: &VectorDecl) -> Vec<Stored> {
        let n: usize = decl.shapes.first().map_or(0, |shape| shape.iter().product());
        if let Some(block) = decl.name.strip_suffix("gate_up_proj_bias") {
            let parts = ["gate_proj.bias", "up_proj.bias"];
            let n_experts = decl.shapes.first().map_or(1, |shape| shape[0]);
            let shape = vec![n_experts, n / n_experts / 2];
            return parts.map(|part| self.small(&format!("{block}{part}"), shape.clone())).into();
        }
        let renamed = [("down_proj_bias", "down_proj.bias"), ("A_log", "A")];
        let canonical = renamed.iter().find_map(|(from, to)| {
            decl.name.strip_suffix(from).map(|block| format!("{block}{to}"))
        });
        let canonical = canonical.unwrap_or_else(|| decl.name.clone());
        // Convolutions lose the dimension of one, but for those of Kimi delta attention, where rates of
        // decay have four as well; norms of Mamba keep their groups; all others have one shape.
        let keeps_dims =
            decl.name.contains(".self_attn.") || decl.name.ends_with(".mixer.norm.weight");
        let by_dims = |shape: &&Vec<usize>| shape.len();
        if is_column(&decl.name) {
            return vec![self.small(&canonical, vec![n, 1])];
        }
        let shape = if keeps_dims {
            decl.shapes.iter().max_by_key(by_dims)
        } else {
            decl.shapes.iter().min_by_key(by_dims)
        };
        let shape = shape.cloned();
        vec![self.small(&canonical, shape.unwrap_or_default())]
    }

    /// A tensor in `F32`.
    fn small(&self, canonical: &str, shape: Vec<usize>) -> Stored {
        let noise = Noise::of(self.seed, canonical);
        let bytes = vector(canonical, shape.iter().product(), Float::F32, noise);
        self.floats(self.name(canonical), shape, bytes)
    }

    /// A tensor in `F32` with these bytes.
    fn floats(&self, name: String, shape: Vec<usize>, bytes: Vec<u8>) -> Stored {
        let noise = Noise::of(self.seed, &name);
        let entry = TensorEntry { name, dtype: Dtype::Float(Float::F32), shape: shape.clone() };
        let made = Made { entry, fill: Fill::cycle(bytes), noise };
        let kind = Kind::Plain(Float::F32);
        Stored { made, shape, kind, is_read_when_opened: false }
    }
}

/// Whether files hold a vector as a matrix of one column: what Mamba layers have for each head.
fn is_column(name: &str) -> bool {
    [".mixer.A_log", ".mixer.D"].iter().any(|part| name.ends_with(part))
}

/// What quantisers take a matrix for by its name, if it is in a layer.
fn purpose(name: &str) -> Use {
    let tensor = name.strip_suffix(".weight").and_then(|name| name.rsplit('.').next());
    match tensor {
        Some("attn_v" | "attn_qkv" | "attn_kv_b") => Use::Values,
        Some("ffn_down" | "ffn_down_shexp") => Use::DenseDown,
        _ => Use::Dense,
    }
}

/// The layer in a tensor's name; 0 for those outside of layers.
fn layer_of(name: &str) -> usize {
    let number = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}
