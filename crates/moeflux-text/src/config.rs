//! Settings for text in the other files of a checkpoint than `tokenizer.json`: special tokens,
//! templates, sampling.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use moeflux_core::checkpoint::companions::TEMPLATE_FOLDER;
use moeflux_core::checkpoint::{language_model, python_json};
use moeflux_core::files::{read_bounded, read_text_bounded};
use serde_json::{Map, Value};

use super::error::{TextError, excerpt};
use super::vocabulary::VocabularyFacts;

mod metadata;

/// Longest JSON file that is read; with thousands of added tokens they have a few MB.
const MAX_JSON_BYTES: u64 = 32 << 20;

/// Longest template file that is read; the largest published ones have about 30 kB.
const MAX_TEMPLATE_BYTES: u64 = 1 << 20;

/// Most files of [`TEMPLATE_FOLDER`] that are looked at.
const MAX_TEMPLATES: usize = 64;

/// Names of the tokens around the parts of a text in whose middle something is missing: before what
/// comes first, before what comes last, and where the answer begins.
pub(super) const INFILL_NAMES: [&str; 3] =
    ["fim_prefix_token", "fim_suffix_token", "fim_middle_token"];

/// The field of `tokenizer_config.json` that keeps what [`TextConfig::chats_begin`] says.
pub(super) const CHATS_BEGIN: &str = "add_bos_token_to_chats";

/// Sampling that the makers of a model recommend, from `generation_config.json`. `None` where
/// the file says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// `false` means greedy.
    pub do_sample: Option<bool>,
    /// Divides the logits.
    pub temperature: Option<f32>,
    /// Probability mass that is kept.
    pub top_p: Option<f32>,
    /// Number of tokens that are kept.
    pub top_k: Option<usize>,
    /// Least probability, as a share of the highest.
    pub min_p: Option<f32>,
    /// Divides positive logits of tokens seen before.
    pub repetition_penalty: Option<f32>,
}

impl GenerationDefaults {
    /// Whether it says how tokens are chosen, or that the likeliest ones are.
    pub fn names_sampling(&self) -> bool {
        let Self { do_sample, temperature, top_p, top_k, min_p, repetition_penalty: _ } = self;
        do_sample.is_some()
            || top_k.is_some()
            || [temperature, top_p, min_p].iter().any(|number| number.is_some())
    }
}

/// Everything that was found, still as text and ids.
#[derive(Clone, Debug, Default)]
pub(super) struct TextConfig {
    /// `bos_token`, `eos_token` and so on, by name.
    pub(super) named: BTreeMap<String, String>,
    pub(super) add_bos: Option<bool>,
    /// Whether a conversation begins with the token that begins texts where its template writes none:
    /// files for llama.cpp leave that token to the program.
    pub(super) chats_begin: bool,
    pub(super) bos_id: Option<u32>,
    pub(super) eos_ids: Vec<u32>,
    /// What `config.json` or the metadata of a GGUF file calls the architecture.
    pub(super) model_type: Option<String>,
    /// Chat templates by name; the usual one is `default`.
    pub(super) templates: BTreeMap<String, String>,
    /// The file that these are in, or the first of several.
    pub(super) template_file: Option<PathBuf>,
    pub(super) sampling: GenerationDefaults,
    /// What the user should know although nothing failed.
    pub(super) warnings: Vec<String>,
    /// What the vocabulary's files leave to those next to them.
    pub(super) vocabulary: VocabularyFacts,
}

/// A JSON object and the file that it came from.
struct JsonFile {
    path: PathBuf,
    fields: Map<String, Value>,
}

impl TextConfig {
    /// Reads what is there; files that do not exist are passed over.
    pub(super) fn read(dir: &Path) -> Result<Self, TextError> {
        let mut config = Self::default();
        let tokenizer = JsonFile::open(dir.join("tokenizer_config.json"))?;
        let special = JsonFile::open(dir.join("special_tokens_map.json"))?;
        for file in [&special, &tokenizer].into_iter().flatten() {
            config.named.extend(file.named_tokens());
        }
        config.vocabulary.add_special(config.named.values());
        if let Some(file) = &tokenizer {
            let taken = config.vocabulary.add_tokenizer_config(&file.fields);
            taken.map_err(|(field, value)| {
                file.bad(field, &value, "tokens with their content, by id")
            })?;
            let flag = |name: &str| file.fields.get(name).and_then(Value::as_bool);
            config.add_bos = flag("add_bos_token");
            config.chats_begin = flag(CHATS_BEGIN).unwrap_or(false);
        }
        if let Some(file) = JsonFile::open(dir.join("added_tokens.json"))? {
            config.vocabulary.add_added_tokens(&file.fields);
        }
        config.read_templates(dir, tokenizer.as_ref())?;
        if let Some(file) = JsonFile::open(dir.join("generation_config.json"))? {
            config.eos_ids = file.ids("eos_token_id", &file.fields)?;
            config.bos_id = file.ids("bos_token_id", &file.fields)?.first().copied();
            config.sampling = file.sampling()?;
        }
        if let Some(file) = JsonFile::open(dir.join("config.json"))? {
            config.vocabulary.add_config(&file.fields);
            config.model_type =
                file.fields.get("model_type").and_then(Value::as_str).map(str::to_owned);
            let inner = language_model(&file.fields);
            for fields in [Some(&file.fields), inner].into_iter().flatten() {
                config.eos_ids.extend(file.ids("eos_token_id", fields)?);
                let bos = file.ids("bos_token_id", fields)?.first().copied();
                config.bos_id = config.bos_id.or(bos);
            }
        }
        Ok(config)
    }

