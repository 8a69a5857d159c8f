//! Experts that the host chose: uploaded into slots, or resident there.

use std::sync::Arc;

use moeflux_backend::{Experts, ResidentCall, ResidentExperts};
use moeflux_core::{Expert, ExpertKey};

use super::in_place;
use crate::device::imports::host_access::HostAccess;
use crate::ops::moe::expert_group::{EXPERT_ROWS, Found, Group};
use crate::state::backend::Wgpu;

pub(crate) fn begin_upload(
    b: &mut Wgpu,
    held: impl Iterator<Item = ExpertKey>,
    experts: &mut dyn Iterator<Item = &Arc<Expert>>,
) {
    match b.encoder.host_access() {
        HostAccess::Written => begin_writing(b, experts),
        HostAccess::Fetched => fetch_first(b, held, experts),
        HostAccess::InPlace => {}
    }
}

/// Has the device fetch experts while the host decides what else it does.
fn fetch_first(
    b: &mut Wgpu,
    held: impl Iterator<Item = ExpertKey>,
    experts: &mut dyn Iterator<Item = &Arc<Expert>>,
) {
    b.encoder.begin();
    let since = b.slots.begin();
    for key in held {
        b.slots.slot_of(key);
    }
    let n_before = b.encoder.last_kernel();
    for expert in experts {
        if b.slots.get(&mut b.encoder, expert, since).is_none() {
            break;
        }
    }
    if b.encoder.last_kernel() > n_before {
        // Another thread would wake later than this takes.
        b.encoder.submit_now();
    }
}

fn begin_writing(b: &mut Wgpu, experts: &mut dyn Iterator<Item = &Arc<Expert>>) {
    let slots = &mut b.slots;
    let mut missing = Vec::new();
    for expert in experts {
        if !slots.holds(expert.key) {
            missing.push((Arc::clone(expert), slots.packing(&expert.layout)));
        }
    }
    b.encoder.begin_uploads(&missing);
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
        let since = b.slots.begin();
        let mut slots = Vec::new();
        let mut n_rows = 0;
        for call in rest {
            n_rows += call.rows.len();
            if !slots.is_empty() && n_rows > EXPERT_ROWS {
                break;
            }
            match b.slots.get(&mut b.encoder, &call.expert, since) {
                Some(slot) => slots.push(Found::from(slot)),
                None => break,
            }
        }
        // The first of them always gets one: a pool has a slot, and none was used since.
        let (now, later) = rest.split_at(slots.len().max(1));
        let calls = now.iter().map(|it| (it.expert.key.expert, &it.rows[..]));
        Group::new(&layout, op, calls.collect(), &slots).run(b);
        rest = later;
    }
}

pub(crate) fn resident_experts(b: &mut Wgpu, held: ResidentExperts<'_>) {
    let ResidentExperts { layer, op, mut calls } = held;
    b.encoder.counters().add_hits(calls.len());
    while !calls.is_empty() {
        b.encoder.begin();
        let mut slots = Vec::new();
        let mut layouts = Vec::new();
        let mut n_rows = 0;
        for ResidentCall { expert, rows } in calls {
            n_rows += rows.len();
            if !slots.is_empty() && n_rows > EXPERT_ROWS {
                break;
            }
            let key = ExpertKey { layer, expert: *expert };
            let (slot, layout) = b.slots.slot_of(key).expect("the device holds the expert");
            slots.push(Found::from(slot));
            layouts.push(layout);
        }
        let (now, later) = calls.split_at(slots.len());
        let now = now.iter().map(|call| (call.expert, &call.rows[..])).collect();
        Group::new(&layouts[0], op, now, &slots).run(b);
        calls = later;
    }
}
