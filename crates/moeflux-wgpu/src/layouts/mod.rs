//! How things are laid out on a device, in numbers alone: the bytes of weights (`format`) and of
//! experts in slots (`packing`), the work of a product (`product`), and what was measured of that
//! (`table`). Knows no device.

pub(crate) mod format;
pub(crate) mod packing;
pub(crate) mod product;
pub(crate) mod table;
