//! Names of tensors: those of files, and the canonical ones that families declare.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::rope::DIVISORS;
use crate::checkpoint::{FormatError, Tensor};
use crate::gguf::set::GgufSet;

/// A part of a layer by its name in files, and by its canonical name. The endings `.weight`,
/// `.bias` and the like are added to both, unless the file's name has one here.
pub type Pair = (&'static str, &'static str);

/// Tensors outside of layers, as most families call them.
pub const OUTSIDE: &[Pair] = &[
    ("token_embd.weight", "embed_tokens.weight"),
    ("output_norm.weight", "norm.weight"),
    ("output.weight", "lm_head.weight"),
];

/// What all layers have. The norm before the MLP has two names, of which an architecture has one.
const LAYER: &[Pair] = &[
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// The second name of the norm before the MLP, for architectures that have it.
pub const POST_NORM: &[Pair] = &[("post_attention_norm", "post_attention_layernorm")];

/// Attention with queries, keys and values.
pub const GROUPED: &[Pair] = &[
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_sinks.weight", "self_attn.sinks"),
];

/// Multi-head latent attention. Newer files hold `kv_b_proj` in two stacks, the first transposed.
pub const LATENT: &[Pair] = &[
    ("attn_q", "self_attn.q_proj"),
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("attn_k_b", "self_attn.embed_q"),
    ("attn_v_b", "self_attn.unembed_out"),
    ("attn_output", "self_attn.o_proj"),
];

/// What chooses positions for latent attention.
pub const INDEXER: &[Pair] = &[
    ("indexer.attn_q_b", "self_attn.indexer.wq_b"),
    ("indexer.attn_k", "self_attn.indexer.wk"),
    ("indexer.k_norm", "self_attn.indexer.k_norm"),
    ("indexer.proj", "self_attn.indexer.weights_proj"),
];

/// Gated delta nets, in layers that have [`DELTA_MARK`], of families that name no parts of these
/// themselves.
const DELTA: &[Pair] = &[
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_in", "linear_attn.in_proj_qkvz"),
    ("ssm_ba", "linear_attn.in_proj_ba"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_a", "linear_attn.A"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    // Ollama's name.
    ("ssm_dt", "linear_attn.dt_bias"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
];

const DELTA_MARK: &str = "ssm_a";

/// Kimi delta attention. Its layers and the others share the names of queries and outputs.
pub const KIMI_DELTA: &[Pair] = &[
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("ssm_conv1d_q", "self_attn.q_conv1d"),
    ("ssm_conv1d_k", "self_attn.k_conv1d"),
    ("ssm_conv1d_v", "self_attn.v_conv1d"),
    ("ssm_f_a", "self_attn.f_a_proj"),
    ("ssm_f_b", "self_attn.f_b_proj"),
    ("ssm_beta", "self_attn.b_proj"),
    ("ssm_a", "self_attn.A"),
    ("ssm_dt.bias", "self_attn.dt_bias"),
    ("ssm_g_a", "self_attn.g_a_proj"),
    ("ssm_g_b", "self_attn.g_b_proj"),
    ("ssm_norm", "self_attn.o_norm"),
];

/// The connections of layers to a residual of several streams, which they mix.
pub const MIXED_STREAMS: &[Pair] = &[
    ("hc_attn_fn", "hc_attn_fn"),
    ("hc_attn_base.weight", "hc_attn_base"),
    ("hc_attn_scale.weight", "hc_attn_scale"),
    ("hc_ffn_fn", "hc_ffn_fn"),
    ("hc_ffn_base.weight", "hc_ffn_base"),
    ("hc_ffn_scale.weight", "hc_ffn_scale"),
];

/// Routed experts.
pub const EXPERTS: &[Pair] = &[
    ("ffn_gate_inp", "mlp.gate"),
    ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    ("ffn_gate_exps", "mlp.switch_mlp.gate_proj"),
    ("ffn_up_exps", "mlp.switch_mlp.up_proj"),
    ("ffn_down_exps", "mlp.switch_mlp.down_proj"),
    ("ffn_gate_up_exps", "mlp.switch_mlp.gate_up_proj"),
];

/// Routed experts in a block called `block_sparse_moe`.
pub const SPARSE_EXPERTS: &[Pair] = &[
    ("ffn_gate_inp", "block_sparse_moe.gate"),
    ("exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias"),
    ("ffn_gate_exps", "block_sparse_moe.switch_mlp.gate_proj"),
    ("ffn_up_exps", "block_sparse_moe.switch_mlp.up_proj"),
    ("ffn_down_exps", "block_sparse_moe.switch_mlp.down_proj"),
    ("ffn_gate_up_exps", "block_sparse_moe.switch_mlp.gate_up_proj"),
];

/// Shared experts of one width with the routed ones.
pub const SHARED_EXPERTS: &[Pair] = &[
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
];

/// A shared expert with a gate.
pub const SHARED_EXPERT: &[Pair] = &[
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
];

/// Parts around the layer for multi-token prediction, as parts of that layer.
const NEXTN_INSIDE: &[Pair] = &[
    ("nextn.eh_proj", "eh_proj"),
    ("nextn.enorm", "enorm"),
    ("nextn.hnorm", "hnorm"),
    ("nextn.embed_tokens", "embed_tokens"),
    ("nextn.shared_head_norm", "shared_head.norm"),
    ("nextn.shared_head_head", "shared_head.head"),
];

/// Parts around the layer for multi-token prediction, where it is a model of its own.
const NEXTN_APART: &[Pair] = &[
    ("nextn.eh_proj", "mtp.fc"),
    ("nextn.enorm", "mtp.pre_fc_norm_embedding"),
    ("nextn.hnorm", "mtp.pre_fc_norm_hidden"),
    ("nextn.embed_tokens", "mtp.embed_tokens"),
    ("nextn.shared_head_norm", "mtp.norm"),
    ("nextn.shared_head_head", "mtp.shared_head.head"),
];

/// What stands before the names of the tensors of towers for pictures and sound, which Ollama has in the
/// file of the text model.
const TOWERS: [&str; 3] = ["v.", "a.", "mm."];

/// A tensor, or some rows of one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NamedTensor {
    /// The canonical name; that of the file if the architecture has no such tensor.
    pub(crate) name: String,
    /// The tensor under its name in the file.
    pub(crate) tensor: Tensor,
}

/// Where canonical names put layers for multi-token prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nextn {
    /// They are layers past the last.
    PastTheLast,
    /// They are a model of their own, called `mtp`.
    Apart,
}

/// The names of one architecture.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// Tensors outside of layers.
    outside: &'static [Pair],
    parts: &'static [&'static [Pair]],
    nextn: Nextn,
    /// Names of the matrices of single experts, below the block's.
    single: SingleExperts,
    /// A table that files have outside of layers, and canonical names in one.
    table: Option<TableName>,
}

