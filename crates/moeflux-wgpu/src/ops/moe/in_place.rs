//! Experts that products read where the store has put them: devices that share
//! the host's memory have no use for slots of their own.

use moeflux_backend::{ExpertCall, Experts};
use moeflux_core::{Expert, ExpertBank, MatrixLayout, PartSpan};

use crate::commands::imports::ImportedRange;
use crate::device::imports::host_access::HostAccess;
use crate::layouts::format::{Place, as_stored};
use crate::layouts::packing::empty_view;
use crate::ops::moe::expert_group::{Call, EXPERT_ROWS, Found, Group};
use crate::state::gpu::Wgpu;

/// Where parts of experts have to begin, in bytes.
const ALIGN: usize = 16;

/// Whether products can read all of these experts where the store puts them, on a
/// device that shares the host's memory.
pub fn reads_in_place(bank: &ExpertBank) -> bool {
    let mut matrices = bank.layers.iter().flatten().flat_map(|layer| layer.layout.matrices());
    bank.is_aligned(ALIGN) && matrices.all(is_as_kernels_read)
}

/// Where experts are, if products can read all of them there.
pub(crate) fn find(b: &mut Wgpu, calls: &[ExpertCall]) -> Option<Vec<Found>> {
    if b.encoder.uploads.host_access != HostAccess::InPlace {
        return None;
    }
    calls.iter().map(|call| locate(b, &call.expert)).collect()
}

/// As [`experts`](super::experts), of those found.
pub(crate) fn run(b: &mut Wgpu, op: Experts<'_>, found: &[Found]) {
    let (mut calls, mut found) = (op.calls, found);
    while let Some(first) = calls.first() {
        b.encoder.begin();
        let mut n_rows = 0;
        let fits = |call: &&ExpertCall| {
            n_rows += call.rows.len();
            n_rows <= EXPERT_ROWS
        };
        let n = calls.iter().take_while(fits).count().max(1);
        let now: Vec<Call<'_>> = calls[..n].iter().map(Call::of).collect();
        calls[..n].iter().for_each(|call| b.encoder.uploads.retain(&call.expert));
        Group::new(&first.expert.layout, op, now, &found[..n]).run(b);
        (calls, found) = (&calls[n..], &found[n..]);
    }
}

fn locate(b: &mut Wgpu, expert: &Expert) -> Option<Found> {
    let layout = &expert.layout;
    if !layout.matrices().all(is_as_kernels_read) {
        return None;
    }
    let imported = b.encoder.uploads.imported(expert)?;
    let mut places = Vec::with_capacity(3);
    for matrix in layout.matrices() {
        places.push(words(&imported, matrix)?);
    }
    // Gate and up may be one matrix, or there may be no gate; kernels do not read the second place then.
    let [first, .., last] = places[..] else { return None };
    let all = [first, if places.len() == 3 { places[1] } else { first }, last];
    let are_apart = layout.matrices().any(|matrix| matrix.biases.len > 0);
    Some(Found {
        mem: imported.mem,
        places: all.map(|(place, _)| place),
        biases: are_apart.then(|| all.map(|(_, biases)| biases)),
    })
}

/// Whether the stored elements of a matrix are those that kernels read.
fn is_as_kernels_read(matrix: &MatrixLayout) -> bool {
    as_stored(&empty_view(matrix)) > 0
}

/// Where a matrix and its biases, or the scale that all of it shares, begin, if kernels can read both
/// there.
fn words(imported: &ImportedRange, matrix: &MatrixLayout) -> Option<(Place, u32)> {
    let of = |span: PartSpan| if span.len == 0 { Some(0) } else { imported.word(span) };
    // Elements are read by 16 bytes.
    let elements = imported.word(matrix.weight).filter(|word| word.is_multiple_of(4))?;
    let place = Place { elements, scales: of(matrix.scales)? };
    Some((place, of(matrix.biases)?))
}
