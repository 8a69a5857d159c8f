@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) subgroup_size: u32,
) {
    let INDEX = linear(id, n);
    if (INDEX >= BOUND) { return; }
    let thread = subgroup * subgroup_size + in_subgroup;
