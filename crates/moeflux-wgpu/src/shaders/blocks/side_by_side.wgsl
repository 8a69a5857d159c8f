// A unit has 32 columns side by side.
fn unit_half(unit: u32, nth: u32) -> u32 {
    return 2u * unit + nth;
}
