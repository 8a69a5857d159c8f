//! What llama.cpp's converter makes of the tensors of a checkpoint.

use serde_json::Value;

use super::Source;
use super::keys::keys;
use super::names::name;
use super::tensors::{Floats, TABLE, Tensors, text};
use super::writer::GgufWriter;

/// The number of 32-bit integers in files.
const I32: u32 = 26;

pub(super) fn convert(source: &Source, architecture: &str) -> GgufWriter {
    let config = text(&source.config);
    let mut tensors = source.tensors.clone();
    stack_experts(&mut tensors, architecture);
    match architecture {
        "bailingmoe" => split_queries(&mut tensors, config),
        "deepseek2" | "glm-dsa" => split_latents(&mut tensors, config),
        "glm5-next" => {
            split_latents(&mut tensors, config);
            change_delta(&mut tensors);
        }
        "qwen4exp" => change_streams(&mut tensors, config),
        _ => {}
    }
    let mut file = GgufWriter::new();
    keys(&mut file, architecture, config, &tensors);
    for (canonical, tensor) in &tensors {
        let stored = name(architecture, canonical);
        if canonical.ends_with(TABLE) {
            let bytes = tensor.values.iter().flat_map(|number| (*number as i32).to_le_bytes());
            file.tensor(&stored, &tensor.shape, I32, bytes.collect());
        } else {
            file.floats(&stored, &tensor.shape, &tensor.values);
        }
    }
    file
}

fn number(config: &Value, key: &str) -> usize {
    usize::try_from(config[key].as_u64().unwrap_or_else(|| panic!("{key}"))).unwrap()
}

/// One tensor for each projection of all experts of a layer.
fn stack_experts(tensors: &mut Tensors, architecture: &str) {
    let blocks: Vec<String> = tensors
        .keys()
        .filter_map(|name| Some(format!("{}.experts", name.split_once(".experts.")?.0)))
        .collect();
    for block in blocks {
        if let Some(joined) = tensors.remove(&format!("{block}.gate_up_proj")) {
            // Inputs first, in the checkpoints of one family.
            let is_turned = architecture == "qwen3vlmoe";
            let turned = |stack: Floats| if is_turned { stack.transposed() } else { stack };
            let joined = turned(joined);
            let half = joined.shape[1] / 2;
            let experts = (0..joined.shape[0]).map(|expert| {
                let one = joined.rows(expert, 1);
                Floats { shape: one.shape[1..].to_vec(), values: one.values }
            });
            let experts: Vec<Floats> = experts.collect();
            for (part, first) in [("gate_proj", 0), ("up_proj", half)] {
                let parts: Vec<Floats> =
                    experts.iter().map(|expert| expert.rows(first, half)).collect();
                tensors.insert(format!("{block}.{part}"), Floats::stack(&parts));
            }
            let down = turned(tensors.remove(&format!("{block}.down_proj")).unwrap());
            tensors.insert(format!("{block}.down_proj"), down);
        }
        for part in ["gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"] {
            let one = |expert: usize| format!("{block}.{expert}.{part}.weight");
            let n = (0..).take_while(|expert| tensors.contains_key(&one(*expert))).count();
            if n > 0 {
                let all: Vec<Floats> =
                    (0..n).map(|expert| tensors.remove(&one(expert)).unwrap()).collect();
                tensors.insert(format!("{block}.{part}"), Floats::stack(&all));
            }
        }
    }
}

/// Queries, keys and values apart, the columns of rotated pairs next to each other.
fn split_queries(tensors: &mut Tensors, config: &Value) {
    let keys = ["num_attention_heads", "num_key_value_heads", "head_dim"];
    let [n_heads, n_kv_heads, head_dim] = keys.map(|key| number(config, key));
    let paired = |row: usize| {
        let (head, col) = (row / head_dim, row % head_dim);
        head * head_dim + col / 2 + col % 2 * head_dim / 2
    };
    for layer in 0..number(config, "num_hidden_layers") {
        let block = format!("layers.{layer}.attention");
        let joined = tensors.remove(&format!("{block}.query_key_value.weight")).unwrap();
        let (q, kv) = (n_heads * head_dim, n_kv_heads * head_dim);
        let parts = [
            ("q_proj", joined.rows(0, q).reordered(paired)),
            ("k_proj", joined.rows(q, kv).reordered(paired)),
            ("v_proj", joined.rows(q + kv, kv)),
        ];
        tensors.extend(parts.map(|(part, rows)| (format!("{block}.{part}.weight"), rows)));
    }
}

