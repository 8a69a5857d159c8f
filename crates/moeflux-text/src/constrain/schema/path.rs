//! Where in a schema a part is.

/// Characters of a path at most; the rest is left out.
const MAX_CHARS: usize = 200;

/// The place of a part, written as in `properties.to.anyOf[0]`.
#[derive(Clone, Debug, Default)]
pub(in crate::constrain) struct Path(String);

impl Path {
    /// Parses a JSON pointer.
    pub(super) fn of_pointer(pointer: &str) -> Path {
        let mut path = Path::default();
        for segment in pointer.split('/').skip(1) {
            let name = segment.replace("~1", "/").replace("~0", "~");
            match name.parse::<usize>() {
                Ok(index) => path.0.push_str(&format!("[{index}]")),
                Err(_) => path.push(&name),
            }
        }
        path
    }

    /// The path of a field.
    pub(in crate::constrain) fn key(&self, name: &str) -> Path {
        let mut path = self.clone();
        path.push(name);
        path
    }

    /// The path of an item.
    pub(in crate::constrain) fn index(&self, i: usize) -> Path {
        Path(format!("{}[{i}]", self.0))
    }

    fn push(&mut self, name: &str) {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_-$".contains(c);
        if name.is_empty() || !name.chars().all(is_word) {
            let quoted = serde_json::Value::from(name).to_string();
            self.0.push_str(&format!("[{quoted}]"));
        } else {
            if !self.0.is_empty() {
                self.0.push('.');
            }
            self.0.push_str(name);
        }
    }

    /// The text, shortened at its end.
    pub(in crate::constrain) fn shown(&self) -> String {
        match self.0.char_indices().nth(MAX_CHARS) {
            Some((end, _)) => format!("{}…", &self.0[..end]),
            None => self.0.clone(),
        }
    }
}
