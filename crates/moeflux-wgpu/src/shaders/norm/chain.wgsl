// Ops over whole rows, one after the other, a row a workgroup. A thread has the same PER fours of
// columns of every buffer, THREADS fours apart, so that nothing but sums goes from thread to
// thread. The bits are those of `elementwise/elementwise.wgsl`, `norm/norm.wgsl` and
// `moe/combine.wgsl`, link by link.
//
// L0, L1 and so on are the LINKS. Of each, from the lowest bit on: three bits of its kind; four of
// the buffer that the value is loaded from first, four of the buffer or weights that it reads with
// that, four of the buffer that it writes, all NO_BUFFER where there is none; whether its result
// is set aside and the value stays; two of where its result goes rounded, see
// `include/quantize.wgsl`; whether what it reads is there from the start.

const LINK_ADD: u32 = 0u;
const LINK_EXPERTS: u32 = 1u;
const LINK_NORM: u32 = 2u;
const LINK_SCALE: u32 = 3u;
const LINK_COPY: u32 = 4u;
const NO_BUFFER: u32 = 15u;

struct Params {
    n: u32,
    // Fours of a row.
    fours: u32,
    // Zero. What a link gives is combined with it as bits: compilers do not know it, so that they
    // round as each op by itself does.
    zero: u32,
    // Outputs of experts: fours of a row, and their weights, (rows, TOP_K).
    slots_fours: u32,
    weights: u32,
    gate_start: u32,
    gate_width: u32,
    // In fours.
    shared_start: u32,
    shared_fours: u32,
    // Parts of parameters are whole multiples of 16 bytes.
    pad_0: u32,
    pad_1: u32,
    pad_2: u32,
    // Of two buffers each: where rows begin, and how long they are, in fours.
    views: array<vec4<u32>, 4>,
    // Of each link: its factor, or what it adds to the mean square.
    numbers: array<vec4<f32>, 2>,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> m0: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> m1: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> m2: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> m3: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> m4: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> m5: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> m6: array<vec4<f32>>;
@group(0) @binding(8) var<storage, read> w0: array<vec4<f32>>;
@group(0) @binding(9) var<storage, read> w1: array<vec4<f32>>;
@group(0) @binding(10) var<storage, read> w2: array<vec4<f32>>;
@group(0) @binding(11) var<storage, read> w3: array<vec4<f32>>;
@group(0) @binding(12) var<storage, read> slots: array<vec4<f32>>;
@group(0) @binding(13) var<storage, read> lists: array<u32>;
@group(0) @binding(14) var<storage, read> shared_out: array<vec4<f32>>;
// A logit for each row.
@group(0) @binding(15) var<storage, read> gate: array<f32>;
@group(0) @binding(16) var<storage, read_write> rounded: array<u32>;
@group(0) @binding(17) var<storage, read_write> sums: array<vec2<f32>>;
@group(0) @binding(18) var<storage, read_write> rounded_also: array<u32>;
@group(0) @binding(19) var<storage, read_write> sums_also: array<vec2<f32>>;

fn kind_of(link: u32) -> u32 { return link & 7u; }

fn from_of(link: u32) -> u32 { return (link >> 3u) & 15u; }

fn with_of(link: u32) -> u32 { return (link >> 7u) & 15u; }

fn to_of(link: u32) -> u32 { return (link >> 11u) & 15u; }

fn is_aside(link: u32) -> bool { return ((link >> 15u) & 1u) == 1u; }

fn rounding_of(link: u32) -> u32 { return (link >> 16u) & 3u; }

fn is_early(link: u32) -> bool { return ((link >> 18u) & 1u) == 1u; }

fn place(buffer: u32, row: u32, i: u32) -> u32 {
    let views = p.views[buffer >> 1u];
    let view = select(views.xy, views.zw, (buffer & 1u) == 1u);
    return view.x + row * view.y + i;
}

fn load(buffer: u32, row: u32, i: u32) -> vec4<f32> {
    if (buffer == NO_BUFFER) { return vec4<f32>(); }
    let at = place(buffer, row, i);
    switch (buffer) {
        case 0u: { return m0[at]; }
        case 1u: { return m1[at]; }
        case 2u: { return m2[at]; }
        case 3u: { return m3[at]; }
        case 4u: { return m4[at]; }
        case 5u: { return m5[at]; }
        default: { return m6[at]; }
    }
}

fn store(buffer: u32, row: u32, i: u32, it: vec4<f32>) {
    if (buffer == NO_BUFFER) { return; }
    let at = place(buffer, row, i);
    switch (buffer) {
        case 0u: { m0[at] = it; }
        case 1u: { m1[at] = it; }
        case 2u: { m2[at] = it; }
        case 3u: { m3[at] = it; }
        case 4u: { m4[at] = it; }
        case 5u: { m5[at] = it; }
        default: { m6[at] = it; }
    }
}

// What a link reads with the value.
fn operand(link: u32, row: u32, i: u32) -> vec4<f32> {
    if (kind_of(link) != LINK_NORM) { return load(with_of(link), row, i); }
    switch (with_of(link)) {
        case 0u: { return w0[i]; }
        case 1u: { return w1[i]; }
        case 2u: { return w2[i]; }
        default: { return w3[i]; }
    }
}

// As `norm/norm.wgsl` adds them up.
fn plus_squares(sum: f32, v: vec4<f32>, counts: bool) -> f32 {
    let all = fma(v.w, v.w, fma(v.z, v.z, fma(v.y, v.y, fma(v.x, v.x, sum))));
    return select(sum, all, counts);
}

fn settled(v: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(v) ^ vec4<u32>(p.zero));
}

