//! Headings of help that several groups of flags stand below.

/// Of flags that say which model runs, and how.
pub(super) const MODEL: &str = "Model";
