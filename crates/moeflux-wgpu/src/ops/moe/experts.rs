//! Experts that the host chose: uploaded into slots, or resident there.

use std::sync::Arc;

use moeflux_backend::{Experts, ResidentExperts};
use moeflux_core::{Expert, ExpertKey};

use super::in_place;
use crate::device::imports::host_access::HostAccess;
use crate::ops::moe::expert_group::{Call, EXPERT_ROWS, Found, Group};
use crate::state::gpu::Wgpu;

pub(crate) fn begin_upload(
    b: &mut Wgpu,
    resident: impl Iterator<Item = ExpertKey>,
    experts: &mut dyn Iterator<Item = &Arc<Expert>>,
) {
    match b.encoder.uploads.host_access {
        HostAccess::Written => begin_writing(b, experts),
        HostAccess::Fetched => fetch_first(b, resident, experts),
        HostAccess::InPlace => {}
    }
}

/// Has the device fetch experts while the host decides what else it does.
fn fetch_first(
    b: &mut Wgpu,
    resident: impl Iterator<Item = ExpertKey>,
    experts: &mut dyn Iterator<Item = &Arc<Expert>>,
) {
    b.encoder.begin();
    let n_before = b.encoder.last_kernel();
    b.slots.upload_ahead(&mut b.encoder, resident, experts);
    if b.encoder.last_kernel() > n_before {
        // Another thread would wake later than this takes.
        b.encoder.submit_now();
    }
}

fn begin_writing(b: &mut Wgpu, experts: &mut dyn Iterator<Item = &Arc<Expert>>) {
    let missing = b.slots.missing(&b.encoder, experts);
    if !b.encoder.buffers.is_out_of_memory() {
        b.encoder.uploads.begin(&missing);
    }
}

pub(crate) fn experts(b: &mut Wgpu, op: Experts<'_>) {
    let Some(first) = op.calls.first() else { return };
    let layout = Arc::clone(&first.expert.layout);
    if let Some(found) = in_place::find(b, op.calls) {
        return in_place::run(b, op, &found);
    }
    let mut rest = op.calls;
    while !rest.is_empty() {
        b.encoder.begin();
        let located = b.slots.upload_calls(&mut b.encoder, rest, EXPERT_ROWS);
        let found: Vec<Found> = located.iter().map(Found::new).collect();
        // The first of them always gets a slot: a pool has one, and none was used since.
        let (now, later) = rest.split_at(found.len().max(1));
        let calls = now.iter().map(Call::of).collect();
        Group::new(&layout, op, calls, &found).run(b);
        rest = later;
    }
}

pub(crate) fn resident_experts(b: &mut Wgpu, resident: ResidentExperts<'_>) {
    let ResidentExperts { layer, op, mut calls } = resident;
    b.encoder.counters.add_hits(calls.len());
    while !calls.is_empty() {
        b.encoder.begin();
        let located = b.slots.resident_calls(layer, calls, EXPERT_ROWS);
        let found: Vec<Found> = located.iter().map(Found::new).collect();
        let (now, later) = calls.split_at(found.len());
        let now = now.iter().map(|call| Call { expert: call.expert, rows: &call.rows }).collect();
        Group::new(located[0].packing.layout(), op, now, &found).run(b);
        calls = later;
    }
}
