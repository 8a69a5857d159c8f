//! Headers: what is read of good ones, and one line for each kind of damage.

use proptest::prelude::*;

use super::super::{Array, Value, parse_gguf_header};
use super::small::model;
use super::writer::{GgufWriter, text};
use super::{open, refused};
use crate::FileIdx;
use crate::checkpoint::{CheckpointKind, Dtype};
use crate::quant::{BlockType, Float};

fn parse(file: &GgufWriter) -> super::super::GgufHeader {
    let bytes = file.to_bytes();
    parse_gguf_header(&bytes[..], FileIdx(2), bytes.len() as u64).unwrap()
}

#[test]
fn reads_values_of_every_type() {
    let mut file = GgufWriter::new();
    file.raw("u8", 0, vec![200])
        .raw("i8", 1, vec![0xfe])
        .u16("u16", 60_000)
        .raw("i16", 3, (-5i16).to_le_bytes().to_vec())
        .u32("u32", 4_000_000_000)
        .i32("i32", -7)
        .f32("f32", 0.5)
        .bool("bool", true)
        .raw("odd bool", 7, vec![9])
        .text("text", "Grüße")
        .raw("u64", 10, u64::MAX.to_le_bytes().to_vec())
        .raw("i64", 11, i64::MIN.to_le_bytes().to_vec())
        .raw("f64", 12, 1e300f64.to_le_bytes().to_vec())
        .i32s("i32s", &[1, -2])
        .bools("bools", &[true, false])
        .texts("texts", &["a", ""])
        .array("u8s", 0, 3, vec![1, 2, 255])
        .array("f32s", 6, 1, 2.5f32.to_le_bytes().to_vec());
    let values = parse(&file).values;
    let number = |key: &str| match &values[key] {
        Value::Integer(number) => *number,
        other => panic!("{other:?}"),
    };
    assert_eq!(number("u8"), 200);
    assert_eq!(number("i8"), -2);
    assert_eq!(number("u16"), 60_000);
    assert_eq!(number("i16"), -5);
    assert_eq!(number("u32"), 4_000_000_000);
    assert_eq!(number("i32"), -7);
    assert_eq!(number("u64"), i128::from(u64::MAX));
    assert_eq!(number("i64"), i128::from(i64::MIN));
    assert_eq!(values["f32"], Value::Float(0.5));
    assert_eq!(values["f64"], Value::Float(1e300));
    assert_eq!(values["odd bool"], Value::Bool(true));
    assert_eq!(values["text"], Value::Text("Grüße".into()));
    assert_eq!(values["i32s"], Value::Array(Array::Integers(vec![1, -2])));
    assert_eq!(values["u8s"], Value::Array(Array::Integers(vec![1, 2, 255])));
    assert_eq!(values["bools"], Value::Array(Array::Bools(vec![true, false])));
    assert_eq!(values["texts"], Value::Array(Array::Texts(vec!["a".into(), String::new()])));
    assert_eq!(values["f32s"], Value::Array(Array::Floats(vec![2.5])));
}

#[test]
fn places_tensors_after_the_header() {
    for alignment in [8, 32, 64] {
        for version in [2, 3] {
            let mut file = GgufWriter { alignment, version, ..GgufWriter::new() };
            file.u32("general.alignment", alignment as u32)
                .floats("a", &[2, 3], &[0.5; 6])
                .tensor("b", &[3, 64], BlockType::Q8_0.id(), vec![7; 3 * 2 * 34])
                .tensor("c", &[], 26, vec![1; 4]);
            let (header, bytes) = (parse(&file), file.to_bytes());
            assert_eq!(header.version, version);
            let [a, b, c] = &header.tensors[..] else { panic!("three tensors") };
            assert_eq!((a.dtype.clone(), &a.shape[..]), (Dtype::Float(Float::F32), &[2, 3][..]));
            assert_eq!(b.dtype, Dtype::Ggml(BlockType::Q8_0));
            assert_eq!((c.dtype.name(), &c.shape[..]), ("I32", &[][..]));
            let start = file.header().len().next_multiple_of(alignment);
            assert_eq!((a.extent.offset, a.extent.file), (start as u64, FileIdx(2)));
            let at = b.extent.offset as usize;
            assert!(bytes[at..at + b.extent.len].iter().all(|byte| *byte == 7));
            assert_eq!(b.extent.len, 3 * 2 * 34);
            assert_eq!(c.extent.offset % alignment as u64, 0);
        }
    }
}

