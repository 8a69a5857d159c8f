//! What a device must be able to do, and the CPU that always can.

pub mod cpu;
