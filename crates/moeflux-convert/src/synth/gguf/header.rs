//! The beginning of a GGUF file: its keys, and the places of its tensors.

use super::tensors::{ALIGNMENT, Stored};

const VERSION: u32 = 3;

/// A value of a key, in the type that other readers want.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    U16(u16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Text(String),
    Bools(Vec<bool>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    I64s(Vec<i64>),
    Texts(Vec<String>),
}

/// A key and its value.
pub(super) type Key = (String, Value);

impl Value {
    /// A count.
    ///
    /// # Panics
    /// If it does not fit 32 bits, as all counts of shapes do.
    pub(super) fn count(n: usize) -> Value {
        Value::U32(u32::try_from(n).expect("a count of a shape"))
    }

    /// The number of the type in files.
    fn kind(&self) -> u32 {
        match self {
            Value::U16(_) => 2,
            Value::U32(_) => 4,
            Value::I32(_) => 5,
            Value::F32(_) => 6,
            Value::Bool(_) => 7,
            Value::Text(_) => 8,
            Value::Bools(_)
            | Value::I32s(_)
            | Value::I64s(_)
            | Value::F32s(_)
            | Value::Texts(_) => 9,
        }
    }

    fn append(&self, out: &mut Vec<u8>) {
        let mut list = |kind: u32, n: usize, elements: Vec<u8>| {
            out.extend(kind.to_le_bytes());
            out.extend((n as u64).to_le_bytes());
            out.extend(elements);
        };
        match self {
            Value::U16(number) => out.extend(number.to_le_bytes()),
            Value::U32(number) => out.extend(number.to_le_bytes()),
            Value::I32(number) => out.extend(number.to_le_bytes()),
            Value::F32(number) => out.extend(number.to_le_bytes()),
            Value::Bool(value) => out.push(u8::from(*value)),
            Value::Text(text) => append_text(text, out),
            Value::Bools(all) => list(7, all.len(), all.iter().copied().map(u8::from).collect()),
            Value::I64s(all) => {
                list(11, all.len(), all.iter().flat_map(|number| number.to_le_bytes()).collect());
            }
            Value::F32s(all) => {
                list(6, all.len(), all.iter().flat_map(|number| number.to_le_bytes()).collect());
            }
            Value::I32s(all) => {
                list(5, all.len(), all.iter().flat_map(|number| number.to_le_bytes()).collect());
            }
            Value::Texts(all) => {
                let mut elements = Vec::new();
                all.iter().for_each(|text| append_text(text, &mut elements));
                list(8, all.len(), elements);
            }
        }
    }
}

fn append_text(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// The beginning of a file with these keys and tensors, padded to where the first tensor starts.
pub(super) fn header(keys: &[Key], tensors: &[Stored]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((keys.len() as u64).to_le_bytes());
    for (key, value) in keys {
        append_text(key, &mut out);
        out.extend(value.kind().to_le_bytes());
        value.append(&mut out);
    }
    let mut offset = 0u64;
    for tensor in tensors {
        append_text(&tensor.made.entry.name, &mut out);
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        // The innermost dimension comes first.
        out.extend(tensor.shape.iter().rev().flat_map(|dim| (*dim as u64).to_le_bytes()));
        out.extend(tensor.kind.id().to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += tensor.padded_bytes();
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    out
}