#[test]
fn a_model_opens_whatever_the_width_of_its_integers() {
    let mut file = model();
    file.i32("plain.block_count", 2);
    file.u16("plain.expert_count", 4);
    file.raw("plain.embedding_length", 10, 8u64.to_le_bytes().to_vec());
    file.u16("general.alignment", 32);
    let checkpoint = open(&file).unwrap();
    assert_eq!(checkpoint.kind(), CheckpointKind::Gguf);
    assert_eq!(checkpoint.config().usize("num_hidden_layers").unwrap(), 2);
    assert_eq!(checkpoint.gguf().unwrap().text("tokenizer.ggml.pre").unwrap(), Some("qwen2"));
}

/// Refused with this text after the file's name.
#[track_caller]
fn check(edit: impl FnOnce(&mut GgufWriter), want: &str) {
    let mut file = model();
    edit(&mut file);
    assert_eq!(refused(&file), format!("m.gguf: {want}"));
}

const FIRST: &str = "token_embd.weight";

#[test]
fn refuses_files_that_are_not_gguf() {
    let begins = "not a GGUF file: it begins with";
    check(|file| file.magic = *b"\0\0\0\0", &format!("{begins} \\x00\\x00\\x00\\x00"));
    let pointer = "this is a pointer of Git LFS, not the file: `git lfs pull` fetches it";
    check(|file| file.magic = *b"vers", pointer);
    let old = "a file of the formats before GGUF; convert the model again";
    check(|file| file.magic = *b"tjgg", old);
    check(|file| file.version = 1, "GGUF version 1; convert the model again");
    check(|file| file.version = 4, "GGUF version 4; versions 2 and 3 are read");
    let big = "a big-endian GGUF file; fetch a little-endian one";
    check(|file| file.version = 3 << 24, big);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, b"").unwrap();
    let got = super::message(dir.path(), super::open_checkpoint(&path));
    assert_eq!(got, "m.gguf: the file is empty: download it again");
}

#[test]
fn refuses_counts_that_the_file_has_no_room_for() {
    for (n, shown) in [(2 << 60, "2305843009213693952"), (u64::MAX, "18446744073709551615")] {
        let mut file = model();
        file.n_tensors = Some(n);
        let got = refused(&file);
        assert!(got.starts_with(&format!("m.gguf: {shown} tensors, the file has room")), "{got}");
    }
    let mut file = model();
    file.n_keys = Some(1 << 40);
    assert!(refused(&file).starts_with("m.gguf: 1099511627776 keys, the file has room for"));
    let mut file = model();
    file.raw("long", 8, (1u64 << 63).to_le_bytes().to_vec());
    let got = refused(&file);
    assert!(got.starts_with("m.gguf: long: a text of 9223372036854775808 bytes, "), "{got}");
    let mut file = model();
    file.array("tokenizer.ggml.tokens", 8, 1 << 40, Vec::new());
    let got = refused(&file);
    let start = "m.gguf: tokenizer.ggml.tokens: 1099511627776 elements, the file has room for";
    assert!(got.starts_with(start), "{got}");
}

#[test]
fn many_elements_are_refused_though_the_file_is_as_long() {
    let mut file = GgufWriter::new();
    file.array("long", 0, 1 << 40, Vec::new());
    let header = file.header();
    let got = parse_gguf_header(&header[..], FileIdx(0), 1 << 41).unwrap_err();
    assert_eq!(got, "long: 1099511627776 elements, at most 8388608 are read");
    let mut file = GgufWriter::new();
    file.raw("long", 8, (1u64 << 40).to_le_bytes().to_vec());
    let got = parse_gguf_header(&file.header()[..], FileIdx(0), 1 << 41).unwrap_err();
    assert_eq!(got, "long: a text of 1099511627776 bytes, at most 67108864 are read");
    for (n_tensors, n_keys, want) in [
        (Some(1 << 30), None, "1073741824 tensors, at most 262144 are read"),
        (None, Some(1 << 30), "1073741824 keys, at most 65536 are read"),
    ] {
        let file = GgufWriter { n_tensors, n_keys, ..GgufWriter::new() };
        let got = parse_gguf_header(&file.header()[..], FileIdx(0), 1 << 41).unwrap_err();
        assert_eq!(got, want);
    }
}

