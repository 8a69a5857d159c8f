//! The header of a GGUF file: its keys, and the places of its tensors.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use super::bytes::{Bytes, HeaderError, malformed};
use super::metadata::{Array, Value};
use super::types::TensorType;
use crate::checkpoint::{Extent, Tensor};
use crate::{FileIdx, StandIn};

/// Bytes before the first key.
const FIXED_BYTES: u64 = 24;

/// The largest numbers of keys and of tensors; the largest models have a hundred and some
/// thousands.
const MAX_KEYS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 18;

/// The fewest bytes of a key, and of the entry of a tensor.
const MIN_KEY_BYTES: u64 = 8 + 4 + 1;
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;

/// The longest name of a key.
const MAX_KEY_BYTES: u64 = 65_535;

/// The longest name of a tensor.
const MAX_NAME_BYTES: u64 = 63;

/// The longest text; a whole `tokenizer.json` of a large vocabulary has 30 MB.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// The most elements of all arrays together: twenty times those of the largest vocabularies.
const MAX_ELEMENTS: u64 = 1 << 23;

/// The most bytes of a header.
const MAX_HEADER_BYTES: u64 = 256 << 20;

const MAX_DIMS: u32 = 4;

const DEFAULT_ALIGNMENT: u64 = 32;

/// The accepted alignments are the powers of two between these.
const ALIGNMENTS: [u64; 2] = [8, 1 << 20];

/// The key of the alignment of a file's tensors.
const ALIGNMENT_KEY: &str = "general.alignment";

/// The content of a header.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufHeader {
    /// 2 or 3.
    pub version: u32,
    /// All keys and their values.
    pub values: BTreeMap<String, Value>,
    /// Every tensor, by ascending offset. Offsets count from the start of the file.
    pub tensors: Vec<Tensor>,
    /// Where the data of the tensors ends, with what fills it up to the alignment.
    pub data_end: u64,
}

/// Parses the header of a file. `source` gives the file from its start on and is read to the end of
/// the header, or to where damage shows. `file_len` is the length of the whole file in bytes, of
/// which the source may have fewer.
///
/// # Errors
/// A description of the problem, without the name of the file.
pub fn parse_gguf_header(
    source: impl Read,
    file: FileIdx,
    file_len: u64,
) -> Result<GgufHeader, String> {
    read_header(source, file, file_len).map_err(|err| match err {
        HeaderError::Io(err) => err.to_string(),
        HeaderError::Malformed(what) => what,
    })
}

/// Reads a header. No more is read than that.
pub(super) fn read_header(
    source: impl Read,
    file: FileIdx,
    file_len: u64,
) -> Result<GgufHeader, HeaderError> {
    let mut bytes = Bytes::new(source, file_len);
    let version = read_version(&mut bytes)?;
    let (n_tensors, n_keys) = (bytes.u64()?, bytes.u64()?);
    check_count("tensors", n_tensors, MAX_TENSORS, bytes.left() / MIN_TENSOR_BYTES)?;
    check_count("keys", n_keys, MAX_KEYS, bytes.left() / MIN_KEY_BYTES)?;
    let values = read_values(&mut bytes, n_keys)?;
    let alignment = alignment(&values)?;
    let mut entries = Vec::with_capacity(n_tensors as usize);
    let mut names = BTreeSet::new();
    for nth in 0..n_tensors {
        let entry = Entry::read(&mut bytes, nth)?;
        if !names.insert(entry.name.clone()) {
            return malformed(format!("tensor {} occurs twice", entry.name));
        }
        check_len(&bytes)?;
        entries.push(entry);
    }
    let data_start = bytes.at().next_multiple_of(alignment);
    let data = Data { start: data_start, alignment, file_len };
    let (tensors, n_bytes) = place(entries, file, data)?;
    Ok(GgufHeader { version, values, tensors, data_end: data_start.saturating_add(n_bytes) })
}

fn read_version<R: Read>(bytes: &mut Bytes<R>) -> Result<u32, HeaderError> {
    if bytes.left() < FIXED_BYTES {
        return malformed(format!("{} bytes are too few for a GGUF file", bytes.left()));
    }
    let magic: [u8; 4] = bytes.array()?;
    match &magic {
        b"GGUF" => {}
        b"vers" => return malformed(StandIn::LfsPointer.to_string()),
        b"tjgg" | b"fmgg" | b"lmgg" => {
            let remedy = "convert the model again";
            return malformed(format!("a file of the formats before GGUF; {remedy}"));
        }
        other => {
            return malformed(format!("not a GGUF file: it begins with {}", other.escape_ascii()));
        }
    }
    let version = bytes.u32()?;
    match version {
        2 | 3 => Ok(version),
        1 => malformed("GGUF version 1; convert the model again".to_owned()),
        _ if version & 0xffff == 0 => {
            let remedy = "fetch a little-endian one";
            malformed(format!("a big-endian GGUF file; {remedy}"))
        }
        _ => malformed(format!("GGUF version {version}; versions 2 and 3 are read")),
    }
}