/// The two halves of what makes keys and values of latents, the first the other way round.
fn split_latents(tensors: &mut Tensors, config: &Value) {
    let keys = ["num_attention_heads", "qk_nope_head_dim", "v_head_dim", "num_hidden_layers"];
    let [n_heads, nope, values, n_layers] = keys.map(|key| number(config, key));
    for layer in 0..n_layers {
        let block = format!("layers.{layer}.self_attn");
        let Some(both) = tensors.remove(&format!("{block}.kv_b_proj.weight")) else { continue };
        let part = |first: usize, n: usize| {
            let heads = (0..n_heads).map(|head| both.rows(head * (nope + values) + first, n));
            Floats::stack(&heads.collect::<Vec<_>>())
        };
        tensors.insert(format!("{block}.k_b.weight"), part(0, nope).transposed());
        tensors.insert(format!("{block}.v_b.weight"), part(nope, values));
    }
}

/// Rates of decay in place of their logarithms, and convolutions in four dimensions.
fn change_delta(tensors: &mut Tensors) {
    for (name, tensor) in tensors {
        if name.ends_with("A_log") {
            tensor.values.iter_mut().for_each(|log| *log = -log.exp());
        } else if name.ends_with("_conv1d.weight") {
            tensor.shape = vec![1, tensor.shape[0], 1, tensor.shape[2]];
        }
    }
}

/// Norms as they multiply, rates of decay in place of their logarithms, value heads by their place in
/// the group of a key head, tables whole, and the indexer's projection apart.
fn change_streams(tensors: &mut Tensors, config: &Value) {
    let keys = ["linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim"];
    let [n_k, n_v, v_dim] = keys.map(|key| number(config, key));
    let ratio = n_v / n_k;
    let by_place = move |head: usize| head % n_k * ratio + head / n_k;
    let by_row = move |row: usize| by_place(row / v_dim) * v_dim + row % v_dim;
    let k_rows = 2 * n_k * number(config, "linear_key_head_dim");
    let indexer_rows = number(config, "indexer_n_heads") * number(config, "indexer_head_dim");
    let names: Vec<String> = tensors.keys().cloned().collect();
    for name in names {
        let Some(tensor) = tensors.remove(&name) else { continue };
        let of_layer = name.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
        let part = of_layer.map_or(name.as_str(), |(_, part)| part);
        let is_norm = part.contains("norm") && !part.starts_with("linear_attn");
        let values = |rows: &Floats| {
            let v = rows.rows(k_rows, rows.shape[0] - k_rows).reordered(by_row);
            Floats::joined(&[rows.rows(0, k_rows), v])
        };
        let changed = match part {
            "linear_attn.A_log" => tensor.reordered(by_place).map(|log| -log.exp()),
            "linear_attn.dt_bias"
            | "linear_attn.in_proj_a.weight"
            | "linear_attn.in_proj_b.weight" => tensor.reordered(by_place),
            "linear_attn.in_proj_qkv.weight" => values(&tensor),
            "linear_attn.conv1d.weight" => {
                let taps = values(&tensor);
                Floats { shape: vec![taps.shape[0], taps.shape[2]], ..taps }
            }
            "ple.conv1d.weight" => {
                Floats { shape: vec![tensor.shape[0], tensor.shape[2]], ..tensor }
            }
            "linear_attn.in_proj_z.weight" => tensor.reordered(by_row),
            "linear_attn.out_proj.weight" => tensor.transposed().reordered(by_row).transposed(),
            "self_attn.indexer.index_qk_proj.weight" => {
                let block = name.strip_suffix("index_qk_proj.weight").unwrap();
                let k = tensor.rows(indexer_rows, tensor.shape[0] - indexer_rows);
                tensors.insert(format!("{block}k_proj.weight"), k);
                tensors.insert(format!("{block}q_proj.weight"), tensor.rows(0, indexer_rows));
                continue;
            }
            _ if is_norm => tensor.map(|weight| weight + 1.0),
            _ if part.contains("ngram_embedding.shard_") => {
                let stem = name.split(".shard_").next().unwrap();
                let more = (1..).map_while(|i| tensors.remove(&format!("{stem}.shard_{i}.weight")));
                let all: Vec<Floats> = [tensor].into_iter().chain(more).collect();
                tensors.insert(format!("{stem}.weight"), Floats::joined(&all));
                continue;
            }
            _ => tensor,
        };
        tensors.insert(name, changed);
    }
}
