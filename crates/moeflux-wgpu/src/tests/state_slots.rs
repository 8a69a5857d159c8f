//! States of several sequences side by side.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use moeflux_backend::{Cache, Ops, Sequence, Sequences, Span, StateSnapshot};

use super::context;
use super::memory::check_is_out;
use super::mixers::{HeadDims, Net, n_kernels, row_bits};
use crate::Context;
use crate::backend::new_backend;
use crate::device::adapter::enumerate;
use crate::state::gpu::Wgpu;

/// Rows of a step at most.
const ROWS: usize = 64;

/// A network's.
const CACHES: [Cache; 2] = [Cache(0), Cache(1)];

/// The first row of a sequence.
fn span(sequence: Sequence) -> Span {
    Span::new(sequence, 0..1, 0)
}

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

/// A step of this many rows each; their bits, one after the other.
fn step(b: &mut Wgpu, net: &Net, readers: &mut [(&mut Reader, usize)]) -> Vec<Vec<u32>> {
    let (mut spans, mut rows) = (Vec::new(), Vec::new());
    for (reader, n) in readers.iter_mut() {
        let Reader { sequence, text, position } = **reader;
        spans.push(Span::new(sequence, rows.len()..rows.len() + *n, position));
        rows.extend((position..position + *n).map(|at| (text, at)));
        reader.position += *n;
    }
    net.write(b, &rows);
    b.delta_net(net.op, &spans);
    let bits = row_bits(b, net.out.buf, rows.len());
    let of =
        |span: &Span| bits[span.rows.start * net.out.len..span.rows.end * net.out.len].to_vec();
    spans.iter().map(of).collect()
}

/// What a text gives, read alone and one row a step.
fn alone(context: &Arc<Context>, dims: HeadDims, text: u32, rows: usize) -> Vec<u32> {
    let mut b = new_backend(Arc::clone(context), None);
    let net = Net::new(&mut b, 1, dims, true);
    let mut reader = Reader::new(&mut b, &net, text);
    (0..rows).flat_map(|_| step(&mut b, &net, &mut [(&mut reader, 1)]).concat()).collect()
}

/// Rows of a reader in a step: none, few or many.
fn rows_of(text: u32, nth_step: usize) -> usize {
    match (text as usize + nth_step) % 4 {
        0 if nth_step == 1 => 11,
        0 => 0,
        nth => [1, 1, 3][nth - 1],
    }
}