#[test]
fn refuses_keys_and_values_that_it_does_not_read() {
    let nested = "x: an array of arrays, which is not read";
    check(
        |file| {
            file.array("x", 9, 1, vec![0; 12]);
        },
        nested,
    );
    let unknown = "x: a value of type 99, which GGUF does not have";
    check(
        |file| {
            file.raw("x", 99, vec![0; 8]);
        },
        unknown,
    );
    let elements = "x: elements of type 13, which GGUF does not have";
    check(
        |file| {
            file.array("x", 13, 1, vec![0; 8]);
        },
        elements,
    );
    let twice = "key general.architecture occurs twice";
    let add = |file: &mut GgufWriter| {
        file.keys.push(("general.architecture".into(), 8, text("plain")));
    };
    check(add, twice);
    let name = "key 0: the name \"a\\nb\" is not printable text";
    check(|file| file.keys.insert(0, ("a\nb".into(), 7, vec![1])), name);
    check(|file| file.keys.insert(0, (String::new(), 7, vec![1])), &name.replace("a\\nb", ""));
    let mut bad = text("xy");
    bad[8] = 0xff;
    let what = "tokenizer.x: a text that is not UTF-8 \
                (invalid utf-8 sequence of 1 bytes from index 0)";
    check(
        |file| {
            file.raw("tokenizer.x", 8, bad.clone());
        },
        what,
    );
    let mut file = model();
    file.raw("general.description", 8, bad);
    assert!(open(&file).is_ok());
    let large = "x: 18446744073709551615 in an array is too large";
    check(
        |file| {
            file.array("x", 10, 1, vec![0xff; 8]);
        },
        large,
    );
}

#[test]
fn refuses_alignments_that_no_writer_uses() {
    let rule = "it must be a power of two from 8 to 1048576";
    for bad in [0, 1, 3, 1 << 31] {
        let want = format!("general.alignment is {bad}; {rule}");
        check(
            |file| {
                file.u32("general.alignment", bad);
            },
            &want,
        );
    }
    let want = format!("general.alignment is \"32\"; {rule}");
    check(
        |file| {
            file.text("general.alignment", "32");
        },
        &want,
    );
}

#[test]
fn refuses_dimensions_that_cannot_be() {
    let place = format!("tensor {FIRST}");
    let five = format!("{place}: 5 dimensions, at most 4 are read");
    check(|file| file.tensor_mut(FIRST).dims = vec![1; 5], &five);
    let zero = format!("{place}: a dimension of 0");
    check(|file| file.tensor_mut(FIRST).dims[1] = 0, &zero);
    let negative = format!("{place}: a dimension of 18446744073709551360");
    check(|file| file.tensor_mut(FIRST).dims[0] = (-256i64).cast_unsigned(), &negative);
    let large = format!("{place}: dimensions [4611686018427387904, 10], more than any file holds");
    check(|file| file.tensor_mut(FIRST).dims[0] = 1 << 62, &large);
    let product = format!("{place}: dimensions [4294967296, 4294967296], more than any file holds");
    check(|file| file.tensor_mut(FIRST).dims = vec![1 << 32, 1 << 32], &product);
    let blocks = format!("{place}: rows of 8 columns in Q4_K, whose blocks have 256");
    check(|file| file.tensor_mut(FIRST).type_id = BlockType::Q4_K.id(), &blocks);
    // A scalar ends earlier than what was written, so that the next tensor is elsewhere.
    let scalar = "tensor output.weight is at 320, not at 32 of the data";
    check(|file| file.tensor_mut(FIRST).dims.clear(), scalar);
}

#[test]
fn refuses_types_by_name() {
    let place = format!("tensor {FIRST}: type");
    let of = |id| move |file: &mut GgufWriter| file.tensor_mut(FIRST).type_id = id;
    check(of(43), &format!("{place} 43 is not a type of GGUF"));
    check(of(u32::MAX), &format!("{place} 4294967295 is not a type of GGUF"));
    let remedy = "was removed from GGUF; fetch a newer file of the model, or convert it again";
    check(of(5), &format!("{place} 5 (Q4_3) {remedy}"));
    let of_ollama = "is MXFP4 in the layout of Ollama's first files of gpt-oss (or Q4_2, which was removed from \
                     GGUF); fetch a file for llama.cpp, like ggml-org/gpt-oss-20b-GGUF";
    check(of(4), &format!("{place} 4 {of_ollama}"));
    check(of(31), &format!("{place} 31 (Q4_0_4_4) {remedy}"));
    let fork = "the file was made for ik_llama.cpp; fetch a file for llama.cpp";
    check(of(139), &format!("{place} 139: {fork}"));
}

