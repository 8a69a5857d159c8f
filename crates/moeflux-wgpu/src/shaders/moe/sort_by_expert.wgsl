// Brings choices of experts into the order of the experts, those of one in the
// order of rows; a workgroup has one expert.

struct Params {
    // Choices, and experts of the layer.
    n: u32,
    n_experts: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> chosen: array<u32>;
// (n_experts): how many choices; (n_experts): where they begin in the order;
// (n): the order; (n): each place's expert.
@group(0) @binding(2) var<storage, read_write> grouped: array<u32>;

const THREADS: u32 = 128u;

// Choices of this expert, and of those before it, that a thread has seen.
var<workgroup> here: array<u32, THREADS>;
var<workgroup> before: array<u32, THREADS>;

#main_per_workgroup expert THREADS p.n_experts
    let per_thread = (p.n + THREADS - 1u) / THREADS;
    let first = min(thread * per_thread, p.n);
    let end = min(first + per_thread, p.n);
    var n_here = 0u;
    var n_before = 0u;
    for (var i = first; i < end; i++) {
        let it = min(chosen[i], p.n_experts - 1u);
        if (it == expert) { n_here += 1u; }
        if (it < expert) { n_before += 1u; }
    }
    here[thread] = n_here;
    before[thread] = n_before;
    workgroupBarrier();
    var start = 0u;
    var total = 0u;
    var place = 0u;
    for (var i = 0u; i < THREADS; i++) {
        start += before[i];
        if (i == thread) { place = total; }
        total += here[i];
    }
    place += start;
    for (var i = first; i < end; i++) {
        if (min(chosen[i], p.n_experts - 1u) == expert) {
            grouped[2u * p.n_experts + place] = i;
            grouped[2u * p.n_experts + p.n + place] = expert;
            place += 1u;
        }
    }
    if (thread == 0u) {
        grouped[expert] = total;
        grouped[p.n_experts + expert] = start;
    }
}