#[test]
fn sequences_that_share_steps_have_the_bits_that_each_has_alone() {
    let Some(context) = context() else { return };
    const TEXTS: u32 = 11;
    // Eight, eleven and one state a slab.
    for dims in [HeadDims::NARROW, HeadDims::UNEVEN, HeadDims::WIDE] {
        let texts = 0..=TEXTS;
        let want: Vec<Vec<u32>> = texts.map(|text| alone(&context, dims, text, 20)).collect();
        for is_one in [true, false] {
            let mut b = new_backend(Arc::clone(&context), None);
            let net = Net::new(&mut b, ROWS, dims, is_one);
            let mut readers = Vec::new();
            for nth in 0..5 {
                // Some come later, some go, and others take their slots.
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
                    for cache in CACHES {
                        let saved = b.save_cache(readers[2].sequence, cache, 0..0).unwrap();
                        b.load_cache(readers[10].sequence, cache, 0..0, &saved).unwrap();
                    }
                    (readers[10].text, readers[10].position) = (2, readers[2].position);
                }
                let before: Vec<(u32, usize)> =
                    readers.iter().map(|reader| (reader.text, reader.position)).collect();
                let rows = before.iter().map(|(text, _)| rows_of(*text, nth));
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
        let mut b = new_backend(Arc::clone(&context), None);
        b.fuses &= fuses;
        let net = Net::new(&mut b, ROWS, HeadDims::new(16, 16), true);
        let mut readers: Vec<Reader> =
            (0..17).map(|text| Reader::new(&mut b, &net, text)).collect();
        let each = if b.fuses { 1 } else { 2 };
        for (n, dispatches) in [(1, 1), (4, 1), (8, 1), (9, 2), (16, 2), (17, 3)] {
            let before = n_kernels(&b);
            let mut all: Vec<_> = readers[..n].iter_mut().map(|reader| (reader, 1)).collect();
            step(&mut b, &net, &mut all);
            assert_eq!(n_kernels(&b) - before, each * dispatches, "{n} sequences");
        }
    }
}

#[test]
fn rows_of_several_sequences_are_rounded_for_the_product_behind() {
    let Some(context) = context() else { return };
    let [apart, one] = [false, true].map(|fuses| {
        let mut b = new_backend(Arc::clone(&context), None);
        b.fuses &= fuses;
        let net = Net::new(&mut b, 8, HeadDims::WIDE, true);
        let product = net.product(&mut b, 8).expect("whole groups");
        let mut readers = [0, 1, 2].map(|text| Reader::new(&mut b, &net, text));
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
    let mut b = new_backend(context, None);
    let net = Net::new(&mut b, ROWS, HeadDims::WIDE, true);
    let mut readers: Vec<Reader> = (0..4).map(|text| Reader::new(&mut b, &net, text)).collect();
    assert_eq!(b.pools.state_slots.n_slabs(), 0);
    step(&mut b, &net, &mut readers[..3].iter_mut().map(|reader| (reader, 1)).collect::<Vec<_>>());
    // One for histories, and one a state.
    assert_eq!(b.pools.state_slots.n_slabs(), 1 + 3);
    for (reader, left) in readers.iter().zip([4, 4, 0, 0]) {
        b.drop_sequence(reader.sequence);
        assert_eq!(b.pools.state_slots.n_slabs(), left);
    }
}

#[test]
fn states_survive_while_another_sequence_comes_where_memory_ran_out_for_something_else() {
    if context().is_none() {
        return;
    }
    let context = Context::open_anew(&enumerate()[0]).unwrap();
    let want = alone(&context, HeadDims::NARROW, 1, 2);
    let mut b = new_backend(Arc::clone(&context), None);
    let net = Net::new(&mut b, ROWS, HeadDims::NARROW, true);
    let mut first = Reader::new(&mut b, &net, 1);
    let mut gone = Reader::new(&mut b, &net, 0);
    let mut got = step(&mut b, &net, &mut [(&mut first, 1)]).concat();
    step(&mut b, &net, &mut [(&mut gone, 1)]);
    b.drop_sequence(gone.sequence);
    context.refused.store(0, Ordering::Relaxed);
    b.encoder.buffers.storage(4, "what is asked for again");
    context.refused.store(u64::MAX, Ordering::Relaxed);
    // One takes a slot that was used, the other one more.
    let mut others = [1, 1].map(|text| Reader::new(&mut b, &net, text));
    for reader in &others {
        assert!(b.take_state_slots(&[span(reader.sequence)], &CACHES));
    }
    check_is_out(b.encoder.buffers.check());
    for reader in &mut others {
        assert!(step(&mut b, &net, &mut [(reader, 1)]).concat() == want[..net.out.len]);
    }
    got.extend(step(&mut b, &net, &mut [(&mut first, 1)]).concat());
    assert!(got == want);
}

#[test]
fn who_has_no_memory_for_states_says_so_alone_and_goes_on_when_there_is_some() {
    if context().is_none() {
        return;
    }
    let context = Context::open_anew(&enumerate()[0]).unwrap();
    let want = alone(&context, HeadDims::NARROW, 1, 4);
    let mut b = new_backend(Arc::clone(&context), None);
    let net = Net::new(&mut b, ROWS, HeadDims::NARROW, true);
    let mut rich = Reader::new(&mut b, &net, 1);
    let mut got = step(&mut b, &net, &mut [(&mut rich, 1)]).concat();
    let saved = CACHES.map(|cache| b.save_cache(rich.sequence, cache, 0..0).unwrap());
    context.refused.store(0, Ordering::Relaxed);
    let [mut poor, mut loaded] = [1, 1].map(|text| Reader::new(&mut b, &net, text));
    for _ in 0..2 {
        net.write(&mut b, &[(1, 0)]);
        b.delta_net(net.op, &[span(poor.sequence)]);
        check_is_out(b.read(net.out.buf, 1));
        for (cache, bytes) in CACHES.into_iter().zip(&saved) {
            check_is_out(b.load_cache(loaded.sequence, cache, 0..0, bytes));
            let none = b.save_cache(loaded.sequence, cache, 0..0).unwrap();
            assert!(none.len() == bytes.len() && none.iter().all(|byte| *byte == 0));
        }
        got.extend(step(&mut b, &net, &mut [(&mut rich, 1)]).concat());
    }
    context.refused.store(u64::MAX, Ordering::Relaxed);
    for (cache, bytes) in CACHES.into_iter().zip(&saved) {
        b.load_cache(loaded.sequence, cache, 0..0, bytes).unwrap();
    }
    loaded.position = 1;
    let behind = step(&mut b, &net, &mut [(&mut loaded, 3)]).concat();
    assert!(behind == want[net.out.len..]);
    b.clear_sequence(poor.sequence);
    assert!(step(&mut b, &net, &mut [(&mut poor, 4)]).concat() == want);
    got.extend(step(&mut b, &net, &mut [(&mut rich, 1)]).concat());
    assert!(got == want);
}

#[test]
fn a_slab_that_has_no_memory_to_grow_leaves_that_for_another() {
    if context().is_none() {
        return;
    }
    let context = Context::open_anew(&enumerate()[0]).unwrap();
    let want = alone(&context, HeadDims::NARROW, 1, 2);
    let mut b = new_backend(Arc::clone(&context), None);
    let net = Net::new(&mut b, ROWS, HeadDims::NARROW, true);
    let mut readers = [1, 1].map(|text| Reader::new(&mut b, &net, text));
    let [first, second] = &mut readers;
    step(&mut b, &net, &mut [(&mut *first, 1)]);
    assert_eq!(b.pools.state_slots.n_slabs(), 2);
    // Two of the smaller slots fit, and one of the larger.
    let most = net.specs.map(|spec| 2 * spec.fixed_bytes() as u64).into_iter().max().unwrap();
    context.refused.store(most, Ordering::Relaxed);
    let early = step(&mut b, &net, &mut [(&mut *second, 1)]).concat();
    assert!(early == want[..net.out.len]);
    assert_eq!(b.pools.state_slots.n_slabs(), 3);
    let both = step(&mut b, &net, &mut [(&mut *first, 1), (&mut *second, 1)]);
    assert!(both.iter().all(|row| *row == want[net.out.len..]));
}

#[test]
fn a_kept_state_is_returned_to_and_no_memory_for_it_harms_nobody() {
    if context().is_none() {
        return;
    }
    let context = Context::open_anew(&enumerate()[0]).unwrap();
    // In one slab, and in two.
    for dims in [HeadDims::NARROW, HeadDims::WIDE] {
        let want = alone(&context, dims, 1, 6);
        let mut b = new_backend(Arc::clone(&context), None);
        let net = Net::new(&mut b, ROWS, dims, true);
        let mut reader = Reader::new(&mut b, &net, 1);
        let copy = b.new_sequence(&net.specs);
        let mut got = step(&mut b, &net, &mut [(&mut reader, 2)]).concat();
        context.refused.store(0, Ordering::Relaxed);
        assert!(!b.reserve_states(copy));
        got.extend(step(&mut b, &net, &mut [(&mut reader, 1)]).concat());
        context.refused.store(u64::MAX, Ordering::Relaxed);
        assert!(b.reserve_states(copy));
        for n in [3, 2] {
            b.snapshot_states(&[StateSnapshot { sequence: reader.sequence, rows: 1, to: copy }]);
            let whole = step(&mut b, &net, &mut [(&mut reader, n)]).concat();
            b.snapshot_states(&[]);
            assert!(whole == want[(6 - n) * net.out.len..], "{dims:?}");
            got.extend_from_slice(&whole[..net.out.len]);
            b.swap_states(copy, reader.sequence);
            reader.position -= n - 1;
        }
        got.extend(step(&mut b, &net, &mut [(&mut reader, 1)]).concat());
        assert!(got == want, "{dims:?}");
    }
}

#[test]
fn several_sequences_keep_their_states_in_one_step() {
    let Some(context) = context() else { return };
    // In one slab, and in two.
    for dims in [HeadDims::NARROW, HeadDims::WIDE] {
        let mut b = new_backend(Arc::clone(&context), None);
        let net = Net::new(&mut b, ROWS, dims, true);
        let wants = [1, 2, 3].map(|text| alone(&context, dims, text, 6));
        let mut readers = [1, 2, 3].map(|text| Reader::new(&mut b, &net, text));
        let copies = [(); 3].map(|()| b.new_sequence(&net.specs));
        assert!(copies.iter().all(|sequence| b.reserve_states(*sequence)));
        // The one in the middle keeps nothing.
        let kept = [1, 4, 3];
        let all = |readers: &mut [Reader; 3], b: &mut Wgpu, n: [usize; 3]| {
            let mut parts: Vec<_> = readers.iter_mut().zip(n).collect();
            step(b, &net, &mut parts)
        };
        let keep = |i: usize| StateSnapshot {
            sequence: readers[i].sequence,
            rows: kept[i],
            to: copies[i],
        };
        b.snapshot_states(&[keep(2), keep(0)]);
        let whole = all(&mut readers, &mut b, [4, 4, 4]);
        b.snapshot_states(&[]);
        for (i, reader) in readers.iter_mut().enumerate() {
            assert!(whole[i] == wants[i][..4 * net.out.len], "{dims:?}, {i}");
            if i != 1 {
                b.swap_states(reader.sequence, copies[i]);
                reader.position = kept[i];
            }
        }
        let rest = all(&mut readers, &mut b, [5, 2, 3]);
        for (i, want) in wants.iter().enumerate() {
            assert!(rest[i] == want[kept[i] * net.out.len..], "{dims:?}, {i} after {}", kept[i]);
        }
    }
}
