//! Which files of a repository make the model.
//!
//! Repositories hold the same weights in several formats: `original/`, `metal/`, `onnx/`,
//! `consolidated.safetensors`, `*.bin`, `*.gguf`. Only the files that the engine opens are chosen,
//! by the same precedence: a packed container, then a prepared directory, then safetensors. GGUF
//! files (`gguf`) are taken where one is asked for, or where there is nothing else.

use std::collections::BTreeSet;

use moeflux_core::checkpoint::WeightFiles;
use moeflux_core::checkpoint::companions::{
    DECLARATIONS, PROCESSORS, TEMPLATE_FOLDER, VOCABULARIES,
};
use serde::Deserialize;

use super::error::beginning;

/// The file that makes a directory a packed container, and lists its files.
pub(super) const CONTAINER: &str = "moeflux.json";
/// The index of safetensors in several files.
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// The index of a prepared directory.
pub(super) const PREPARED_INDEX: &str = "model_weights.json";
pub(super) const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";

/// What text needs besides the config and the vocabulary.
pub(super) const COMPANIONS: [&str; 7] = [
    CONFIG,
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// Folders of a prepared directory's parts, by precedence.
const INDEX_FOLDERS: [&str; 2] = ["", "artifacts/"];
const CONFIG_FOLDERS: [&str; 3] = ["", "mlx/", "artifacts/"];
const EXPERT_FOLDERS: [&str; 6] = [
    "packed_experts/",
    "root/packed_experts/",
    "artifacts/packed_experts/",
    "packed_experts_2bit/",
    "root/packed_experts_2bit/",
    "artifacts/packed_experts_2bit/",
];

/// How the weights are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Files that the container's `moeflux.json` lists.
    Packed,
    /// The folder of the prepared index.
    Prepared { folder: &'static str },
    /// Files that an index lists.
    Sharded,
    /// Safetensors without an index.
    Plain,
}

/// The part of `moeflux.json` that lists files.
#[derive(Deserialize)]
struct Container {
    files: Vec<ContainerFile>,
}

#[derive(Deserialize)]
struct ContainerFile {
    path: String,
}

#[derive(Deserialize)]
struct Index {
    weight_map: std::collections::BTreeMap<String, String>,
}

impl Layout {
    /// The layout of a repository with these files.
    ///
    /// # Errors
    /// Why there is no model in it.
    pub(super) fn of(paths: &BTreeSet<&str>) -> Result<Self, String> {
        if paths.contains(CONTAINER) {
            return Ok(Self::Packed);
        }
        let prepared = INDEX_FOLDERS
            .into_iter()
            .find(|folder| paths.contains(format!("{folder}{PREPARED_INDEX}").as_str()));
        if let Some(folder) = prepared {
            return Ok(Self::Prepared { folder });
        }
        if !paths.contains(INDEX) && plain_weights(paths).is_empty() {
            return Err(no_weights(paths));
        }
        if !paths.contains(CONFIG) {
            return Err("it has no config.json: use a repository in the layout of Hugging Face's \
                        transformers or of MLX"
                .into());
        }
        Ok(if paths.contains(INDEX) { Self::Sharded } else { Self::Plain })
    }

    /// The file that says which weights there are, if the layout has one.
    pub(super) fn index(&self) -> Option<&'static str> {
        match self {
            Self::Packed => Some(CONTAINER),
            Self::Sharded => Some(INDEX),
            Self::Prepared { .. } | Self::Plain => None,
        }
    }

    /// The files that make the model; `index` is the content of [`Layout::index`].
    ///
    /// # Errors
    /// What is wrong with the index.
    pub(super) fn select(
        &self,
        paths: &BTreeSet<&str>,
        index: Option<&[u8]>,
    ) -> Result<BTreeSet<String>, String> {
        let companions = COMPANIONS.into_iter().chain(DECLARATIONS).chain(PROCESSORS);
        let companions = companions.filter(|name| paths.contains(name));
        let text = companions.chain(vocabulary_of(paths, "")).chain(templates_of(paths, ""));
        let mut wanted: BTreeSet<String> = text.map(str::to_owned).collect();
        let named: Vec<String> = match (self, index) {
            (Self::Packed, Some(index)) => {
                let container: Container = parse(CONTAINER, index)?;
                container.files.into_iter().map(|file| file.path).collect()
            }
            (Self::Sharded, Some(index)) => {
                let index: Index = parse(INDEX, index)?;
                shards_of(&index, paths.iter().copied())
            }
            (Self::Prepared { folder }, _) => prepared_files(paths, folder),
            _ => plain_weights(paths).into_iter().map(str::to_owned).collect(),
        };
        if let Some(name) = named.iter().find(|name| !paths.contains(name.as_str())) {
            let index = self.index().unwrap_or("it");
            let name = beginning(name);
            return Err(format!(
                "{index} names {}, which the repository does not have",
                name.escape_debug()
            ));
        }
        wanted.extend(named);
        wanted.extend(self.index().map(str::to_owned));
        Ok(wanted)
    }
}

