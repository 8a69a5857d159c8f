// Brings bytes from one buffer to another. A thread has eight times 16 of them.

struct Params {
    // All in 16 bytes.
    x_at: u32,
    y_at: u32,
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
#each i 8
    let v$i = x[p.x_at + min(first + $iu * 256u, p.n - 1u)];
#end
#each i 8
    if (first + $iu * 256u < p.n) { y[p.y_at + first + $iu * 256u] = v$i; }
#end
}
