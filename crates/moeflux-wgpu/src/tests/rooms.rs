//! States of several sequences beside each other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use moeflux_backend::{Backend, Cache, Sequence, Span};

use super::context;
use super::memory::check_is_out;
use super::mixers::{Net, n_kernels, row_bits};
use crate::context::enumerate;
use crate::{Context, Wgpu};

/// Rows of a step at most.
const ROWS: usize = 64;

/// A sequence, its text, and how far it is.
struct Reader {
    sequence: Sequence,
    text: u32,
    position: usize,
}

impl Reader {
    fn new(b: &mut Wgpu, net: &Net, text: u32) -> Reader {
        Reader { sequence: b.new_sequence(&net.specs), text, position: 0 }
    }
}

/// A step of so many rows each; their bits, one behind the other.
fn step(b: &mut Wgpu, net: &Net, readers: &mut [(&mut Reader, usize)]) -> Vec<Vec<u32>> {
    let (mut spans, mut rows) = (Vec::new(), Vec::new());
    for (it, n) in readers.iter_mut() {
        let Reader { sequence, text, position } = **it;
        spans.push(Span { sequence, rows: rows.len()..rows.len() + *n, position });
        rows.extend((position..position + *n).map(|at| (text, at)));
        it.position += *n;
    }
    net.write(b, &rows);
    b.delta_net(net.op, &spans);
    let bits = row_bits(b, net.out.buf, rows.len());
    let of = |it: &Span| bits[it.rows.start * net.out.len..it.rows.end * net.out.len].to_vec();
    spans.iter().map(of).collect()
}

/// What a text gives, read alone and one row a step.
fn alone(context: &Arc<Context>, dims: (usize, usize), text: u32, rows: usize) -> Vec<u32> {
    let mut b = Wgpu::new(Arc::clone(context), None);
    let net = Net::new(&mut b, 1, dims, true);
    let mut reader = Reader::new(&mut b, &net, text);
    (0..rows).flat_map(|_| step(&mut b, &net, &mut [(&mut reader, 1)]).concat()).collect()
}

/// Rows of a reader in a step: none, few or many.
fn rows_of(text: u32, nth_step: usize) -> usize {
    match (text as usize + nth_step) % 4 {
        0 if nth_step == 1 => 11,
        0 => 0,
        it => [1, 1, 3][it - 1],
    }
}

#[test]
fn sequences_that_share_steps_have_the_bits_that_each_has_alone() {
    let Some(context) = context() else { return };
    const TEXTS: u32 = 11;
    // Eight, eleven and one state a slab.
    for dims in [(64, 32), (21, 70), (128, 128)] {
        let texts = 0..=TEXTS;
        let want: Vec<Vec<u32>> = texts.map(|it| alone(&context, dims, it, 20)).collect();
        for is_one in [true, false] {
            let mut b = Wgpu::new(Arc::clone(&context), None);
            let net = Net::new(&mut b, ROWS, dims, is_one);
            let mut readers = Vec::new();
            for nth in 0..5 {
                // Some come later, some go, and others take their rooms.
                let n = if nth == 0 { 5 } else { TEXTS };
                for text in readers.len() as u32..n {
                    readers.push(Reader::new(&mut b, &net, text));
                }
                if nth == 3 {
                    b.drop_sequence(readers[4].sequence);
                    readers[4] = Reader::new(&mut b, &net, TEXTS);
                }
                if nth == 4 {
                    // From the first slab to the last one.
                    for cache in [Cache(0), Cache(1)] {
                        let saved = b.save_cache(readers[2].sequence, cache, 0..0).unwrap();
                        b.load_cache(readers[10].sequence, cache, 0..0, &saved);
                    }
                    (readers[10].text, readers[10].position) = (2, readers[2].position);
                }
                let before: Vec<(u32, usize)> =
                    readers.iter().map(|it| (it.text, it.position)).collect();
                let rows = before.iter().map(|it| rows_of(it.0, nth));
                let mut all: Vec<_> = readers.iter_mut().zip(rows).collect();
                let got = step(&mut b, &net, &mut all);
                for ((text, position), bits) in before.into_iter().zip(got) {
                    let from = position * net.out.len;
                    let want = &want[text as usize][from..from + bits.len()];
                    assert!(bits == want, "{dims:?}, {is_one}: step {nth} of text {text}");
                }
            }
        }
    }
}

