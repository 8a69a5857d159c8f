//! Caches that are saved, loaded into another sequence and cut.

use super::suite::{Numbers, Suite, filled, read};
use crate::{
    Attention, Backend, Cache, CacheSpec, CausalConv, Cols, Decay, DeltaRule, KeysValues, KvType,
    Sequence, Span, StateShape, StateSnapshot, StateSpace, ValueOrder,
};

const ROWS: usize = 90;

pub(super) fn check(suite: &Suite<'_>) {
    for dtype in [KvType::F32, KvType::Bf16, KvType::Q8] {
        suite.case(&format!("caches of {dtype:?}"), &|b| caches(b, dtype));
        suite.case(&format!("windows over {dtype:?}"), &|b| passed(b, dtype));
    }
}

/// Ops on the columns of one buffer, one for each kind of cache.
struct Ops {
    x: Cols,
    out: [Cols; 4],
    conv: CausalConv,
    attention: Attention,
    delta: DeltaRule,
    state_space: StateSpace,
}

impl Ops {
    fn new(b: &mut dyn Backend) -> Ops {
        let x = filled(b, ROWS, 33, 90);
        let widths = [33, 14, 14, 12];
        let mut seed = 90;
        let out = widths.map(|width| {
            seed += 1;
            filled(b, ROWS, width, seed)
        });
        let weight = b.load_vector(&Numbers::new(94).floats(33 * 3));
        let attention = Attention {
            out: out[1].heads(2),
            q: x.slice(0, 14).heads(2),
            append: Some(KeysValues {
                k: x.slice(14, 7).heads(1),
                v: Some(x.slice(21, 7).heads(1)),
            }),
            cache: Cache(1),
            scale: 1.5,
            window: None,
            sinks: None,
            selection: None,
            looks_ahead: false,
            entries: None,
        };
        let delta = DeltaRule {
            out: out[2].heads(2),
            q: x.slice(0, 5).heads(1),
            k: x.slice(5, 5).heads(1),
            v: x.slice(10, 14).heads(2),
            order: ValueOrder::Grouped,
            decay: Decay::Head,
            a: x.slice(24, 2),
            b: x.slice(26, 2),
            of_heads: b.load_vector(&[0.1, -0.2, 0.3, 0.4]),
            cache: Cache(2),
        };
        let state_space = StateSpace {
            out: out[3].heads(2),
            x: x.slice(0, 12).heads(2),
            b: x.slice(12, 5).heads(1),
            c: x.slice(17, 5).heads(1),
            dt: x.slice(22, 2),
            of_heads: b.load_vector(&[0.3, 0.4, 0.1, -0.2, 0.5, -0.6]),
            cache: Cache(3),
        };
        let conv = CausalConv { out: out[0], x, weight, bias: None, cache: Cache(0) };
        Ops { x, out, conv, attention, delta, state_space }
    }

    fn step(
        &self,
        b: &mut dyn Backend,
        sequence: Sequence,
        position: usize,
        rows: usize,
    ) -> Vec<f32> {
        let values = Numbers::new(95 + position as u64).floats(rows * self.x.len);
        b.write(self.x.buf, &values);
        let spans = [Span::new(sequence, 0..rows, position)];
        b.causal_conv(self.conv, &spans);
        b.attention(self.attention, &spans);
        b.delta_rule(self.delta, &spans);
        b.state_space(self.state_space, &spans);
        self.out.iter().flat_map(|cols| read(b, cols.buf, rows)).collect()
    }
}

fn caches(b: &mut dyn Backend, dtype: KvType) -> Vec<f32> {
    let specs = [
        CacheSpec::State(StateShape::Rows { n: 2, cols: 33 }),
        CacheSpec::Pages { n_heads: 1, k_dim: 7, v_dim: 7, dtype, window: None },
        CacheSpec::State(StateShape::Matrices { n: 2, rows: 7, cols: 5 }),
        CacheSpec::State(StateShape::Matrices { n: 2, rows: 5, cols: 6 }),
    ];
    let ops = Ops::new(b);
    let mut all = Vec::new();
    let first = b.new_sequence(&specs);
    for position in (0..360).step_by(ROWS) {
        all.extend(ops.step(b, first, position, ROWS));
    }
    // A sequence that held something longer goes on from the first 300.
    let second = b.new_sequence(&specs);
    for position in (0..540).step_by(ROWS - 1) {
        ops.step(b, second, position, ROWS - 1);
    }
    for (i, spec) in specs.iter().enumerate() {
        let cache = Cache(u32::try_from(i).expect("few caches"));
        for positions in [0..100, 100..300] {
            let bytes = b.save_cache(first, cache, positions.clone()).expect("the device works");
            assert_eq!(bytes.len(), spec.saved_bytes(&positions), "saved bytes of {spec:?}");
            b.load_cache(second, cache, positions.clone(), &bytes).expect("the device works");
            let again = b.save_cache(second, cache, positions).expect("the device works");
            assert!(again == bytes, "{spec:?}: what was loaded is saved again");
        }
    }
    b.truncate_sequence(second, 300);
    all.extend(ops.step(b, second, 300, 41));
    b.truncate_sequence(second, 7);
    all.extend(ops.step(b, second, 7, 3));
    b.drop_sequence(second);
    all.extend(kept(b, &ops, &specs));
    all
}