    /// Templates by name. Template files (`chat_template.jinja`, and those of the folder
    /// `additional_chat_templates`, each of which is named after its file) take the place of all that
    /// `chat_template.json` holds, which takes the place of what `tokenizer_config.json` holds.
    fn read_templates(
        &mut self,
        dir: &Path,
        tokenizer: Option<&JsonFile>,
    ) -> Result<(), TextError> {
        self.templates = template_files(dir)?;
        if !self.templates.is_empty() {
            let mut paths = template_paths(dir)?.into_iter();
            let found = paths.find(|(name, _)| self.templates.contains_key(name));
            self.template_file = found.map(|(_, path)| path);
            return Ok(());
        }
        let json = JsonFile::open(dir.join("chat_template.json"))?;
        for file in [json.as_ref(), tokenizer].into_iter().flatten() {
            let Some(value) = file.fields.get("chat_template") else { continue };
            self.templates = named_templates(value).ok_or_else(|| {
                file.bad("chat_template", value, "a string or a list of {name, template}")
            })?;
            if !self.templates.is_empty() {
                self.template_file = Some(file.path.clone());
                break;
            }
        }
        Ok(())
    }
}

impl JsonFile {
    fn open(path: PathBuf) -> Result<Option<Self>, TextError> {
        let bytes = match read_bounded(&path, MAX_JSON_BYTES) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(TextError::Read { path, source }),
        };
        match python_json(&bytes).and_then(serde_json::from_value) {
            Ok(fields) => Ok(Some(Self { path, fields })),
            Err(source) => Err(TextError::Json { path, source }),
        }
    }

    fn bad(&self, field: &str, value: &Value, want: &'static str) -> TextError {
        TextError::Field {
            path: self.path.clone(),
            field: field.to_owned(),
            value: excerpt(&value.to_string()),
            want,
        }
    }

    /// Fields such as `eos_token`: a string, or an object with `content`.
    fn named_tokens(&self) -> impl Iterator<Item = (String, String)> {
        self.fields.iter().filter(|(name, _)| name.ends_with("_token")).filter_map(
            |(name, value)| {
                let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
                Some((name.clone(), text.to_owned()))
            },
        )
    }

    /// An id, a list of ids, `null` or nothing.
    fn ids(&self, field: &str, fields: &Map<String, Value>) -> Result<Vec<u32>, TextError> {
        let value = fields.get(field).unwrap_or(&Value::Null);
        let list = match value {
            Value::Null => &[],
            Value::Array(list) => list.as_slice(),
            one => std::slice::from_ref(one),
        };
        let ids = list.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()));
        ids.collect::<Option<_>>()
            .ok_or_else(|| self.bad(field, value, "a token id or a list of token ids"))
    }

    fn number(&self, field: &str) -> Result<Option<f32>, TextError> {
        match self.fields.get(field).unwrap_or(&Value::Null) {
            Value::Null => Ok(None),
            value => match value.as_f64() {
                Some(x) => Ok(Some(x as f32)),
                None => Err(self.bad(field, value, "a number")),
            },
        }
    }

    fn sampling(&self) -> Result<GenerationDefaults, TextError> {
        let top_k = match self.fields.get("top_k").unwrap_or(&Value::Null) {
            Value::Null => None,
            // As vLLM has it, -1 keeps all tokens; here that is 0.
            value => match value.as_f64().filter(|k| k.fract() == 0.0) {
                Some(-1.0) => Some(0),
                Some(k) if (0.0..=f64::from(u32::MAX)).contains(&k) => Some(k as usize),
                _ => return Err(self.bad("top_k", value, "a number of tokens")),
            },
        };
        Ok(GenerationDefaults {
            do_sample: self.fields.get("do_sample").and_then(Value::as_bool),
            temperature: self.number("temperature")?,
            top_p: self.number("top_p")?,
            top_k,
            min_p: self.number("min_p")?,
            repetition_penalty: self.number("repetition_penalty")?,
        })
    }
}

