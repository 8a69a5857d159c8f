//! Language models inside models that also see, in the forms in which these are published: the logits are
//! those of the language model alone.

use std::fs;
use std::path::Path;

use moeflux_engine::{Activations, Engine, EngineOptions};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Map, Value, json};

use crate::common::{Golden, golden_dir, logits_by_chunk};

/// A model that also sees, around the language model of a golden case.
pub(crate) struct Wrapped {
    pub(crate) golden: &'static str,
    /// The `model_type` of the whole.
    pub(crate) model_type: &'static str,
    /// The key of the language model's config.
    key: &'static str,
    /// What stands before the names of the language model, and before the head's.
    prefixes: [&'static str; 2],
    /// Tensors of towers and projectors.
    others: &'static [&'static str],
}

const KIMI: Wrapped = Wrapped {
    golden: "deepseek_v3-plain",
    model_type: "kimi_vl",
    key: "text_config",
    prefixes: ["language_model.model.", "language_model."],
    others: &["vision_tower.patch_embed.pos_emb.weight", "multi_modal_projector.linear_1.weight"],
};

/// As transformers saves it.
const INTERN: Wrapped = Wrapped {
    golden: "qwen3_moe-hf",
    model_type: "internvl",
    key: "text_config",
    prefixes: ["model.language_model.", ""],
    others: &[
        "model.vision_tower.embeddings.cls_token",
        "model.multi_modal_projector.linear_1.weight",
    ],
};

/// As its publisher has it.
const INTERN_CHAT: Wrapped = Wrapped {
    golden: "qwen3_moe-hf",
    model_type: "internvl_chat",
    key: "llm_config",
    prefixes: ["language_model.model.", "language_model."],
    others: &["vision_model.embeddings.class_embedding", "mlp1.0.weight", "mlp1.1.bias"],
};

pub(crate) const CASES: &[Wrapped] = &[
    KIMI,
    INTERN,
    Wrapped { golden: "gpt_oss-hf", ..INTERN },
    INTERN_CHAT,
    Wrapped { golden: "gpt_oss-hf", ..INTERN_CHAT },
];

impl Wrapped {
    fn name(&self, name: &str) -> String {
        let [inner, outer] = self.prefixes;
        match name.strip_prefix("model.") {
            Some(rest) => format!("{inner}{rest}"),
            None => format!("{outer}{name}"),
        }
    }

    /// Writes the whole.
    fn write(&self, from: &Path, to: &Path) {
        let text = fs::read(from.join("config.json")).unwrap();
        let text: Map<String, Value> = serde_json::from_slice(&text).unwrap();
        let config = json!({
            "architectures": ["Seeing"], "model_type": self.model_type, self.key: text,
            "vision_config": {"hidden_size": 8, "model_type": "tower", "num_hidden_layers": 1},
        });
        fs::write(to.join("config.json"), config.to_string()).unwrap();
        let bytes = fs::read(from.join("model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let own = tensors.tensors().into_iter().map(|(name, view)| (self.name(&name), view));
        let zeros = [0; 16];
        let other = |name: &&str| {
            ((*name).to_owned(), TensorView::new(Dtype::BF16, vec![2, 4], &zeros).unwrap())
        };
        let all = own.chain(self.others.iter().map(other));
        fs::write(to.join("model.safetensors"), safetensors::serialize(all, None).unwrap())
            .unwrap();
    }
}

fn logits(path: &Path, golden: &Golden) -> Vec<Vec<f32>> {
    let options = EngineOptions::default().activations(Activations::Full);
    let engine = Engine::open(path, &options).unwrap_or_else(|err| panic!("{err}"));
    let sequences = golden.sequences.iter();
    sequences.map(|sequence| logits_by_chunk(&engine, &sequence.tokens, usize::MAX)).collect()
}

#[test]
fn models_that_also_see_have_the_logits_of_their_language_model() {
    for case in CASES {
        let (dir, folder) = (tempfile::tempdir().unwrap(), golden_dir().join(case.golden));
        case.write(&folder, dir.path());
        let golden = Golden::read(&folder);
        let (want, got) = (logits(&folder, &golden), logits(dir.path(), &golden));
        assert!(want == got, "{} in {}", case.golden, case.model_type);
    }
}
