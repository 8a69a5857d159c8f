@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let INDEX = linear(id, n) * 256u + thread;
    if (INDEX >= BOUND) { return; }
