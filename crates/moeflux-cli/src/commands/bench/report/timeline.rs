//! One token in time: a lane of what is computed, lanes of what is read.

use moeflux_engine::measure::{Lane, Stage, TokenTrace};

use super::charts::WIDTH;
use super::parts::{PARTS, legend};
use super::svg::{Anchor, Area, Svg, point, short, ticks};

const LEFT: f64 = 84.0;
/// Height of the lane of what is computed.
const COMPUTE: f64 = 34.0;
/// Height of a lane of reads.
const READ: f64 = 12.0;
/// Reads at the same time beyond this share the last lane.
const MAX_LANES: usize = 16;

pub(super) fn draw(token: &TokenTrace) -> String {
    let lanes = stacked(&token.reads);
    let n_lanes = lanes.iter().map(|lane| lane + 1).max().unwrap_or(1);
    let (compute_top, reads_top) = (8.0, 8.0 + COMPUTE + 16.0);
    let reads_height = READ * n_lanes.max(2) as f64;
    let bottom = reads_top + reads_height + 6.0;
    let total = token.total.max(1e-9);
    let at = |seconds: f64| LEFT + (WIDTH - LEFT - 4.0) * seconds / total;
    let mut svg = Svg::new(WIDTH, bottom + 22.0, "what one token computes and reads, in time");
    let marks = ticks(total * 1e3, 8);
    for ms in marks.into_iter().filter(|ms| *ms <= total * 1e3) {
        let label = if ms == 0.0 { String::from("0 ms") } else { short(ms) };
        svg.line(point(at(ms / 1e3), 0.0), point(at(ms / 1e3), bottom), "grid");
        svg.text(point(at(ms / 1e3), bottom + 16.0), Anchor::Middle, "", &label);
    }
    svg.text(point(0.0, compute_top + COMPUTE / 2.0 + 4.0), Anchor::Start, "name", "computes");
    svg.text(point(0.0, reads_top + reads_height / 2.0 + 4.0), Anchor::Start, "name", "reads");
    let area = |lane: &Lane, y, height| {
        let x = at(lane.start);
        Area { x, y, width: (at(lane.end) - x).max(0.6), height }
    };
    for lane in &token.compute {
        let stage = lane.stage.unwrap_or(Stage::Rest);
        svg.rect(area(lane, compute_top, COMPUTE), class(stage), &hint(stage.name(), lane));
    }
    for lane in &token.waits {
        let hint = hint("waits", lane);
        svg.rect(area(lane, compute_top + COMPUTE - 8.0, 8.0), "wait", &hint);
    }
    for (lane, row) in token.reads.iter().zip(&lanes) {
        let (class, what) =
            if lane.is_predicted { ("ahead", "prefetch") } else { ("read", "read") };
        let y = reads_top + READ * *row as f64;
        svg.rect(area(lane, y, READ - 2.0), class, &hint(what, lane));
    }
    if token.reads.is_empty() {
        let y = reads_top + reads_height / 2.0 + 4.0;
        svg.text(
            point(LEFT + 8.0, y),
            Anchor::Start,
            "",
            "no reads: every expert was in the cache",
        );
    }
    entries(token) + &svg.finish()
}

fn class(stage: Stage) -> &'static str {
    PARTS.iter().find(|part| part.0 == stage).map_or("rest", |part| part.1)
}

fn hint(what: &str, lane: &Lane) -> String {
    let layer = lane.layer.map_or(String::new(), |idx| format!(", layer {idx}"));
    let us = short(1e6 * (lane.end - lane.start));
    format!("{what}{layer}: {us} µs from {} ms", short(1e3 * lane.start))
}

/// A lane for each read, so that no two overlap as long as there are lanes.
fn stacked(reads: &[Lane]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..reads.len()).collect();
    order.sort_by(|a, b| reads[*a].start.total_cmp(&reads[*b].start));
    let mut ends: Vec<f64> = Vec::new();
    let mut lanes = vec![0; reads.len()];
    for i in order {
        let free = ends.iter().position(|end| *end <= reads[i].start);
        let lane = free.unwrap_or(ends.len()).min(MAX_LANES - 1);
        if lane == ends.len() {
            ends.push(0.0);
        }
        ends[lane] = reads[i].end;
        lanes[i] = lane;
    }
    lanes
}

/// The legend: names of the colours that occur.
fn entries(token: &TokenTrace) -> String {
    let has = |stage: Stage| token.compute.iter().any(|lane| lane.stage == Some(stage));
    let stages =
        PARTS.iter().filter(|part| has(part.0)).map(|(stage, class)| (stage.name(), *class));
    let mut all: Vec<(&str, &str)> = stages.collect();
    if !token.waits.is_empty() {
        all.push(("wait for experts", "wait"));
    }
    for (name, class, is_predicted) in [("read", "read", false), ("prefetch", "ahead", true)] {
        if token.reads.iter().any(|read| read.is_predicted == is_predicted) {
            all.push((name, class));
        }
    }
    legend(all.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(start: f64, end: f64) -> Lane {
        Lane { start, end, stage: None, layer: Some(0), is_predicted: false }
    }

    #[test]
    fn reads_at_the_same_time_lie_in_different_lanes() {
        let reads =
            [read(0.0, 2.0), read(1.0, 3.0), read(2.0, 4.0), read(2.5, 5.0), read(3.0, 4.0)];
        assert_eq!(stacked(&reads), [0, 1, 0, 2, 1]);
        let many: Vec<Lane> = (0..100).map(|i| read(f64::from(i) * 0.01, 2.0)).collect();
        assert_eq!(stacked(&many).into_iter().max(), Some(MAX_LANES - 1));
    }

    #[test]
    fn an_empty_token_is_drawn_too() {
        assert!(draw(&TokenTrace::default()).contains("every expert was in the cache"));
    }
}
