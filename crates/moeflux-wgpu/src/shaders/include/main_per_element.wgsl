@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let INDEX = linear(id, n) * 64u + thread;
    if (INDEX >= BOUND) { return; }