/// A table of rows that one layer reads.
#[derive(Clone, Copy, Debug)]
pub struct TableName {
    /// The name in files.
    pub stored: &'static str,
    /// A tensor that shows in files which layer reads it.
    pub mark: &'static str,
    /// The canonical name, as a part of that layer.
    pub part: &'static str,
}

/// Where files that have a tensor for each expert have them.
#[derive(Clone, Copy, Debug)]
struct SingleExperts {
    block: &'static str,
    /// Gate, up and down.
    parts: [&'static str; 3],
}

/// The tensors of a model under canonical names.
pub(super) struct Applied {
    pub(super) tensors: Vec<NamedTensor>,
    pub(super) n_skipped: usize,
}

impl Names {
    /// Names by these tables, with layers for multi-token prediction past the last.
    pub const fn new(parts: &'static [&'static [Pair]]) -> Names {
        let single = SingleExperts { block: "mlp", parts: ["gate_proj", "up_proj", "down_proj"] };
        Names { outside: OUTSIDE, parts, nextn: Nextn::PastTheLast, single, table: None }
    }

    /// The names of a family that reads rows of a table.
    pub const fn with_table(self, table: TableName) -> Names {
        Names { table: Some(table), ..self }
    }

    /// The names of a family that calls what stands outside of layers otherwise.
    pub const fn around(self, outside: &'static [Pair]) -> Names {
        Names { outside, ..self }
    }

