//! Names of functions and of a filter that rewritten templates call.

/// Name of the function for `%`.
pub(in crate::jinja) const MODULO: &str = "__modulo";

/// Name of the function for `*`.
pub(in crate::jinja) const MULTIPLY: &str = "__multiply";

/// Name of the function for `~`.
pub(in crate::jinja) const CONCAT: &str = "__concat";

/// Name of the function for `value[start:stop:step]`.
pub(in crate::jinja) const SLICE: &str = "__slice";

/// Name of the function that sorts the arguments of a call into named ones, `varargs` and `kwargs`.
pub(in crate::jinja) const BIND: &str = "__bind";

/// Name of the filter for what `set` assigns.
pub(in crate::jinja) const ASSIGNED: &str = "__assigned";
