//! Writes GGUF files for tests, whole or damaged.

use std::path::Path;

/// The number of the type `F32`.
pub(crate) const F32: u32 = 0;

/// A file in the making. Every part may be changed before it is written.
#[derive(Clone)]
pub(crate) struct GgufWriter {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u32,
    /// Of tensors; `general.alignment` is a key like others.
    pub(crate) alignment: usize,
    /// Name, type and bytes of each value.
    pub(crate) keys: Vec<(String, u32, Vec<u8>)>,
    pub(crate) tensors: Vec<StoredTensor>,
    /// Replaces the number of tensors in the header.
    pub(crate) n_tensors: Option<u64>,
    /// Replaces the number of keys in the header.
    pub(crate) n_keys: Option<u64>,
}

/// A tensor of such a file.
#[derive(Clone)]
pub(crate) struct StoredTensor {
    pub(crate) name: String,
    /// The innermost dimension first.
    pub(crate) dims: Vec<u64>,
    pub(crate) type_id: u32,
    pub(crate) bytes: Vec<u8>,
    /// Replaces the offset.
    pub(crate) offset: Option<u64>,
}

impl GgufWriter {
    pub(crate) fn new() -> GgufWriter {
        GgufWriter {
            magic: *b"GGUF",
            version: 3,
            alignment: 32,
            keys: Vec::new(),
            tensors: Vec::new(),
            n_tensors: None,
            n_keys: None,
        }
    }

    /// Sets a key of any type, in the place of a value that it has.
    pub(crate) fn raw(&mut self, key: &str, kind: u32, bytes: Vec<u8>) -> &mut GgufWriter {
        let value = (key.to_owned(), kind, bytes);
        match self.keys.iter_mut().find(|known| known.0 == key) {
            Some(known) => *known = value,
            None => self.keys.push(value),
        }
        self
    }

    pub(crate) fn remove(&mut self, key: &str) -> &mut GgufWriter {
        self.keys.retain(|known| known.0 != key);
        self
    }

    pub(crate) fn u16(&mut self, key: &str, value: u16) -> &mut GgufWriter {
        self.raw(key, 2, value.to_le_bytes().to_vec())
    }

    pub(crate) fn u32(&mut self, key: &str, value: u32) -> &mut GgufWriter {
        self.raw(key, 4, value.to_le_bytes().to_vec())
    }

    pub(crate) fn i32(&mut self, key: &str, value: i32) -> &mut GgufWriter {
        self.raw(key, 5, value.to_le_bytes().to_vec())
    }

    pub(crate) fn f32(&mut self, key: &str, value: f32) -> &mut GgufWriter {
        self.raw(key, 6, value.to_le_bytes().to_vec())
    }

    pub(crate) fn bool(&mut self, key: &str, value: bool) -> &mut GgufWriter {
        self.raw(key, 7, vec![value.into()])
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) -> &mut GgufWriter {
        self.raw(key, 8, text(value))
    }

    pub(crate) fn texts(&mut self, key: &str, values: &[&str]) -> &mut GgufWriter {
        self.array(key, 8, values.len(), values.iter().flat_map(|value| text(value)).collect())
    }

    pub(crate) fn bools(&mut self, key: &str, values: &[bool]) -> &mut GgufWriter {
        self.array(key, 7, values.len(), values.iter().map(|value| u8::from(*value)).collect())
    }

    pub(crate) fn i32s(&mut self, key: &str, values: &[i32]) -> &mut GgufWriter {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(key, 5, values.len(), bytes)
    }

    /// Sets an array of elements that are bytes already.
    pub(crate) fn array(
        &mut self,
        key: &str,
        kind: u32,
        n: usize,
        elements: Vec<u8>,
    ) -> &mut GgufWriter {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend((n as u64).to_le_bytes());
        bytes.extend(elements);
        self.raw(key, 9, bytes)
    }

    /// Adds a tensor of `F32`. `shape` has the outermost dimension first.
    pub(crate) fn floats(
        &mut self,
        name: &str,
        shape: &[usize],
        values: &[f32],
    ) -> &mut GgufWriter {
        assert_eq!(values.len(), shape.iter().product::<usize>(), "{name}");
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, shape, F32, bytes)
    }

    /// Adds a tensor of any type. `shape` has the outermost dimension first.
    pub(crate) fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        type_id: u32,
        bytes: Vec<u8>,
    ) -> &mut GgufWriter {
        let dims = shape.iter().rev().map(|dim| *dim as u64).collect();
        let (name, offset) = (name.to_owned(), None);
        self.tensors.push(StoredTensor { name, dims, type_id, bytes, offset });
        self
    }

    /// The tensor with this name.
    pub(crate) fn tensor_mut(&mut self, name: &str) -> &mut StoredTensor {
        let found = self.tensors.iter_mut().find(|tensor| tensor.name == name);
        found.unwrap_or_else(|| panic!("no tensor {name}"))
    }

    /// The bytes of the header.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.n_tensors.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.n_keys.unwrap_or(self.keys.len() as u64).to_le_bytes());
        for (key, kind, bytes) in &self.keys {
            out.extend(text(key));
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        }
        let mut at = 0;
        for tensor in &self.tensors {
            out.extend(text(&tensor.name));
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            out.extend(tensor.dims.iter().flat_map(|dim| dim.to_le_bytes()));
            out.extend(tensor.type_id.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(at as u64).to_le_bytes());
            at += tensor.bytes.len().next_multiple_of(self.alignment);
        }
        out
    }

    /// The bytes of the whole file.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.header();
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&tensor.bytes);
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out
    }

    /// Writes the file.
    pub(crate) fn write(&self, path: &Path) {
        std::fs::write(path, self.to_bytes()).expect("a file of a test");
    }
}

/// A text as GGUF stores it.
pub(crate) fn text(text: &str) -> Vec<u8> {
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text.as_bytes());
    out
}
