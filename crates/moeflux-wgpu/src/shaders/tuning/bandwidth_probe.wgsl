// Reads a buffer as fast as it goes, or copies it: what other kernels are
// compared with. A thread has eight times 16 bytes.
//
// COPIES: whether what is read is written too.

struct Params {
    // Of 16 bytes.
    n: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<u32>>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let first = linear(id, n) * 2048u + thread;
    if (first + 1792u >= p.n) { return; }
#each i 8
    let v$i = x[first + $iu * 256u];
#end
#if COPIES
#each i 8
    y[first + $iu * 256u] = v$i;
#end
#else
    var all = v0;
#each i 7
    all ^= v${i+1};
#end
    // So that nothing is left out; it is never so.
    if (all.x == 0x9e3779b9u && all.y == 0x7f4a7c15u && all.z == all.w) { y[0] = all; }
#end
}