fn template_files(dir: &Path) -> Result<BTreeMap<String, String>, TextError> {
    let mut templates = BTreeMap::new();
    for (name, path) in template_paths(dir)? {
        match read_text_bounded(&path, MAX_TEMPLATE_BYTES) {
            Ok(source) => {
                let source = source.strip_prefix('\u{feff}').unwrap_or(&source).to_owned();
                templates.insert(name, source);
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && name == "default" => {}
            Err(source) => return Err(TextError::Read { path, source }),
        }
    }
    Ok(templates)
}

/// Names of template files and where they are; the first one may not exist.
fn template_paths(dir: &Path) -> Result<Vec<(String, PathBuf)>, TextError> {
    let mut paths = vec![(String::from("default"), dir.join("chat_template.jinja"))];
    let folder = dir.join(TEMPLATE_FOLDER);
    let entries = match folder.read_dir() {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(paths),
        Err(source) => return Err(TextError::Read { path: folder, source }),
    };
    for entry in entries.take(MAX_TEMPLATES) {
        let entry = entry.map_err(|source| TextError::Read { path: folder.clone(), source })?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(name) = name.strip_suffix(".jinja") {
            paths.push((name.to_owned(), entry.path()));
        }
    }
    Ok(paths)
}

fn named_templates(value: &Value) -> Option<BTreeMap<String, String>> {
    match value {
        Value::Null => Some(BTreeMap::new()),
        Value::String(source) => Some(BTreeMap::from([("default".into(), source.clone())])),
        Value::Array(list) => list
            .iter()
            .map(|one| {
                let text = |key| one.get(key).and_then(Value::as_str).map(str::to_owned);
                text("name").zip(text("template"))
            })
            .collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn numbers_are_read_as_python_writes_them() {
        let top_k = |text: &str| {
            let dir = dir(&[("generation_config.json", text)]);
            TextConfig::read(dir.path()).map(|config| config.sampling.top_k)
        };
        assert_eq!(top_k(r#"{"top_k": -1}"#).unwrap(), Some(0));
        assert_eq!(top_k(r#"{"top_k": 40.0, "unused": -Infinity}"#).unwrap(), Some(40));
        assert_eq!(top_k("\u{feff}{\"top_k\": 40}").unwrap(), Some(40));
        for text in [r#"{"top_k": 1.5}"#, r#"{"top_k": -2.0}"#, r#"{"top_k": NaN}"#] {
            assert!(top_k(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_empty_directory_says_nothing() {
        let config = TextConfig::read(dir(&[]).path()).unwrap();
        assert!(config.eos_ids.is_empty() && config.templates.is_empty());
        assert_eq!(config.sampling, GenerationDefaults::default());
    }

    #[test]
    fn eos_ids_are_gathered_from_all_files() {
        let dir = dir(&[
            (
                "generation_config.json",
                r#"{"eos_token_id": [3, 4], "temperature": 0.7, "top_k": 20}"#,
            ),
            (
                "config.json",
                r#"{"eos_token_id": 5, "text_config": {"eos_token_id": 3, "bos_token_id": 9}}"#,
            ),
        ]);
        let config = TextConfig::read(dir.path()).unwrap();
        assert_eq!(config.eos_ids, [3, 4, 5, 3]);
        assert_eq!(config.bos_id, Some(9));
        assert_eq!(config.sampling.top_k, Some(20));
        assert_eq!(config.sampling.temperature, Some(0.7));
    }

    #[test]
    fn templates_come_from_lists_strings_and_files() {
        let list = r#"{"chat_template": [{"name": "default", "template": "a"},
                       {"name": "tool_use", "template": "t"}], "eos_token": {"content": "</s>"}}"#;
        let names = |dir: &tempfile::TempDir| TextConfig::read(dir.path()).unwrap().templates;
        let one = dir(&[("tokenizer_config.json", list)]);
        assert_eq!(names(&one)["default"], "a");
        assert_eq!(names(&one)["tool_use"], "t");
        assert_eq!(TextConfig::read(one.path()).unwrap().named["eos_token"], "</s>");
        let two = dir(&[
            ("tokenizer_config.json", list),
            ("chat_template.json", r#"{"chat_template": "b"}"#),
        ]);
        assert_eq!(names(&two)["default"], "b");
        let three = dir(&[("tokenizer_config.json", list), ("chat_template.jinja", "c")]);
        assert_eq!(names(&three)["default"], "c");
    }

    #[test]
    fn damage_is_reported_with_file_and_value() {
        for (name, text, want) in [
            ("config.json", "{", "config.json is not valid JSON"),
            ("config.json", r#"{"eos_token_id": -1}"#, "eos_token_id is -1"),
            ("generation_config.json", r#"{"eos_token_id": ["x"]}"#, r#"eos_token_id is ["x"]"#),
            ("generation_config.json", r#"{"top_p": "high"}"#, r#"top_p is "high""#),
            ("generation_config.json", r#"{"top_k": -4}"#, "top_k is -4"),
            ("tokenizer_config.json", r#"{"chat_template": 7}"#, "chat_template is 7"),
        ] {
            let error = TextConfig::read(dir(&[(name, text)]).path()).unwrap_err().to_string();
            assert!(error.contains(want) && error.contains(name), "{error}");
        }
    }
}
