// Ends a command buffer: its serial number follows that of the one before. Where one of these did not
// run the number stays, whatever runs later.

struct Params {
    previous: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> serial: array<u32>;

@compute @workgroup_size(1)
fn main() {
    if (serial[0] == p.previous) { serial[0] = p.previous + 1u; }
}