/// Checks a count against its limit, and against what the rest of the file has room for.
fn check_count(what: &str, n: u64, limit: u64, room: u64) -> Result<(), HeaderError> {
    if n > room {
        return malformed(format!("{n} {what}, the file has room for {room} at most"));
    }
    if n > limit {
        return malformed(format!("{n} {what}, at most {limit} are read"));
    }
    Ok(())
}

fn check_len<R: Read>(bytes: &Bytes<R>) -> Result<(), HeaderError> {
    if bytes.at() <= MAX_HEADER_BYTES {
        return Ok(());
    }
    malformed(format!("a header of more than {MAX_HEADER_BYTES} bytes"))
}

fn read_values<R: Read>(
    bytes: &mut Bytes<R>,
    n_keys: u64,
) -> Result<BTreeMap<String, Value>, HeaderError> {
    let mut values = BTreeMap::new();
    let mut room = MAX_ELEMENTS;
    for nth in 0..n_keys {
        let place = format!("key {nth}");
        let key = bytes.text(MAX_KEY_BYTES).and_then(name).map_err(|err| err.at(&place))?;
        let kind = bytes.u32().map_err(|err| err.at(&key))?;
        let value = match kind {
            9 => read_array(bytes, &key, &mut room).map(Value::Array),
            _ => read_scalar(bytes, &key, kind),
        };
        let value = value.map_err(|err| err.at(&key))?;
        check_len(bytes)?;
        if values.insert(key.clone(), value).is_some() {
            return malformed(format!("key {key} occurs twice"));
        }
    }
    Ok(values)
}

fn read_scalar<R: Read>(bytes: &mut Bytes<R>, key: &str, kind: u32) -> Result<Value, HeaderError> {
    Ok(match kind {
        0 => Value::Integer(bytes.u8()?.into()),
        1 => Value::Integer(bytes.i8()?.into()),
        2 => Value::Integer(bytes.u16()?.into()),
        3 => Value::Integer(bytes.i16()?.into()),
        4 => Value::Integer(bytes.u32()?.into()),
        5 => Value::Integer(bytes.i32()?.into()),
        6 => Value::Float(bytes.f32()?.into()),
        7 => Value::Bool(bytes.u8()? != 0),
        8 => Value::Text(text(bytes.text(MAX_TEXT_BYTES)?, key)?),
        10 => Value::Integer(bytes.u64()?.into()),
        11 => Value::Integer(bytes.i64()?.into()),
        12 => Value::Float(bytes.f64()?),
        _ => return malformed(format!("a value of type {kind}, which GGUF does not have")),
    })
}

/// Reads an array, and takes its elements off the `room` that is left for those of all arrays.
fn read_array<R: Read>(
    bytes: &mut Bytes<R>,
    key: &str,
    room: &mut u64,
) -> Result<Array, HeaderError> {
    let kind = bytes.u32()?;
    let n = bytes.u64()?;
    let min_bytes = match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        8 | 10..=12 => 8,
        9 => return malformed("an array of arrays, which is not read".to_owned()),
        _ => return malformed(format!("elements of type {kind}, which GGUF does not have")),
    };
    check_count("elements", n, *room, bytes.left() / min_bytes)?;
    *room -= n;
    let elements = 0..n as usize;
    Ok(match kind {
        6 => Array::Floats(elements.map(|_| bytes.f32().map(f64::from)).collect::<Result<_, _>>()?),
        12 => Array::Floats(elements.map(|_| bytes.f64()).collect::<Result<_, _>>()?),
        7 => Array::Bools(elements.map(|_| Ok(bytes.u8()? != 0)).collect::<Result<_, _>>()?),
        8 => {
            let mut read = |_| {
                let element = text(bytes.text(MAX_TEXT_BYTES)?, key)?;
                check_len(bytes)?;
                Ok(element)
            };
            Array::Texts(elements.map(&mut read).collect::<Result<_, _>>()?)
        }
        _ => {
            let mut read = |_| match read_scalar(bytes, key, kind)? {
                Value::Integer(number) => i64::try_from(number)
                    .or_else(|_| malformed(format!("{number} in an array is too large"))),
                _ => unreachable!("the kinds of integers are what is left"),
            };
            Array::Integers(elements.map(&mut read).collect::<Result<_, _>>()?)
        }
    })
}

/// A text of UTF-8. Descriptions may be damaged, tokens may not.
fn text(bytes: Vec<u8>, key: &str) -> Result<String, HeaderError> {
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(err) if key.starts_with("general.") => {
            Ok(String::from_utf8_lossy(err.as_bytes()).into_owned())
        }
        Err(err) => malformed(format!("a text that is not UTF-8 ({})", err.utf8_error())),
    }
}

