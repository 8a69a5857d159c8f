// Puts the experts that the device chose into jobs: copies words of the arena,
// and in the jobs among them replaces which of an expert's matrices is meant,
// and which choice, by where that matrix lies.

struct Params {
    // Words in all, and where they begin in the arena.
    n: u32,
    start: u32,
    // Where the jobs begin among them, and how many there are.
    jobs: u32,
    n_jobs: u32,
    // Experts of the layer, and the number of the buffer that the dispatch reads.
    n_experts: u32,
    buffer: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> lists: array<u32>;
// The experts chosen.
@group(0) @binding(2) var<storage, read> chosen: array<u32>;
// (n_experts, matrices, 2): elements and scales; then (n_experts): the buffer.
@group(0) @binding(3) var<storage, read> table: array<u32>;
@group(0) @binding(4) var<storage, read_write> placed: array<u32>;

const WORDS: u32 = 9u;
const MATRICES: u32 = 3u;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let idx = linear(id, n) * 64u + thread;
    if (idx >= p.n) { return; }
    var word = lists[p.start + idx];
    if (idx >= p.jobs && idx < p.jobs + WORDS * p.n_jobs) {
        let part = (idx - p.jobs) % WORDS;
        let job = p.start + idx - part;
        let expert = min(chosen[lists[job + 1u]], p.n_experts - 1u);
        let place = (expert * MATRICES + lists[job]) * 2u;
        if (part < 2u) {
            word = table[place + part];
        } else if (part == 3u && table[p.n_experts * MATRICES * 2u + expert] != p.buffer) {
            // Another dispatch has this expert's buffer: no rows here.
            word = 0u;
        } else if (part == 4u) {
            word -= p.start;
        }
    }
    placed[idx] = word;
}