    /// The names of a family that numbers the matrices of experts.
    pub const fn numbered(parts: &'static [&'static [Pair]]) -> Names {
        let single = SingleExperts { block: "block_sparse_moe", parts: ["w1", "w3", "w2"] };
        Names { single, ..Names::new(parts) }
    }

    /// The names of a family whose multi-token prediction is a model of its own, and whose queries come
    /// with a gate.
    pub const fn apart(parts: &'static [&'static [Pair]]) -> Names {
        Names { nextn: Nextn::Apart, ..Names::new(parts) }
    }

    /// Gives all tensors their canonical names. Tensors without one keep that of the file, so that
    /// they show as left over.
    pub(super) fn apply(
        &self,
        set: &GgufSet,
        n_layers: usize,
        config: &Map<String, Value>,
    ) -> Result<Applied, FormatError> {
        let present: BTreeSet<&str> =
            set.tensors.iter().map(|tensor| tensor.stored_name.as_str()).collect();
        let layers = Layers { n: n_layers, present, config };
        let mut applied = Applied { tensors: Vec::with_capacity(set.tensors.len()), n_skipped: 0 };
        for tensor in &set.tensors {
            if layers.skips(&tensor.stored_name) {
                applied.n_skipped += 1;
                continue;
            }
            match self.split_qkv(tensor, &layers) {
                Some(parts) => {
                    let path = &set.files[tensor.extent.file.0 as usize].path;
                    applied.tensors.extend(parts.map_err(|what| {
                        FormatError::malformed(path, format!("{}: {what}", tensor.stored_name))
                    })?);
                }
                None => {
                    let name = self.canonical(&tensor.stored_name, &layers);
                    let name = name.unwrap_or_else(|| tensor.stored_name.clone());
                    applied.tensors.push(NamedTensor { tensor: shaped(tensor, &name), name });
                }
            }
        }
        Ok(applied)
    }

    fn canonical(&self, stored: &str, layers: &Layers<'_>) -> Option<String> {
        let Some(place) = Place::of(stored) else {
            if let Some(table) = self.table.filter(|table| table.stored == stored) {
                let layer = (0..layers.n).find(|layer| layers.has(*layer, table.mark))?;
                return Some(format!("layers.{layer}.{}", table.part));
            }
            let pair = self.outside.iter().find(|pair| pair.0 == stored);
            return pair.map(|pair| pair.1.to_owned());
        };
        let layer = self.layer_name(place.layer, layers.n);
        let own = place.layer.saturating_sub(layers.n);
        if self.nextn == Nextn::Apart
            && own == 0
            && let Some(name) = renamed(&[NEXTN_APART], place.part)
        {
            return Some(name);
        }
        let delta: &[&[Pair]] = if layers.recurs(place.layer) { &[DELTA] } else { &[] };
        let part = renamed(self.parts, place.part)
            .or_else(|| renamed(delta, place.part))
            .or_else(|| renamed(&[LAYER, NEXTN_INSIDE], place.part))
            .or_else(|| self.single.renamed(place.part));
        match part {
            Some(part) => Some(format!("{layer}.{part}")),
            // What layers for multi-token prediction have beyond that is left aside with them.
            None => (place.layer >= layers.n).then(|| format!("{layer}.{}", place.part)),
        }
    }

    fn layer_name(&self, layer: usize, n_layers: usize) -> String {
        match self.nextn {
            Nextn::Apart if layer >= n_layers => format!("mtp.layers.{}", layer - n_layers),
            _ => format!("layers.{layer}"),
        }
    }

    /// The name that a file would have for a canonical one.
    pub(super) fn stored(&self, canonical: &str, n_layers: usize) -> Option<String> {
        if let Some(name) = found(self.outside, canonical) {
            return Some(name);
        }
        let is_table = |part: &str| canonical.ends_with(&format!(".{part}"));
        if let Some(table) = self.table.filter(|table| is_table(table.part)) {
            return Some(table.stored.to_owned());
        }
        if let Some(name) = found(NEXTN_APART, canonical).filter(|_| self.nextn == Nextn::Apart) {
            return Some(format!("blk.{n_layers}.{name}"));
        }
        let (layer, part) = match canonical.strip_prefix("mtp.layers.") {
            Some(rest) => {
                let (layer, part) = rest.split_once('.')?;
                (layer.parse::<usize>().ok()? + n_layers, part)
            }
            None => {
                let (layer, part) = canonical.strip_prefix("layers.")?.split_once('.')?;
                (layer.parse().ok()?, part)
            }
        };
        let tables = self.parts.iter().chain([&DELTA, &LAYER, &NEXTN_INSIDE]);
        let part = tables.copied().find_map(|pairs| found(pairs, part))?;
        Some(format!("blk.{layer}.{part}"))
    }

    /// The queries, keys and values of a tensor that holds all three, or what is wrong with it;
    /// `None` for other tensors. Each is some of its rows.
    fn split_qkv(
        &self,
        tensor: &Tensor,
        layers: &Layers<'_>,
    ) -> Option<Result<Vec<NamedTensor>, String>> {
        let place = Place::of(&tensor.stored_name)?;
        let ending = place.part.strip_prefix("attn_qkv.")?;
        if layers.recurs(place.layer) || !self.parts.contains(&GROUPED) {
            return None;
        }
        let layer = self.layer_name(place.layer, layers.n);
        let named = |part: &str, tensor: Tensor| NamedTensor {
            name: format!("{layer}.self_attn.{part}.{ending}"),
            tensor,
        };
        // Scales of the whole matrix.
        if ending == "scale" || ending == "input_scale" {
            let parts = ["q_proj", "k_proj", "v_proj"].map(|part| named(part, tensor.clone()));
            return Some(Ok(parts.to_vec()));
        }
        let number = |key: &str| layers.config.get(key).and_then(Value::as_u64);
        let [n_heads, n_kv_heads, head_dim] =
            ["num_attention_heads", "num_key_value_heads", "head_dim"].map(number);
        let [n_heads, n_kv_heads, head_dim] = [n_heads?, n_kv_heads?, head_dim?];
        let per_head = if self.nextn == Nextn::Apart { 2 } else { 1 };
        let kv_rows = n_kv_heads.checked_mul(head_dim);
        let q_rows = n_heads.checked_mul(head_dim).and_then(|rows| rows.checked_mul(per_head));
        let all = q_rows.zip(kv_rows).and_then(|(q, kv)| q.checked_add(kv)?.checked_add(kv));
        let rows = tensor.shape.first().copied().unwrap_or(0);
        if all != Some(rows as u64) || rows == 0 {
            let all = all.unwrap_or(u64::MAX);
            return Some(Err(format!("{rows} rows, not the {all} of queries, keys and values")));
        }
        let (q_rows, kv_rows) = (q_rows? as usize, kv_rows? as usize);
        let row_bytes = tensor.extent.len / rows;
        let mut start = 0;
        let parts = [("q_proj", q_rows), ("k_proj", kv_rows), ("v_proj", kv_rows)];
        let parts = parts.map(|(part, n)| {
            let mut part_tensor = tensor.clone();
            part_tensor.shape[0] = n;
            part_tensor.extent = tensor.extent.slice(start * row_bytes, n * row_bytes);
            start += n;
            named(part, part_tensor)
        });
        Some(Ok(parts.to_vec()))
    }
}

