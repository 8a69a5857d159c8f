//! Random requests and gathers against the files.

use moeflux_core::RowEncoding;
use moeflux_core::quant::Float;
use proptest::collection::vec;
use proptest::prelude::*;

use super::fixture::{Fixture, options};
use crate::IoMode;

#[derive(Clone, Debug)]
enum Op {
    Request(Vec<u64>),
    Withdraw,
    Gather(Vec<u64>),
    GatherRequested(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let rows = || vec(0..2001u64, 1..400);
    prop_oneof![
        rows().prop_map(Op::Request),
        vec(0..2001u64, 1100..2500).prop_map(Op::Request),
        Just(Op::Withdraw),
        rows().prop_map(Op::Gather),
        (1..300usize).prop_map(Op::GatherRequested),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn gathers_give_the_rows_of_the_files(
        ops in vec(op(), 1..20),
        n_slots in prop_oneof![0..8u64, 8..300u64, Just(5000)],
        is_direct: bool,
    ) {
        let mode = if is_direct { IoMode::Direct } else { IoMode::Pread };
        let encoding = RowEncoding::Float(Float::BF16);
        let fixture = Fixture::new(encoding, options(mode, n_slots * (32 + 72)));
        let mut requests = Vec::new();
        for op in ops {
            match op {
                Op::Request(rows) => {
                    requests.push((fixture.store.request(0, rows.clone()), rows, 0));
                }
                Op::Withdraw => drop(requests.pop()),
                Op::Gather(rows) => fixture.check(0, &rows),
                Op::GatherRequested(n) => {
                    if let Some((_, rows, done)) = requests.first_mut() {
                        let end = (*done + n).min(rows.len());
                        fixture.check(0, &rows[*done..end]);
                        *done = end;
                    }
                }
            }
            let stats = fixture.store.stats();
            prop_assert!(stats.resident <= stats.n_slots);
        }
    }
}
