//! Pictures of a conversation in the terminal.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail};
use moeflux::{picture_id, picture_message};
use moeflux_engine::{Engine, SeenPicture};
use moeflux_text::Message;

use super::command::at_home;
use crate::pictures::see_files;

/// Endings of names by which a pasted path is known to be a picture.
const ENDINGS: [&str; 5] = ["png", "jpg", "jpeg", "webp", "gif"];

/// Pictures that were shown, and those of the next question.
#[derive(Debug, Default)]
pub(super) struct Shown {
    known: Vec<Arc<SeenPicture>>,
    next: Vec<Arc<SeenPicture>>,
}

impl Shown {
    /// Looks at the picture in a file. It belongs to the next question, unless it is missing in `messages`:
    /// returns whether it does.
    pub(super) fn show(
        &mut self,
        engine: &Engine,
        file: &Path,
        messages: &[Message],
    ) -> Result<bool> {
        let seen = see_files(engine, &[file.to_path_buf()], "/image", false)?;
        let is_missing = |seen: &Arc<SeenPicture>| {
            let id = picture_id(seen);
            self.find(&id).is_none() && ids(messages).any(|own| own == id)
        };
        let was_missing = !seen.is_empty() && seen.iter().all(is_missing);
        let pictures = if was_missing { &mut self.known } else { &mut self.next };
        pictures.extend(seen);
        Ok(!was_missing)
    }

    /// A question about the pictures that were shown for it.
    pub(super) fn question(&self, text: String) -> Message {
        picture_message("user", &self.next, text)
    }

    /// Says that the question is part of the conversation now.
    pub(super) fn asked(&mut self) {
        self.known.append(&mut self.next);
    }

    /// Leaves out pictures that were shown for the next question.
    pub(super) fn forget_next(&mut self) {
        self.next.clear();
    }

    /// Pictures of messages, in the order of their parts.
    ///
    /// # Errors
    /// Where one was shown in an earlier run of the program: files keep hashes alone.
    pub(super) fn of(&self, messages: &[Message]) -> Result<Vec<Arc<SeenPicture>>> {
        let seen = |id: &str| match self.find(id) {
            Some(seen) => Ok(Arc::clone(seen)),
            None => bail!(
                "the conversation has an image that is not in its file: show it again with /image FILE, or \
                 /undo the question about it"
            ),
        };
        ids(messages).map(seen).collect()
    }

    fn find(&self, id: &str) -> Option<&Arc<SeenPicture>> {
        self.known.iter().chain(&self.next).find(|seen| picture_id(seen) == id)
    }
}

/// Hashes of the pictures of messages.
fn ids(messages: &[Message]) -> impl Iterator<Item = &str> {
    let parts = messages.iter().filter_map(|message| message.content.as_ref()?.as_array());
    let images = parts.flatten().filter(|part| part["type"] == "image");
    images.map(|part| part["picture"].as_str().unwrap_or_default())
}

/// The file of a picture, where a line is nothing but its path: so terminals paste files that are dropped
/// on them, in quotes or with spaces escaped.
pub(super) fn pasted(line: &str) -> Option<PathBuf> {
    let line = line.trim();
    let quoted = ['\'', '"'].into_iter().find_map(|c| line.strip_prefix(c)?.strip_suffix(c));
    let path = match quoted {
        Some(path) => path.to_owned(),
        None if cfg!(unix) => line.replace("\\ ", " "),
        None => line.to_owned(),
    };
    let path = at_home(path.strip_prefix("file://").unwrap_or(&path));
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    (ENDINGS.contains(&ending.as_str()) && path.is_file()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_the_path_of_a_picture_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("my cat.PNG");
        std::fs::write(&file, b"").unwrap();
        let path = file.to_str().unwrap();
        for line in [path.to_owned(), format!(" '{path}' "), format!("\"{path}\"")] {
            assert_eq!(pasted(&line).as_ref(), Some(&file), "{line}");
        }
        assert_eq!(pasted(&format!("file://{path}")).as_ref(), Some(&file));
        if cfg!(unix) {
            assert_eq!(pasted(&path.replace(' ', "\\ ")).as_ref(), Some(&file));
        }
        let text = dir.path().join("cat.txt");
        std::fs::write(&text, b"").unwrap();
        let missing = dir.path().join("dog.png");
        for line in [text.to_str().unwrap(), missing.to_str().unwrap(), "What is this?", ""] {
            assert_eq!(pasted(line), None, "{line}");
        }
        assert_eq!(pasted(&format!("{path} what is it?")), None);
    }
}
