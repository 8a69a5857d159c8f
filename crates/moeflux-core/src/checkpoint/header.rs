//! Headers of safetensors files.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use safetensors::tensor::Metadata;

use super::{Dtype, Extent, FormatError, Tensor};
use crate::files::open_regular;
use crate::{FileIdx, SourceFile, StandIn};

/// Bytes at the start of a file that hold the header's length.
const PREFIX_BYTES: u64 = 8;

/// The largest header that the format allows, in bytes.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The content of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The metadata that the writer of the file added.
    pub metadata: BTreeMap<String, String>,
    /// Every tensor, by ascending offset. Offsets count from the start of the file.
    pub tensors: Vec<Tensor>,
}

/// Parses the JSON of a header. `file_len` is the length of the whole file in bytes. The tensors
/// must fill the bytes after the header without holes.
///
/// # Errors
/// A description of the problem, without the name of the file.
pub fn parse_safetensors_header(
    json: &[u8],
    file: FileIdx,
    file_len: u64,
) -> Result<Header, String> {
    let metadata: Metadata = serde_json::from_slice(json)
        .map_err(|err| format!("bad safetensors header: {}", crate::json_problem(&err)))?;
    let data_start = PREFIX_BYTES + json.len() as u64;
    let data_len = metadata.data_len() as u64;
    if data_start.checked_add(data_len) != Some(file_len) {
        return Err(format!(
            "the header describes {data_len} bytes after its {data_start}, the file has {file_len}; \
             is the download complete?"
        ));
    }
    let tensor = |name: String| {
        let info = metadata.info(&name).expect("the header lists its own names");
        let (start, end) = info.data_offsets;
        Tensor {
            dtype: Dtype::named(&info.dtype.to_string()),
            shape: info.shape.clone(),
            extent: Extent { file, offset: data_start + start as u64, len: end - start },
            stored_name: name,
        }
    };
    let tensors = metadata.offset_keys().into_iter().map(tensor).collect();
    let notes = metadata.metadata().iter().flatten();
    Ok(Header { tensors, metadata: notes.map(|(k, v)| (k.clone(), v.clone())).collect() })
}

/// Opens a safetensors file and reads its header.
pub(super) fn read_header(path: &Path, file: FileIdx) -> Result<(SourceFile, Header), FormatError> {
    let mut handle = open_regular(path).map_err(FormatError::io(path))?;
    let file_len = handle.metadata().map_err(FormatError::io(path))?.len();
    if let Some(found) = StandIn::find(path, &mut handle).map_err(FormatError::io(path))? {
        return Err(FormatError::io(path)(found.into()));
    }
    let fail = |what: String| FormatError::malformed(path, what);
    let mut prefix = [0; PREFIX_BYTES as usize];
    if file_len < PREFIX_BYTES {
        return Err(fail(format!("{file_len} bytes are too few for a safetensors file")));
    }
    handle.read_exact(&mut prefix).map_err(FormatError::io(path))?;
    let json_len = u64::from_le_bytes(prefix);
    if json_len > MAX_HEADER_BYTES.min(file_len - PREFIX_BYTES) {
        return Err(fail(format!(
            "a header of {json_len} bytes in a safetensors file of {file_len} bytes; at most \
             {MAX_HEADER_BYTES} are allowed"
        )));
    }
    let mut json = vec![0; json_len as usize];
    handle.read_exact(&mut json).map_err(FormatError::io(path))?;
    let header = parse_safetensors_header(&json, file, file_len).map_err(fail)?;
    Ok((SourceFile::new(path.to_path_buf(), file_len), header))
}

/// Opens a single safetensors file and reads its header.
///
/// # Errors
/// If the file cannot be read, or is not a safetensors file.
pub fn open_safetensors(path: &Path) -> Result<(SourceFile, Header), FormatError> {
    read_header(path, FileIdx(0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::quant::Float;

    const GOOD: &str = r#"{"__metadata__":{"format":"mlx"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"b":{"dtype":"U32","shape":[1],"data_offsets":[12,16]}}"#;

    fn parse(json: &str, data_len: u64) -> Result<Header, String> {
        let file_len = PREFIX_BYTES + json.len() as u64 + data_len;
        parse_safetensors_header(json.as_bytes(), FileIdx(3), file_len)
    }

    #[test]
    fn counts_offsets_from_the_start_of_the_file() {
        let got = parse(GOOD, 16).expect("a good header").tensors;
        let start = PREFIX_BYTES + GOOD.len() as u64;
        assert_eq!(got.len(), 2);
        assert_eq!(got[0].dtype, Dtype::Float(Float::BF16));
        assert_eq!(got[0].extent, Extent { file: FileIdx(3), offset: start, len: 12 });
        assert_eq!(got[1].dtype, Dtype::U32);
        assert_eq!(got[1].extent.offset, start + 12);
    }

    #[test]
    fn refuses_files_longer_or_shorter_than_described() {
        assert!(parse(GOOD, 15).is_err());
        assert!(parse(GOOD, 17).is_err());
    }

    #[test]
    fn refuses_holes_overlaps_and_wrong_sizes() {
        let hole = GOOD.replace("[12,16]", "[16,20]");
        let overlap = GOOD.replace("[12,16]", "[8,12]");
        let size = GOOD.replace("[2,3]", "[2,4]");
        let huge = GOOD.replace("[2,3]", "[9223372036854775807,9223372036854775807]");
        let backwards = GOOD.replace("[12,16]", "[16,12]");
        for json in [hole, overlap, size, huge, backwards] {
            for data_len in [12, 16, 20] {
                assert!(parse(&json, data_len).is_err(), "{json}");
            }
        }
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), len in any::<u64>()) {
            let _ = parse_safetensors_header(&bytes, FileIdx(0), len);
        }

        #[test]
        fn mutated_headers_never_panic(at in 0..GOOD.len(), byte in any::<u8>(), len in 0..400u64) {
            let mut bytes = GOOD.as_bytes().to_vec();
            bytes[at] = byte;
            let _ = parse_safetensors_header(&bytes, FileIdx(0), len);
        }
    }
}
