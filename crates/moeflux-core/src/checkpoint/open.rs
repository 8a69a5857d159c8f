//! Opens a path as a [`Checkpoint`], whatever its format is.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::derived::DerivedTensors;
use super::json::read_json;
use super::names::{SkipRule, canonical_name};
use super::opened::{ExpertFiles, FileNames, Gguf, by_name, reader_of};
use super::quantization::QuantRules;
use super::{
    Checkpoint, CheckpointKind, Config, Container, FileReader, FormatError, Tensor, header,
    prepared, shards,
};
use crate::dialects::Dialects;
use crate::files::open_regular;
use crate::gguf::{Found, GgufSet, NamedTensor, is_gguf_name, translate};
use crate::spelling::respelled;
use crate::{FileIdx, SourceFile, StandIn, is_unfinished_name, visible};

/// The config of an adapter.
const ADAPTER: &str = "adapter_config.json";

/// Bytes of a file's start that say what it is.
const START_BYTES: u64 = 512;

impl Checkpoint {
    /// Opens the checkpoint in a directory; `path` may also name a file of it. `dialects` are those of
    /// the families that may run it.
    ///
    /// # Errors
    /// If there is no model, or its files contradict each other.
    pub fn open(path: &Path, dialects: &Dialects) -> Result<Checkpoint, FormatError> {
        let metadata = path.metadata().map_err(FormatError::io(path))?;
        if metadata.is_file() && is_gguf(path)? {
            return Self::open_gguf(path, dialects);
        }
        let root = if metadata.is_dir() { path.to_path_buf() } else { root_of_file(path)? };
        if root.join(Container::FILE).is_file() {
            return Self::open_packed(root, dialects);
        }
        if root.join(Container::JOURNAL).exists() {
            return Err(FormatError::Unfinished { path: root });
        }
        match prepared::find_index(&root) {
            Some(index) => Self::open_prepared(root, &index, dialects),
            None => Self::open_safetensors(root, dialects),
        }
    }

    fn open_packed(root: PathBuf, dialects: &Dialects) -> Result<Checkpoint, FormatError> {
        let path = root.join(Container::FILE);
        let container = Container::read(&path)?;
        for file in &container.files {
            let path = root.join(&file.path);
            // A missing file is an error only when its experts are loaded.
            let Ok(metadata) = path.metadata() else { continue };
            if metadata.len() != file.bytes {
                let what = format!("{} bytes, {} were packed", metadata.len(), file.bytes);
                return Err(FormatError::malformed(&path, what));
            }
        }
        let config = Config::from_value(&path, container.config.clone())?;
        let (file, header) = header::read_header(&root.join(Container::RESIDENT), FileIdx(0))?;
        let (mut files, mut tensors) = (vec![file], header.tensors);
        let tower = root.join(Container::TOWER);
        if container.file(Container::TOWER).is_some() && tower.exists() {
            let (file, header) = header::read_header(&tower, FileIdx(1))?;
            files.push(file);
            tensors.extend(header.tensors);
        }
        let parts = Parts {
            kind: CheckpointKind::Packed,
            companion_dirs: vec![root.clone()],
            root,
            tensors: canonical(tensors, &config, dialects),
            config,
            files,
            n_skipped: 0,
            warnings: Vec::new(),
            gguf: None,
            rules: container.rules(),
            container: Some(container.clone()),
            expert_files: ExpertFiles::Packed(Box::new(container)),
        };
        Self::assemble(parts, dialects)
    }

    fn open_prepared(
        root: PathBuf,
        index: &Path,
        dialects: &Dialects,
    ) -> Result<Checkpoint, FormatError> {
        let prepared = prepared::open(&root, index, dialects)?;
        let parts = Parts {
            kind: CheckpointKind::Prepared,
            root,
            tensors: canonical(prepared.tensors, &prepared.config, dialects),
            config: prepared.config,
            files: vec![prepared.file],
            n_skipped: 0,
            warnings: Vec::new(),
            gguf: None,
            rules: prepared.rules,
            companion_dirs: prepared.companion_dirs,
            container: None,
            expert_files: ExpertFiles::Prepared(prepared.experts),
        };
        Self::assemble(parts, dialects)
    }

    fn open_gguf(path: &Path, dialects: &Dialects) -> Result<Checkpoint, FormatError> {
        let set = GgufSet::open(path)?;
        let translated = translate(&set, &FileReader::new(&set.files), &dialects.architectures)?;
        let root = set.path().to_path_buf();
        let config = Config::from_value(&root, translated.config)?;
        let parts = Parts {
            kind: CheckpointKind::Gguf,
            root,
            config: config.with_stored_keys(translated.stored_keys),
            files: set.files,
            tensors: translated.tensors,
            n_skipped: translated.n_skipped,
            warnings: Vec::new(),
            rules: QuantRules::default(),
            // The files of other models may be in the same directory.
            companion_dirs: Vec::new(),
            container: None,
            expert_files: ExpertFiles::Tensors,
            gguf: Some(Gguf {
                metadata: set.metadata,
                names: FileNames::Architecture(translated.stored_names),
            }),
        };
        Self::assemble(parts, dialects)
    }

