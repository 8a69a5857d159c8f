//! Resident tables of whole numbers.

use super::*;
use crate::manifest::IndicesDecl;

const NAME: &str = "layers.0.t.ids";

fn ids(rows: usize, cols: usize) -> IndicesDecl {
    IndicesDecl { name: NAME.into(), rows, cols, below: 7 }
}

/// What is read of a table of 2 rows of 3 numbers that are stored so.
fn read(dtype: &str, numbers: &[i64]) -> Result<Vec<u32>, String> {
    let dir = small(json!({}), &[("model.layers.0.t.ids", dtype, &[2, 3])]);
    let checkpoint = open_checkpoint(dir.path()).unwrap();
    let mut claims = Claims::new(&checkpoint);
    let source = claims.indices(&ids(2, 3)).map_err(|err| err.to_string())?;
    claims.finish().unwrap();
    let width = source.extent.len / 6;
    let bytes: Vec<u8> =
        numbers.iter().flat_map(|number| number.to_le_bytes()[..width].to_vec()).collect();
    let path = dir.path().join("model.safetensors");
    let mut file = fs::read(&path).unwrap();
    file[source.extent.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
    fs::write(&path, file).unwrap();
    source.read(&checkpoint).map_err(|err| err.to_string())
}

#[test]
fn numbers_of_either_width_are_read() {
    for dtype in ["I32", "I64"] {
        assert_eq!(read(dtype, &[0, 6, 3, 2, 1, 5]), Ok(vec![0, 6, 3, 2, 1, 5]), "{dtype}");
    }
}

#[test]
fn numbers_that_cannot_be_are_refused_with_their_place() {
    let cases: [(&str, [i64; 6], &str, i64); 3] = [
        ("I64", [0, 1, 2, 3, 7, 5], "entry 1 of row 1", 7),
        ("I32", [0, 1, -1, 3, 4, 5], "entry 2 of row 0", -1),
        ("I64", [1 << 32, 1, 2, 3, 4, 5], "entry 0 of row 0", 1 << 32),
    ];
    for (dtype, numbers, place, number) in cases {
        let got = read(dtype, &numbers).unwrap_err();
        let want = format!("{place} is {number}; it must be from 0 to 6");
        assert!(got.contains("tensor model.layers.0.t.ids: ") && got.ends_with(&want), "{got}");
    }
}

#[test]
fn other_types_and_shapes_are_refused() {
    let refused = |dtype: &str, rows, cols| {
        let dir = small(json!({}), &[(NAME, dtype, &[2, 3])]);
        let checkpoint = open_checkpoint(dir.path()).unwrap();
        Claims::new(&checkpoint).indices(&ids(rows, cols)).unwrap_err().to_string()
    };
    assert!(refused("F32", 2, 3).contains("dtype F32 of layers.0.t.ids is not supported"));
    let got = refused("I64", 3, 2);
    assert!(got.contains("shape [2, 3], the config asks for [3, 2]"), "{got}");
    let dir = small(json!({}), &[]);
    let checkpoint = open_checkpoint(dir.path()).unwrap();
    let got = Claims::new(&checkpoint).indices(&ids(2, 3)).unwrap_err().to_string();
    assert!(got.contains("layers.0.t.ids is missing"), "{got}");
}
