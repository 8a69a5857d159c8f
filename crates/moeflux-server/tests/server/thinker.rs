//! The demo model with a template that opens thoughts, which it was never taught to end.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// How the demo model's template opens an answer, and how one that thinks does.
const OPENS: &str = "{{- '<|im_start|>assistant\\n' }}\n{%- endif %}";
const THINKS: &str = "{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}
    {{- '<think>\\n\\n</think>\\n\\n' }}
{%- else %}
    {{- '<think>\\n' }}
{%- endif %}
{%- endif %}";

/// A folder that is removed with this.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    /// An empty folder of this process.
    pub(crate) fn new(name: &str) -> Folder {
        let dir = std::env::temp_dir().join(format!("moeflux-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        Folder(dir)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A model that thinks, in a folder of this name.
pub(crate) fn thinker(name: &str) -> Folder {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-cli/demo");
    let folder = Folder::new(name);
    copy(&demo, &folder.0);
    let template = folder.0.join("chat_template.jinja");
    let text = fs::read_to_string(&template).unwrap();
    assert_eq!(text.matches(OPENS).count(), 1);
    let text = text.replace(OPENS, THINKS);
    fs::write(&template, &text).unwrap();
    let manifest = folder.0.join("moeflux.json");
    let mut json: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    let files = json["files"].as_array_mut().unwrap();
    let entry = files.iter_mut().find(|file| file["path"] == "chat_template.jinja").unwrap();
    entry["bytes"] = text.len().into();
    fs::write(&manifest, json.to_string()).unwrap();
    folder
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
