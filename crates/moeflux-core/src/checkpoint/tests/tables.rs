//! Tables whose rows are read one by one, in shards and whole.

use super::*;
use crate::manifest::TableDecl;
use crate::{RowEncoding, RowTable};

type Tensors<'a> = &'a [(&'a str, &'a str, &'a [usize])];

const SHARDS: Tensors<'_> = &[
    ("model.layers.1.t.shard_0.weight", "BF16", &[5, 16]),
    ("model.layers.1.t.shard_1.weight", "BF16", &[4, 16]),
    ("model.layers.1.t.shard_2.weight", "BF16", &[1, 16]),
];

fn claim(tensors: Tensors<'_>, rows: usize) -> Result<RowTable, FormatError> {
    let dir = small(json!({}), tensors);
    let checkpoint = open_checkpoint(dir.path())?;
    let mut claims = Claims::new(&checkpoint);
    let table = claims.table(&TableDecl { name: "layers.1.t".into(), rows, cols: 16 })?;
    claims.finish()?;
    assert_eq!(claims.row_bank().tables, std::slice::from_ref(&table));
    for extent in table.extents() {
        assert!(extent.offset + extent.len as u64 <= checkpoint.files()[0].len);
    }
    Ok(table)
}

fn refusal(tensors: Tensors<'_>, rows: usize) -> String {
    claim(tensors, rows).unwrap_err().to_string()
}

#[test]
fn shards_follow_each_other_in_the_order_of_their_numbers() {
    let table = claim(SHARDS, 10).unwrap();
    assert_eq!(table.parts.iter().map(|part| part.rows).collect::<Vec<_>>(), [5, 4, 1]);
    assert_eq!((table.rows(), table.row_bytes(), table.bytes()), (10, 32, 320));
    let whole = claim(&[("layers.1.t.weight", "F16", &[10, 16])], 10).unwrap();
    assert_eq!(whole.encoding, RowEncoding::Float(Float::F16));
    // Numbers are counted, not sorted as text.
    let names: Vec<String> = (0..12).map(|i| format!("layers.1.t.shard_{i}.weight")).collect();
    let shapes: Vec<[usize; 2]> = (1..13).map(|rows| [rows, 16]).collect();
    let many: Vec<(&str, &str, &[usize])> =
        names.iter().zip(&shapes).map(|(name, shape)| (&name[..], "F32", &shape[..])).collect();
    let table = claim(&many, 78).unwrap();
    assert!(table.parts.iter().map(|part| part.rows).eq(1..13));
}

#[test]
fn elements_of_eight_bits_have_one_scale() {
    let shard: (&str, &str, &[usize]) = ("layers.1.t.shard_0.weight", "F8_E4M3", &[3, 16]);
    for shape in [&[][..], &[1][..]] {
        let scale = ("layers.1.t.weight_scale", "F32", shape);
        assert_eq!(claim(&[shard, scale], 3).unwrap().encoding, RowEncoding::F8E4M3);
    }
    let got = refusal(&[shard], 3);
    assert!(got.contains("layers.1.t.weight_scale is missing"), "{got}");
    let got = refusal(&[shard, ("layers.1.t.weight_scale", "F32", &[3])], 3);
    assert!(got.contains("layers.1.t.weight_scale has shape [3]"), "{got}");
}

#[test]
fn tables_of_other_sizes_and_types_are_refused_by_name() {
    let got = refusal(SHARDS, 11);
    assert!(got.contains("layers.1.t has 10 rows in 3 tensors where 11 belong"), "{got}");
    // Without the shard in the middle.
    let got = refusal(&[SHARDS[0], SHARDS[2]], 5);
    assert!(got.contains("shard_2"), "{got}");
    let got = refusal(&[], 10);
    assert!(got.contains("layers.1.t.shard_0.weight is missing"), "{got}");
    let wide: (&str, &str, &[usize]) = ("layers.1.t.shard_1.weight", "BF16", &[4, 17]);
    let got = refusal(&[SHARDS[0], wide], 9);
    assert!(got.contains("[4, 17]") && got.contains("[4, 16]"), "{got}");
    let odd: (&str, &str, &[usize]) = ("layers.1.t.shard_1.weight", "F32", &[4, 16]);
    let got = refusal(&[SHARDS[0], odd], 9);
    assert!(got.contains("stored unlike its siblings"), "{got}");
    let flat: (&str, &str, &[usize]) = ("layers.1.t.weight", "BF16", &[160]);
    let got = refusal(&[flat], 10);
    assert!(got.contains("[_, 16]"), "{got}");
    let integers: (&str, &str, &[usize]) = ("layers.1.t.weight", "I8", &[10, 16]);
    let got = refusal(&[integers], 10);
    assert!(got.contains("dtype I8"), "{got}");
}