#[test]
fn refuses_offsets_that_do_not_follow_one_another() {
    let of = |offset| move |file: &mut GgufWriter| file.tensor_mut(FIRST).offset = Some(offset);
    check(of(32), &format!("tensor {FIRST} is at 32, not at 0 of the data"));
    check(of(1 << 63), &format!("tensor {FIRST} is at 9223372036854775808, not at 0 of the data"));
    check(of(5), &format!("tensor {FIRST} is at 5, not at 0 of the data"));
}

#[test]
fn refuses_tensors_that_occur_twice_or_have_long_names() {
    let again = |file: &mut GgufWriter| {
        let first = file.tensor_mut(FIRST).clone();
        file.tensors.push(first);
    };
    check(again, &format!("tensor {FIRST} occurs twice"));
    let long = |file: &mut GgufWriter| {
        file.floats(&"x".repeat(64), &[1], &[1.0]);
    };
    let n = model().tensors.len();
    check(long, &format!("tensor {n}: a text of 64 bytes, at most 63 are read"));
    let line = |file: &mut GgufWriter| {
        file.floats("a\nb", &[1], &[1.0]);
    };
    check(line, &format!("tensor {n}: the name \"a\\nb\" is not printable text"));
}

#[test]
fn refuses_files_that_are_cut_anywhere() {
    let file = model();
    let (bytes, header) = (file.to_bytes(), file.header().len());
    let whole = parse_gguf_header(&bytes[..], FileIdx(0), bytes.len() as u64).unwrap();
    let data_end =
        whole.tensors.last().map(|tensor| tensor.extent.offset + tensor.extent.len as u64);
    for n in (0..bytes.len()).step_by(7).chain([header - 1, header]) {
        let cut = parse_gguf_header(&bytes[..n], FileIdx(0), n as u64);
        match cut {
            // What pads the end may be missing.
            Ok(_) => assert!(n as u64 >= data_end.unwrap()),
            Err(what) => {
                let is_told = what.contains("is the download complete?")
                    || what.contains("the file has room for")
                    || what.contains("are left")
                    || what.contains("too few");
                assert!(is_told, "{n}: {what}");
            }
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        len in any::<u64>(),
    ) {
        let mut file = GgufWriter::new().header();
        file.extend(&bytes);
        let _ = parse_gguf_header(&file[..], FileIdx(0), len);
        let _ = parse_gguf_header(&bytes[..], FileIdx(0), len);
    }

    #[test]
    fn changed_headers_never_panic(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = model().to_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let len = bytes.len() as u64;
        if let Ok(header) = parse_gguf_header(&bytes[..], FileIdx(0), len) {
            for tensor in header.tensors {
                prop_assert!(tensor.extent.offset + tensor.extent.len as u64 <= len);
            }
        }
    }
}

#[test]
fn a_header_is_read_to_its_end_and_no_further() {
    let file = model();
    let (header, bytes) = (file.header(), file.to_bytes());
    let mut source = &bytes[..];
    parse_gguf_header(&mut source, FileIdx(0), bytes.len() as u64).unwrap();
    assert_eq!(bytes.len() - source.len(), header.len());
    // What is no header is left soon.
    for start in [&b"version https://git-lfs"[..], b"GGUF\x01\0\0\0", b"GGUF\0\0\0\x03"] {
        let bytes = [start, &[0; 100]].concat();
        let mut source = &bytes[..];
        parse_gguf_header(&mut source, FileIdx(0), bytes.len() as u64).unwrap_err();
        assert!(bytes.len() - source.len() <= 8);
    }
}

#[test]
fn a_source_may_have_fewer_bytes_than_the_file() {
    let file = model();
    let (header, len) = (file.header(), file.to_bytes().len() as u64);
    assert!(parse_gguf_header(&header[..], FileIdx(0), len).is_ok());
    for n in [0, 3, 30, header.len() / 2, header.len() - 1] {
        let got = parse_gguf_header(&header[..n], FileIdx(0), len).unwrap_err();
        assert!(got.contains("ends inside its header"), "{n}: {got}");
    }
}
