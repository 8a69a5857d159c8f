// Brings a state from one place of a slab to another, 1,024 words a workgroup.

struct Params {
    // All in words.
    n: u32,
    from_at: u32,
    to_at: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> slab: array<u32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let first = linear(id, n) * 1024u + thread;
#each i 4
    let v$i = slab[p.from_at + min(first + $iu * 256u, p.n - 1u)];
#end
#each i 4
    if (first + $iu * 256u < p.n) { slab[p.to_at + first + $iu * 256u] = v$i; }
#end
}