/// Whether text can be made with these files.
pub(super) fn has_tokenizer<'a>(paths: impl Iterator<Item = &'a str>) -> bool {
    let paths: BTreeSet<&str> = paths.collect();
    CONFIG_FOLDERS.iter().any(|folder| !vocabulary_of(&paths, folder).is_empty())
}

/// The files of a vocabulary in a folder; of several vocabularies the one that is read.
fn vocabulary_of<'a>(paths: &BTreeSet<&'a str>, folder: &str) -> Vec<&'a str> {
    let found = |names: &[&str]| {
        let files = names.iter().map(|name| paths.get(format!("{folder}{name}").as_str()).copied());
        files.collect::<Option<Vec<_>>>()
    };
    VOCABULARIES.iter().find_map(|names| found(names)).unwrap_or_default()
}

/// Further chat templates in a folder.
fn templates_of<'a>(paths: &BTreeSet<&'a str>, folder: &str) -> impl Iterator<Item = &'a str> {
    let folder = format!("{folder}{TEMPLATE_FOLDER}/");
    let is_template = move |path: &&str| {
        path.strip_prefix(folder.as_str())
            .is_some_and(|name| name.ends_with(".jinja") && !name.contains('/'))
    };
    paths.iter().copied().filter(is_template)
}

/// Whether a file has to be whole before a model can be inspected.
pub(super) fn is_description(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let descriptions = [CONFIG, CONTAINER, INDEX, PREPARED_INDEX];
    descriptions.contains(&name) || DECLARATIONS.contains(&name)
}

/// Whether a file makes a directory a model, so that it has to come last.
pub(super) fn is_keystone(path: &str) -> bool {
    path == CONFIG || path == CONTAINER
}

fn parse<'a, T: Deserialize<'a>>(name: &str, json: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(json)
        .map_err(|err| format!("its {name} is malformed ({})", moeflux_core::json_problem(&err)))
}

/// The safetensors of a folder of the cache with an index; `None` if the index is none.
pub(super) fn shards(index: &[u8], files: &BTreeSet<String>) -> Option<Vec<String>> {
    let index = serde_json::from_slice(index).ok()?;
    Some(shards_of(&index, files.iter().map(String::as_str)))
}

/// The safetensors of a repository with an index.
fn shards_of<'a>(index: &'a Index, paths: impl Iterator<Item = &'a str>) -> Vec<String> {
    let weights = paths.filter(|path| path.ends_with(".safetensors"));
    let there: BTreeSet<&str> = weights.filter(|path| !path.contains('/')).collect();
    let of_index: BTreeSet<&str> = index.weight_map.values().map(String::as_str).collect();
    let names = match WeightFiles::of(&there, &of_index) {
        WeightFiles::Single => vec![SINGLE],
        WeightFiles::Numbered(names) => names,
        WeightFiles::OfIndex | WeightFiles::Missing(_) => of_index.into_iter().collect(),
    };
    names.into_iter().map(str::to_owned).collect()
}