#[test]
fn a_step_of_up_to_eight_sequences_takes_as_many_kernels_as_one_of_one() {
    let Some(context) = context() else { return };
    for fuses in [true, false] {
        let mut b = Wgpu::new(Arc::clone(&context), None);
        b.fuses &= fuses;
        let net = Net::new(&mut b, ROWS, (16, 16), true);
        let mut readers: Vec<Reader> = (0..17).map(|it| Reader::new(&mut b, &net, it)).collect();
        let each = if b.fuses { 1 } else { 2 };
        for (n, dispatches) in [(1, 1), (4, 1), (8, 1), (9, 2), (16, 2), (17, 3)] {
            let before = n_kernels(&b);
            let mut all: Vec<_> = readers[..n].iter_mut().map(|it| (it, 1)).collect();
            step(&mut b, &net, &mut all);
            assert_eq!(n_kernels(&b) - before, each * dispatches, "{n} sequences");
        }
    }
}

#[test]
fn rows_of_several_sequences_are_rounded_for_the_product_behind() {
    let Some(context) = context() else { return };
    let [apart, one] = [false, true].map(|fuses| {
        let mut b = Wgpu::new(Arc::clone(&context), None);
        b.fuses &= fuses;
        let net = Net::new(&mut b, 8, (128, 128), true);
        let product = net.product(&mut b, 8).expect("whole groups");
        let mut readers = [0, 1, 2].map(|it| Reader::new(&mut b, &net, it));
        let mut all = Vec::new();
        for rows in [[1, 1, 1], [3, 1, 2], [1, 0, 4]] {
            let mut some: Vec<_> = readers.iter_mut().zip(rows).collect();
            all.extend(step(&mut b, &net, &mut some).concat());
            let n = rows.iter().sum();
            b.project(n, net.out, &[product]);
            all.extend(row_bits(&mut b, product.out.buf, n));
        }
        all
    });
    assert!(one == apart);
}

#[test]
fn slabs_go_when_no_sequence_has_a_state_there() {
    let Some(context) = context() else { return };
    let mut b = Wgpu::new(context, None);
    let net = Net::new(&mut b, ROWS, (128, 128), true);
    let readers: Vec<Reader> = (0..3).map(|it| Reader::new(&mut b, &net, it)).collect();
    // One for histories, and one a state.
    assert_eq!(b.pools.rooms.n_slabs(), 1 + 3);
    for (it, left) in readers.iter().zip([4, 4, 0]) {
        b.drop_sequence(it.sequence);
        assert_eq!(b.pools.rooms.n_slabs(), left);
    }
}

#[test]
fn states_survive_while_another_sequence_comes_where_memory_ran_out_for_something_else() {
    if context().is_none() {
        return;
    }
    let context = Context::open_anew(&enumerate()[0]).unwrap();
    let want = alone(&context, (64, 32), 1, 2);
    let mut b = Wgpu::new(Arc::clone(&context), None);
    let net = Net::new(&mut b, ROWS, (64, 32), true);
    let mut first = Reader::new(&mut b, &net, 1);
    let mut gone = Reader::new(&mut b, &net, 0);
    let mut got = step(&mut b, &net, &mut [(&mut first, 1)]).concat();
    step(&mut b, &net, &mut [(&mut gone, 1)]);
    b.drop_sequence(gone.sequence);
    context.refused.store(0, Ordering::Relaxed);
    b.encoder.storage(4, "what is asked for again");
    context.refused.store(u64::MAX, Ordering::Relaxed);
    // One takes a room that was used, the other one more.
    let mut others = [1, 1].map(|it| Reader::new(&mut b, &net, it));
    check_is_out(b.encoder.check());
    for it in &mut others {
        assert!(step(&mut b, &net, &mut [(it, 1)]).concat() == want[..net.out.len]);
    }
    got.extend(step(&mut b, &net, &mut [(&mut first, 1)]).concat());
    assert!(got == want);
}

#[test]
fn who_has_no_memory_for_states_never_works_and_harms_nobody() {
    if context().is_none() {
        return;
    }
    let context = Context::open_anew(&enumerate()[0]).unwrap();
    let [mut poor, mut rich] = [(); 2].map(|()| Wgpu::new(Arc::clone(&context), None));
    let [poor_net, rich_net] = [&mut poor, &mut rich].map(|it| Net::new(it, ROWS, (64, 32), true));
    let sequence = poor.new_sequence(&poor_net.specs);
    context.refused.store(0, Ordering::Relaxed);
    let more = poor.new_sequence(&poor_net.specs);
    context.refused.store(u64::MAX, Ordering::Relaxed);
    for sequence in [sequence, more] {
        poor.clear_sequence(sequence);
        poor.delta_net(poor_net.op, &[Span { sequence, rows: 0..1, position: 0 }]);
        check_is_out(poor.save_cache(sequence, Cache(1), 0..0));
        poor.drop_sequence(sequence);
    }
    let mut reader = Reader::new(&mut rich, &rich_net, 1);
    let got = step(&mut rich, &rich_net, &mut [(&mut reader, 1)]).concat();
    assert!(got == alone(&context, (64, 32), 1, 1));
}