/// The name of a key or tensor: not empty, and nothing that breaks the lines of messages.
fn name(bytes: Vec<u8>) -> Result<String, HeaderError> {
    let shown = || bytes.escape_ascii().to_string();
    match std::str::from_utf8(&bytes) {
        Ok(name) if !name.is_empty() && !name.contains(char::is_control) => Ok(name.to_owned()),
        _ => malformed(format!("the name \"{}\" is not printable text", shown())),
    }
}

fn alignment(values: &BTreeMap<String, Value>) -> Result<u64, HeaderError> {
    let Some(value) = values.get(ALIGNMENT_KEY) else { return Ok(DEFAULT_ALIGNMENT) };
    let [min, max] = ALIGNMENTS;
    let alignment = match value {
        Value::Integer(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    let good = |number: &u64| number.is_power_of_two() && (min..=max).contains(number);
    alignment.filter(good).ok_or_else(|| {
        let rule = format!("it must be a power of two from {min} to {max}");
        HeaderError::Malformed(format!("{ALIGNMENT_KEY} is {}; {rule}", value.shown()))
    })
}

/// What the header says of a tensor.
struct Entry {
    name: String,
    /// Dimensions, outermost first.
    shape: Vec<usize>,
    stored: TensorType,
    /// From the start of the data on.
    offset: u64,
    n_bytes: u64,
}

impl Entry {
    fn read<R: Read>(bytes: &mut Bytes<R>, nth: u64) -> Result<Entry, HeaderError> {
        let place = format!("tensor {nth}");
        let name = bytes.text(MAX_NAME_BYTES).and_then(name).map_err(|err| err.at(&place))?;
        Entry::read_rest(bytes, name.clone()).map_err(|err| err.at(&format!("tensor {name}")))
    }

    fn read_rest<R: Read>(bytes: &mut Bytes<R>, name: String) -> Result<Entry, HeaderError> {
        let n_dims = bytes.u32()?;
        if n_dims > MAX_DIMS {
            return malformed(format!("{n_dims} dimensions, at most {MAX_DIMS} are read"));
        }
        let mut shape = Vec::new();
        for _ in 0..n_dims {
            let dim = bytes.u64()?;
            match usize::try_from(dim) {
                Ok(dim) if dim > 0 && i64::try_from(dim).is_ok() => shape.push(dim),
                _ => return malformed(format!("a dimension of {dim}")),
            }
        }
        let stored = TensorType::by_id(bytes.u32()?).or_else(malformed)?;
        let offset = bytes.u64()?;
        let cols = shape.first().copied().unwrap_or(1);
        if !cols.is_multiple_of(stored.block_cols) {
            let (name, block) = (stored.dtype.name(), stored.block_cols);
            return malformed(format!(
                "rows of {cols} columns in {name}, whose blocks have {block}"
            ));
        }
        let blocks =
            shape.iter().skip(1).try_fold(cols / stored.block_cols, |n, dim| n.checked_mul(*dim));
        let n_bytes = blocks
            .and_then(|n| n.checked_mul(stored.block_bytes))
            .filter(|n| i64::try_from(*n).is_ok());
        let Some(n_bytes) = n_bytes else {
            return malformed(format!("dimensions {shape:?}, more than any file holds"));
        };
        shape.reverse();
        Ok(Entry { name, shape, stored, offset, n_bytes: n_bytes as u64 })
    }
}

/// Where the tensors of a file are.
#[derive(Clone, Copy)]
struct Data {
    start: u64,
    alignment: u64,
    file_len: u64,
}

/// Checks that tensors follow one another, and are inside the file.
fn place(
    entries: Vec<Entry>,
    file: FileIdx,
    data: Data,
) -> Result<(Vec<Tensor>, u64), HeaderError> {
    let mut tensors = Vec::with_capacity(entries.len());
    let mut want = 0u64;
    for Entry { name, shape, stored, offset, n_bytes } in entries {
        if offset != want {
            return malformed(format!("tensor {name} is at {offset}, not at {want} of the data"));
        }
        let end = data.start.checked_add(offset).and_then(|start| start.checked_add(n_bytes));
        let Some(end) = end.filter(|end| *end <= data.file_len) else {
            let (start, len) = (data.start.saturating_add(offset), data.file_len);
            return malformed(format!(
                "tensor {name} has {n_bytes} bytes at {start}, the file ends at {len}; is the \
                 download complete?"
            ));
        };
        // The end is inside the file, so that rounding up does not overflow.
        want = (end - data.start).next_multiple_of(data.alignment);
        let extent = Extent { file, offset: end - n_bytes, len: n_bytes as usize };
        tensors.push(Tensor { stored_name: name, dtype: stored.dtype, shape, extent });
    }
    Ok((tensors, want))
}