#main_in_subgroups row THREADS p.n
    // Threads beyond the last four read that, and write nothing.
#each k PER
    let own$k = thread + THREADS * $ku;
    let i$k = min(own$k, p.fours - 1u);
    let counts$k = own$k < p.fours;
    var value$k = vec4<f32>();
#end
    // What is there from the start is on its way at once.
#each o LINKS
#each k PER
    var with$o_$k = vec4<f32>();
    if (is_early(L$o)) { with$o_$k = operand(L$o, row, i$k); }
#end
#end
#if TOP_K
#each r TOP_K
    let share$r = bitcast<f32>(lists[p.weights + row * TOP_K + $ru]);
    let slot$r = (row * TOP_K + $ru) * p.slots_fours;
#end
    var factor = 1.0;
#if GATED
    factor = sigmoid(gate[row * p.gate_width + p.gate_start]);
#end
#each k PER
#each r TOP_K
    let part$k_$r = slots[slot$r + i$k];
#end
#if SHARED
    let shared$k = shared_out[row * p.shared_fours + p.shared_start + i$k];
#end
#end
#each k PER
    var sum$k = vec4<f32>();
#each r TOP_K
    if (share$r != 0.0) { sum$k = fma(part$k_$r, vec4<f32>(share$r), sum$k); }
#end
#if SHARED
    sum$k = fma(shared$k, vec4<f32>(factor), sum$k);
#end
#end
#end
#each o LINKS
    {
#each k PER
        if (from_of(L$o) != NO_BUFFER) { value$k = load(from_of(L$o), row, i$k); }
        if (!is_early(L$o)) { with$o_$k = operand(L$o, row, i$k); }
        var y$k = value$k;
#end
        let number = p.numbers[$ou >> 2u][$ou & 3u];
        if (kind_of(L$o) == LINK_NORM) {
            var squares = 0.0;
#each k PER
            squares = plus_squares(squares, value$k, counts$k);
#end
            let inverse = 1.0 / sqrt(total(thread, squares) / f32(4u * p.fours) + number);
            workgroupBarrier();
#each k PER
            y$k = value$k * inverse * with$o_$k;
#end
        }
#if TOP_K
        if (kind_of(L$o) == LINK_EXPERTS) {
#each k PER
            y$k = value$k + sum$k;
#end
        }
#end
#each k PER
        if (kind_of(L$o) == LINK_ADD) { y$k = value$k + with$o_$k; }
        if (kind_of(L$o) == LINK_SCALE) { y$k = value$k * number; }
        if (kind_of(L$o) == LINK_COPY) { y$k = with$o_$k; }
        y$k = settled(y$k);
        if (!is_aside(L$o)) { value$k = y$k; }
        if (counts$k) { store(to_of(L$o), row, i$k, y$k); }
#end
#if DIGITS
#each k PER
        if (rounding_of(L$o) != 0u) {
            let it = arranged(own$k % 8u, y$k);
            let block = own$k / 8u;
            if (rounding_of(L$o) == 1u) {
                round_four(thread, row, p.fours / 8u, block, own$k % 8u, it, counts$k);
            }
            if (rounding_of(L$o) == 2u) {
                round_four_also(thread, row, p.fours / 8u, block, own$k % 8u, it, counts$k);
            }
        }
#end
#end
    }
#end
}