/// The safetensors of a repository without an index.
fn plain_weights<'a>(paths: &BTreeSet<&'a str>) -> Vec<&'a str> {
    if let Some(single) = paths.get(SINGLE) {
        return vec![single];
    }
    let is_weights = |path: &&str| {
        let is_other = ["consolidated", "adapter"].iter().any(|start| path.starts_with(start));
        path.ends_with(".safetensors") && !path.contains('/') && !is_other
    };
    paths.iter().copied().filter(is_weights).collect()
}

fn prepared_files(paths: &BTreeSet<&str>, folder: &str) -> Vec<String> {
    let mut files = vec![format!("{folder}{PREPARED_INDEX}"), format!("{folder}model_weights.bin")];
    for name in COMPANIONS {
        let found = CONFIG_FOLDERS.iter().map(|folder| format!("{folder}{name}"));
        files.extend(found.into_iter().find(|path| paths.contains(path.as_str())));
    }
    let vocabularies = CONFIG_FOLDERS.iter().map(|folder| (folder, vocabulary_of(paths, folder)));
    if let Some((folder, vocabulary)) =
        vocabularies.into_iter().find(|(_, files)| !files.is_empty())
    {
        let text = vocabulary.into_iter().chain(templates_of(paths, folder));
        files.extend(text.map(str::to_owned));
    }
    let has_files = |folder: &&&str| paths.iter().any(|path| path.starts_with(**folder));
    if let Some(experts) = EXPERT_FOLDERS.iter().find(has_files) {
        let is_layer =
            |path: &&&str| path.strip_prefix(experts).is_some_and(|rest| !rest.contains('/'));
        files.extend(paths.iter().filter(is_layer).map(|path| path.to_string()));
    }
    files
}

