//! Checkpoints of every format, read in place.