impl SingleExperts {
    /// The canonical name of a matrix of one expert: `ffn_gate.3.weight`.
    fn renamed(self, part: &str) -> Option<String> {
        let (matrix, rest) = part.strip_prefix("ffn_")?.split_once('.')?;
        let (expert, ending) = rest.split_once('.')?;
        let nth = ["gate", "up", "down"].iter().position(|known| *known == matrix)?;
        let expert: u16 = expert.parse().ok()?;
        Some(format!("{}.experts.{expert}.{}.{ending}", self.block, self.parts[nth]))
    }
}

/// What a file says of its layers.
struct Layers<'a> {
    /// Layers without those of multi-token prediction.
    n: usize,
    /// The names of all tensors.
    present: BTreeSet<&'a str>,
    config: &'a Map<String, Value>,
}

impl Layers<'_> {
    fn has(&self, layer: usize, part: &str) -> bool {
        self.present.contains(format!("blk.{layer}.{part}").as_str())
    }

    /// Whether a layer has a delta net.
    fn recurs(&self, layer: usize) -> bool {
        self.has(layer, DELTA_MARK)
    }

    /// Whether a tensor is not needed: the config holds what it says, or another tensor does.
    fn skips(&self, stored: &str) -> bool {
        let Some(place) = Place::of(stored) else {
            return stored == DIVISORS || TOWERS.iter().any(|prefix| stored.starts_with(prefix));
        };
        let is_indexer = place.part.starts_with("indexer.");
        let types = self.config.get("indexer_types").and_then(Value::as_array);
        let is_shared =
            |types: &Vec<Value>| types.get(place.layer).is_some_and(|kind| kind == "shared");
        match place.part {
            "attn_kv_b.weight" => self.has(place.layer, "attn_k_b.weight"),
            "attn_rot_embd.weight" => true,
            _ => is_indexer && types.is_some_and(is_shared),
        }
    }
}

/// The layer and the part that a name consists of.
struct Place<'a> {
    layer: usize,
    part: &'a str,
}

impl Place<'_> {
    fn of(stored: &str) -> Option<Place<'_>> {
        let (layer, part) = stored.strip_prefix("blk.")?.split_once('.')?;
        Some(Place { layer: layer.parse::<u16>().ok()?.into(), part })
    }
}

/// The canonical name of a part, by the first table that has it.
fn renamed(tables: &[&[Pair]], part: &str) -> Option<String> {
    let pairs = || tables.iter().copied().flatten();
    if let Some((_, to)) = pairs().find(|pair| pair.0 == part) {
        return Some((*to).to_owned());
    }
    let (stem, ending) = part.rsplit_once('.')?;
    pairs().find(|pair| pair.0 == stem).map(|(_, to)| format!("{to}.{ending}"))
}

/// The name in files of a canonical part, by a table.
fn found(pairs: &[Pair], part: &str) -> Option<String> {
    if let Some((from, _)) = pairs.iter().find(|pair| pair.1 == part) {
        return Some((*from).to_owned());
    }
    let (stem, ending) = part.rsplit_once('.')?;
    pairs.iter().find(|pair| pair.1 == stem).map(|(from, _)| format!("{from}.{ending}"))
}

/// The tensor in the shape that is declared for its name: the gate of a shared expert is a matrix
/// of one row.
fn shaped(tensor: &Tensor, name: &str) -> Tensor {
    let mut tensor = tensor.clone();
    if name.ends_with(".shared_expert_gate.weight") && tensor.shape.len() == 1 {
        tensor.shape.insert(0, 1);
    }
    tensor
}