/// A sequence forgets what a window has passed, and goes on, back to where it may, and on from
/// there in another sequence, as if it had not.
fn passed(b: &mut dyn Backend, dtype: KvType) -> Vec<f32> {
    const WINDOW: usize = 50;
    const CUT: usize = 3 * ROWS;
    let specs = [CacheSpec::Pages { n_heads: 1, k_dim: 7, v_dim: 7, dtype, window: Some(WINDOW) }];
    let ops = Ops::new(b);
    let attention = Attention { cache: Cache(0), window: Some(WINDOW), ..ops.attention };
    let step = |b: &mut dyn Backend, sequence, position: usize| {
        let values = Numbers::new(95 + position as u64).floats(ROWS * ops.x.len);
        b.write(ops.x.buf, &values);
        b.attention(attention, &[Span::new(sequence, 0..ROWS, position)]);
        read(b, ops.out[1].buf, ROWS)
    };
    let (whole, sequence) = (b.new_sequence(&specs), b.new_sequence(&specs));
    let mut all = Vec::new();
    for position in (0..12 * ROWS).step_by(ROWS) {
        let want = step(b, whole, position);
        let got = step(b, sequence, position);
        assert!(got == want, "position {position}, what is passed is forgotten");
        all.extend(got);
        if position > CUT {
            b.forget_passed(sequence, &[CUT, position + ROWS - 20]);
        }
    }
    let (seen, other) = (specs[0].seen_before(CUT), b.new_sequence(&specs));
    let bytes = b.save_cache(sequence, Cache(0), seen.clone()).expect("the device works");
    b.load_cache(other, Cache(0), seen, &bytes).expect("the device works");
    b.truncate_sequence(whole, CUT);
    let want = step(b, whole, CUT);
    for sequence in [sequence, other] {
        b.truncate_sequence(sequence, CUT);
        assert!(step(b, sequence, CUT) == want, "cut where it may be");
    }
    all.extend(want);
    [whole, sequence, other].into_iter().for_each(|sequence| b.drop_sequence(sequence));
    all
}

/// A sequence goes back into the middle of a step, whose states were kept, and on from there
/// as if the step had ended there.
fn kept(b: &mut dyn Backend, ops: &Ops, specs: &[CacheSpec]) -> Vec<f32> {
    let mut all = Vec::new();
    // Where steps of few rows and of many begin, and where they are left.
    for (first, n, rows) in [(10, 5, 2), (10, 2, 1), (3, 8, 7), (10, 30, 17), (0, 4, 1)] {
        let (plain, sequence, to) =
            (b.new_sequence(specs), b.new_sequence(specs), b.new_sequence(specs));
        let begin = |b: &mut dyn Backend, sequence| {
            if first > 0 {
                ops.step(b, sequence, 0, first);
            }
        };
        begin(b, plain);
        begin(b, sequence);
        ops.step(b, plain, first, rows);
        let want = ops.step(b, plain, first + rows, 3);
        assert!(b.reserve_states(to), "there is memory");
        for _ in 0..2 {
            b.snapshot_states(&[StateSnapshot { sequence, rows, to }]);
            let whole = ops.step(b, sequence, first, n);
            b.snapshot_states(&[]);
            all.extend(whole);
            b.truncate_sequence(sequence, first + rows);
            b.swap_states(sequence, to);
            let got = ops.step(b, sequence, first + rows, 3);
            assert!(got == want, "{n} rows from {first}, left after {rows}");
            // From the beginning, over what is kept now.
            b.clear_sequence(sequence);
            begin(b, sequence);
        }
        [plain, sequence, to].into_iter().for_each(|sequence| b.drop_sequence(sequence));
    }
    all
}
