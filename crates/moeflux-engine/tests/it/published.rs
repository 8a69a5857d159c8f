//! Configs of well-known published models, as far as they are public, and the sizes that these models
//! are known for: families read the configs, and a checkpoint of their shape is planned with the same
//! figures. The table of `docs/models.md` is made from these plans.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::OnceLock;

use moeflux_convert::synth::SynthOptions;
use moeflux_convert::synthesise;
use moeflux_core::checkpoint::Config;
use moeflux_core::manifest::{ExpertsDecl, Manifest};
use moeflux_core::show_bytes;
use moeflux_engine::{EngineOptions, Inspection, inspect};
use moeflux_model::{Declared, WithMtp};
use moeflux_store::IoChoice;
use serde::Deserialize;
use serde_json::Value;

use crate::page::check_page;

/// A config, and what is known of the models that have it.
#[derive(Deserialize)]
struct Published {
    models: Vec<String>,
    /// The name for `synth`.
    shape: String,
    family: String,
    /// Parameters, as publishers count them.
    billions: f64,
    layers: usize,
    moe_layers: usize,
    experts: usize,
    experts_per_token: usize,
    /// Parameters of an expert.
    expert_elements: usize,
    /// Keys and values of a position, and keys of indexers, where that is all that a position takes.
    kv_elements: Option<usize>,
    config: Value,
}

/// Bytes of an element of keys and values.
const KV_BYTES: usize = 4;

fn published() -> Vec<Published> {
    serde_json::from_str(include_str!("../published.json")).unwrap()
}

fn declared(model: &Published) -> Declared {
    let config = Config::from_value(Path::new("config.json"), model.config.clone()).unwrap();
    let declared = Declared::of_config(&config, WithMtp::Never);
    declared.unwrap_or_else(|err| panic!("{:?}: {err}", model.models))
}

fn parameters(manifest: &Manifest) -> usize {
    let matrices = manifest.matrices.iter().map(|matrix| matrix.rows * matrix.cols);
    let experts = manifest.experts.iter();
    let experts = experts.map(|layer| layer.n_experts * expert_elements(layer));
    let tables = manifest.tables.iter().map(|table| table.rows * table.cols);
    matrices.chain(experts).chain(tables).sum()
}

/// Parameters of an expert of a layer.
fn expert_elements(layer: &ExpertsDecl) -> usize {
    layer.matrices.names().into_iter().count() * layer.hidden * layer.intermediate
}

/// A checkpoint of the shape at four bits without weights, planned with the flags that the page names
/// and the smallest cache of whole MiB that has the experts of a token in a layer.
fn inspected(shape: &str) -> Inspection {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join(shape);
    let hollow = SynthOptions { is_hollow: true, ..SynthOptions::default() };
    synthesise(shape, &out, &hollow, &mut |_| {}).unwrap_or_else(|err| panic!("{shape}: {err}"));
    let options = EngineOptions::default().ctx(4096).chunk(128).checkpoint_bytes(0);
    let streamed = options.clone().expert_io(IoChoice::Pread);
    let least = inspect(&out, &streamed).unwrap().plan.min_cache_bytes;
    inspect(&out, &options.expert_cache(least.next_multiple_of(MIB))).unwrap()
}

const MIB: u64 = 1 << 20;

/// Those of all models.
fn all_inspected() -> &'static [Inspection] {
    static ALL: OnceLock<Vec<Inspection>> = OnceLock::new();
    ALL.get_or_init(|| published().iter().map(|model| inspected(&model.shape)).collect())
}

#[test]
fn configs_of_published_models_have_the_sizes_that_these_are_known_for() {
    for model in published() {
        let names = &model.models;
        let Declared { family, manifest, shape, .. } = declared(&model);
        assert_eq!(family.name, model.family, "{names:?}");
        let figures = [shape.n_layers, shape.n_moe_layers, shape.n_experts, shape.top_k];
        let want = [model.layers, model.moe_layers, model.experts, model.experts_per_token];
        assert_eq!(figures, want, "{names:?}");
        for layer in &manifest.experts {
            assert_eq!(
                expert_elements(layer),
                model.expert_elements,
                "{names:?}, {}",
                layer.prefix
            );
        }
        let billions = parameters(&manifest) as f64 / 1e9;
        let ratio = billions / model.billions;
        assert!((ratio - 1.0).abs() < 0.016, "{names:?}: {billions} of {} billion", model.billions);
        let kv: usize = shape.caches.iter().map(|cache| cache.bytes_per_position()).sum();
        if let Some(elements) = model.kv_elements {
            assert_eq!(kv, elements * KV_BYTES, "{names:?}");
        }
    }
}

#[test]
fn checkpoints_of_published_shapes_are_planned_with_the_figures_of_their_configs() {
    for (model, found) in published().iter().zip(all_inspected()) {
        let (names, declared) = (&model.models, declared(model));
        assert_eq!(found.family, model.family, "{names:?}");
        assert_eq!(found.shape, declared.shape, "{names:?}");
        // Four bits, and a scale and a bias of 16 bits for each 64 elements.
        let bytes = (model.expert_elements * 9 / 16) as u64;
        let n_experts = (model.moe_layers * model.experts) as u64;
        assert_eq!(found.plan.record_bytes, bytes, "{names:?}");
        assert_eq!(found.plan.expert_bytes, bytes * n_experts, "{names:?}");
        let of_token = bytes * (model.moe_layers * model.experts_per_token) as u64;
        assert_eq!(found.plan.working_set_bytes, of_token, "{names:?}");
    }
}

#[test]
fn the_page_of_models_has_what_they_need() {
    let mut made = String::from(
        "\n| model | `--shape` | least memory | its `--expert-cache` | weights on the drive | experts of a token |\n\
         |---|---|---|---|---|---|\n",
    );
    for (model, Inspection { plan, .. }) in published().iter().zip(all_inspected()) {
        let memory = plan.total_bytes();
        assert_eq!(memory, plan.needed_bytes(), "{}: no memory but the cache's grows", model.shape);
        let drive = plan.resident_bytes + plan.expert_bytes + plan.table_bytes;
        let (names, shape, cache) = (model.models.join(", "), &model.shape, plan.cache_bytes / MIB);
        let [memory, drive, of_token] = [memory, drive, plan.working_set_bytes].map(show_bytes);
        let _ = writeln!(
            made,
            "| {names} | `{shape}` | {memory} | `{cache}MiB` | {drive} | {of_token} |"
        );
    }
    made.push('\n');
    check_page("published::", &made);
}
