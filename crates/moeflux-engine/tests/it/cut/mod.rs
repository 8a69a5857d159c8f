//! Packed containers whose files of experts fail in mid-run.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use moeflux_convert::pack::PackOptions;
use moeflux_convert::pack_checkpoint;
use moeflux_engine::EngineError;

use crate::common::golden_dir;

/// A golden case, packed.
pub(crate) fn packed(case: &str, options: &PackOptions) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    pack_checkpoint(&golden_dir().join(case), dir.path(), options, &mut |_| {}).unwrap();
    dir
}

/// Experts' files, cut to nothing and given back their bytes: the same files,
/// as a drive that came back.
pub(crate) struct Cut {
    pub(crate) files: Vec<(PathBuf, Vec<u8>)>,
}

impl Cut {
    pub(crate) fn of(dir: &Path) -> Cut {
        let entries = fs::read_dir(dir.join("packed_experts")).unwrap();
        let files = entries.map(|entry| entry.unwrap().path());
        let mut files: Vec<PathBuf> = files.collect();
        files.sort();
        Cut {
            files: files.into_iter().map(|file| (file.clone(), fs::read(file).unwrap())).collect(),
        }
    }

    /// Cuts the files of layers from `layer` on.
    pub(crate) fn cut(&self, layer: usize) {
        for (path, _) in &self.files[layer..] {
            File::options().write(true).open(path).unwrap().set_len(0).unwrap();
        }
    }

    /// Changes bytes of every expert.
    #[cfg(feature = "gpu")]
    pub(crate) fn damage(&self) {
        for (path, bytes) in &self.files {
            let mut bytes = bytes.clone();
            bytes.iter_mut().step_by(64).for_each(|byte| *byte = !*byte);
            fs::write(path, bytes).unwrap();
        }
    }

    pub(crate) fn restore(&self) {
        for (path, bytes) in &self.files {
            fs::write(path, bytes).unwrap();
        }
    }
}

#[track_caller]
pub(crate) fn check_names_layer_file(err: &EngineError) {
    let text = err.to_string();
    assert!(matches!(err, EngineError::Store(_)) && text.contains("layer_"), "{text}");
}