/// Says what is there instead of weights.
fn no_weights(paths: &BTreeSet<&str>) -> String {
    let has = |end: &str| paths.iter().any(|path| path.ends_with(end));
    let there = if paths.iter().any(|path| path.starts_with("adapter")) {
        "it has an adapter only"
    } else if has(".safetensors") {
        "it has safetensors of other layouts only (consolidated, or in folders)"
    } else if has(".bin") || has(".pth") || has(".pt") {
        "it has PyTorch's files only"
    } else {
        "it has no weights"
    };
    format!(
        "{there}: use a repository with model.safetensors, as Hugging Face's transformers or MLX \
         write them, with GGUF files, or with a packed container"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(paths: &[&str], index: Option<&str>) -> Result<Vec<String>, String> {
        let paths: BTreeSet<&str> = paths.iter().copied().collect();
        let layout = Layout::of(&paths)?;
        assert_eq!(layout.index().is_some(), index.is_some(), "{layout:?}");
        let files = layout.select(&paths, index.map(str::as_bytes))?;
        Ok(files.into_iter().collect())
    }

    const TEXT: [&str; 4] =
        ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];

    /// The names of a real repository's files, and those that are needed of them.
    #[track_caller]
    fn check(needed: &[&str], others: &[&str], index: Option<&str>) {
        let all: Vec<&str> = needed.iter().chain(&TEXT).chain(others).copied().collect();
        let mut want: Vec<&str> = needed.iter().chain(&TEXT).copied().collect();
        want.sort_unstable();
        assert_eq!(select(&all, index).unwrap(), want);
    }

    #[test]
    fn copies_in_other_formats_stay_on_the_hub() {
        let index = r#"{"metadata": {"total_size": 1}, "weight_map": {
            "a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
        let sharded =
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", INDEX];
        // Mixtral, Mistral's own layout, gpt-oss, DeepSeek, Qwen.
        for others in [
            &["consolidated.00.pt", "tokenizer.model", "README.md", ".gitattributes"][..],
            &["additional_chat_templates/notes.md", "additional_chat_templates/old/a.jinja"],
            &["consolidated.safetensors", "params.json", "tekken.json"],
            &["consolidated-00001-of-00002.safetensors", "consolidated.safetensors.index.json"],
            &["original/config.json", "original/model.safetensors", "metal/model.bin", "LICENSE"],
            &["inference/model.py", "figures/benchmark.png", "configuration_deepseek.py"],
            &["merges.txt", "vocab.json", "pytorch_model.bin", "model.gguf", "onnx/model.onnx"],
            &["model-00001-of-00009.safetensors", "model.fp16.safetensors", "tf_model.h5"],
        ] {
            check(&sharded, others, Some(index));
        }
        check(&["model.safetensors"], &["original/model.safetensors", "x.safetensors"], None);
        check(
            &["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
            &["consolidated.safetensors", "adapter_model.safetensors"],
            None,
        );
    }

    #[test]
    fn processors_of_pictures_come_with_the_model() {
        check(&["model.safetensors", PROCESSORS[0]], &["video_preprocessor_config.json"], None);
        check(&["model.safetensors", PROCESSORS[0], PROCESSORS[1]], &[], None);
    }

    #[test]
    fn one_vocabulary_is_taken_and_all_templates() {
        let chosen = |text: &[&str]| {
            let model = ["config.json", "model.safetensors"];
            let all: Vec<&str> = model.iter().chain(text).copied().collect();
            let files = select(&all, None).unwrap();
            assert_eq!(has_tokenizer(all.iter().copied()), files.len() > 2, "{all:?}");
            files.into_iter().filter(|name| !model.contains(&name.as_str())).collect::<Vec<_>>()
        };
        let kimi = ["tiktoken.model", "tokenizer_config.json"];
        assert_eq!(chosen(&[&kimi[..], &["tokenization_kimi.py"]].concat()), kimi);
        let pair = ["merges.txt", "vocab.json"];
        assert_eq!(chosen(&[&pair[..], &["tokenizer.model"]].concat()), pair);
        assert_eq!(chosen(&["tokenizer.model", "vocab.json"]), ["tokenizer.model"]);
        let templates = ["additional_chat_templates/tool_use.jinja", "tokenizer.json"];
        assert_eq!(chosen(&[&templates[..], &["tiktoken.model"]].concat()), templates);
        assert_eq!(chosen(&["vocab.json", "tekken.json"]), [""; 0]);
    }

    #[test]
    fn containers_and_prepared_directories_name_their_files() {
        let container = r#"{"files": [{"path": "resident.safetensors", "bytes": 1},
            {"path": "experts/layer-000.bin"}, {"path": "tokenizer.json"}]}"#;
        check(
            &["moeflux.json", "resident.safetensors", "experts/layer-000.bin"],
            &["experts/layer-000.bin.partial", "model.safetensors", "packed_experts/layer_00.bin"],
            Some(container),
        );
        check(
            &["model_weights.json", "model_weights.bin", "packed_experts/layer_00.bin"],
            &["packed_experts_2bit/layer_00.bin", "artifacts/packed_experts/layer_00.bin", "x.py"],
            None,
        );
        let artifacts = [
            "artifacts/model_weights.bin",
            "artifacts/model_weights.json",
            "mlx/config.json",
            "mlx/tokenizer.json",
            "root/packed_experts_2bit/layer_00.bin",
        ];
        assert_eq!(select(&artifacts, None).unwrap(), artifacts);
    }

    #[test]
    fn repositories_without_a_model_say_what_they_hold() {
        for (paths, want) in [
            (&["adapter_config.json", "adapter_model.safetensors"][..], "adapter"),
            (&["params.json", "consolidated.safetensors"], "consolidated"),
            (&["config.json", "pytorch_model.bin"], "PyTorch"),
            (&["README.md"], "no weights"),
            (&["model.safetensors"], "no config.json"),
        ] {
            let error = select(paths, None).unwrap_err();
            assert!(error.contains(want) && error.contains("use a repository"), "{error}");
        }
    }

    #[test]
    fn an_index_that_names_what_is_not_there_is_refused() {
        let paths = ["config.json", INDEX, "model-1.safetensors"];
        let error = select(&paths, Some(r#"{"weight_map": {"a": "x.safetensors"}}"#)).unwrap_err();
        assert!(error.contains("names x.safetensors"), "{error}");
        assert!(select(&paths, Some("<html>")).unwrap_err().contains("malformed"));
    }
}