    fn open_safetensors(root: PathBuf, dialects: &Dialects) -> Result<Checkpoint, FormatError> {
        let path = root.join("config.json");
        let paths = shards::find(&root);
        // Safetensors without a config and of other names than a model's may belong to a GGUF file.
        let are_aside = !path.exists() && !shards::are_named(&root);
        if are_aside || matches!(paths, Err(FormatError::NotACheckpoint { .. })) {
            let found = Found::in_dir(&root)?;
            if !found.is_empty() {
                return Self::open_gguf(&found.only()?, dialects);
            }
        }
        let paths = paths.map_err(|err| or_unfinished(&root, err))?;
        if (!path.exists() || !shards::are_named(&root)) && root.join(ADAPTER).is_file() {
            return Err(adapter(root));
        }
        let config = Config::from_slice(&path, &read_json(&path)?)?;
        let shards::Held { files, tensors, warnings } = shards::read(&root, paths)?;
        let parts = Parts {
            kind: CheckpointKind::Safetensors,
            companion_dirs: vec![root.clone()],
            rules: QuantRules::read(&config, &root, dialects)?,
            root,
            tensors: canonical(tensors, &config, dialects),
            config,
            files,
            n_skipped: 0,
            warnings,
            gguf: None,
            container: None,
            expert_files: ExpertFiles::Tensors,
        };
        Self::assemble(parts, dialects)
    }

    /// Skips the tensors that are not used, and sorts the others by their canonical names.
    fn assemble(parts: Parts, dialects: &Dialects) -> Result<Checkpoint, FormatError> {
        let skip = SkipRule::new(&parts.config, dialects);
        let (skipped, used): (Vec<_>, Vec<_>) =
            parts.tensors.into_iter().partition(|named| skip.skips(&named.name));
        let n_skipped = parts.n_skipped + skipped.len();
        let other_parts = skipped.into_iter().filter(|named| skip.is_other_part(&named.name));
        let tensors = by_name(used, &parts.files)?;
        let derived = Arc::new(DerivedTensors::new(&parts.files));
        Ok(Checkpoint {
            kind: parts.kind,
            config: parts.config,
            reader: reader_of(&parts.files, &parts.root, &derived),
            root: parts.root,
            derived,
            files: parts.files,
            tensors,
            n_skipped,
            other_parts: other_parts.collect(),
            warnings: parts.warnings,
            skip,
            joined_experts: dialects.joined_experts.clone(),
            companion_dirs: parts.companion_dirs,
            container: parts.container,
            rules: parts.rules,
            expert_files: parts.expert_files,
            gguf: parts.gguf,
        })
    }
}

/// The parts of a checkpoint that all formats have.
struct Parts {
    kind: CheckpointKind,
    root: PathBuf,
    config: Config,
    files: Vec<SourceFile>,
    tensors: Vec<NamedTensor>,
    n_skipped: usize,
    warnings: Vec<String>,
    rules: QuantRules,
    companion_dirs: Vec<PathBuf>,
    container: Option<Container>,
    expert_files: ExpertFiles,
    gguf: Option<Gguf>,
}

/// The tensors under the names that exporters' prefixes leave, and that the family of the config has.
fn canonical(tensors: Vec<Tensor>, config: &Config, dialects: &Dialects) -> Vec<NamedTensor> {
    let model_type = config.str("model_type").unwrap_or_default();
    let spellings = dialects.spellings(model_type);
    let named = |tensor: Tensor| {
        let name = respelled(canonical_name(&tensor.stored_name, dialects), spellings);
        NamedTensor { name, tensor }
    };
    tensors.into_iter().map(named).collect()
}

/// What is wrong with a directory without a model: a download may have begun there.
fn or_unfinished(root: &Path, err: FormatError) -> FormatError {
    let FormatError::NotACheckpoint { .. } = err else { return err };
    let names = root.read_dir().into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut names = names.filter_map(|name| name.into_string().ok());
    match names.find(|name| is_unfinished_name(name)) {
        Some(name) => FormatError::PartOfDownload { path: root.to_path_buf(), name },
        None => err,
    }
}

/// What is wrong with the folder of an adapter.
fn adapter(root: PathBuf) -> FormatError {
    let config = read_json(&root.join(ADAPTER)).ok();
    let config = config.and_then(|json| serde_json::from_slice::<serde_json::Value>(&json).ok());
    let base = config.as_ref().and_then(|config| config.get("base_model_name_or_path")?.as_str());
    let base = base.map_or_else(|| "its model".to_owned(), |base| visible(base).into_owned());
    FormatError::Adapter { path: root, base }
}

/// Whether a file is a GGUF file, by its name or by its first bytes: downloads of some programs
/// have no names.
fn is_gguf(path: &Path) -> Result<bool, FormatError> {
    if path.file_name().and_then(|name| name.to_str()).is_some_and(is_gguf_name) {
        return Ok(true);
    }
    let handle = open_regular(path).map_err(FormatError::io(path))?;
    let mut magic = Vec::new();
    handle.take(START_BYTES).read_to_end(&mut magic).map_err(FormatError::io(path))?;
    match StandIn::of(&magic) {
        Some(found) => Err(FormatError::io(path)(found.into())),
        None => Ok(magic.starts_with(b"GGUF")),
    }
}

fn root_of_file(path: &Path) -> Result<PathBuf, FormatError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let path_buf = || path.to_path_buf();
    let not_a_checkpoint = || {
        if is_unfinished_name(name) {
            FormatError::PartOfDownload { path: path_buf(), name: name.to_owned() }
        } else {
            FormatError::NotACheckpoint { path: path_buf() }
        }
    };
    let is_known = name.ends_with(".safetensors")
        || name.ends_with(".safetensors.index.json")
        || [Container::FILE, "config.json", "model_weights.json", "model_weights.bin"]
            .contains(&name);
    if !is_known {
        return Err(not_a_checkpoint());
    }
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_path_buf(),
        None => return Err(not_a_checkpoint()),
    };
    let is_artifacts = name.starts_with("model_weights.") && parent.ends_with("artifacts");
    Ok(if is_artifacts { parent.join("..") } else { parent })
}
