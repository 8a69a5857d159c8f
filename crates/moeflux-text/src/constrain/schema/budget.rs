//! How much of its schemas a request may have compiled. The time that the library takes grows with
//! these numbers, wherever in the schemas they come from.

/// Schemas and their keywords, in all schemas of a request. Five thousand properties have about
/// 10,000.
const MAX_VALUES: usize = 1 << 14;
/// Values that are listed in `enum`.
const MAX_CHOICES: usize = 1 << 14;
/// Properties of objects that have many. The time for an object grows with their square.
const MAX_CROWDED: usize = 2048;
/// Properties that are many.
const MANY: usize = 256;
/// Bytes of names, patterns and values.
const MAX_BYTES: usize = 1 << 18;
/// Remainders for `multipleOf`: a divisor has as many as it is large.
const MAX_MULTIPLES: usize = 1 << 15;

/// What is left for the schemas of a request.
pub(in crate::constrain) struct Budget {
    n_values: usize,
    n_choices: usize,
    n_crowded: usize,
    n_bytes: usize,
    n_multiples: usize,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            n_values: MAX_VALUES,
            n_choices: MAX_CHOICES,
            n_crowded: MAX_CROWDED,
            n_bytes: MAX_BYTES,
            n_multiples: MAX_MULTIPLES,
        }
    }
}

impl Budget {
    /// Takes room for schemas or keywords; `false` where there is none left.
    pub(super) fn take_values(&mut self, n: usize) -> bool {
        take(&mut self.n_values, n)
    }

    pub(super) fn take_choices(&mut self, n: usize) -> bool {
        take(&mut self.n_choices, n)
    }

    /// Takes room for the properties of an object.
    pub(super) fn take_properties(&mut self, n: usize) -> bool {
        n < MANY || take(&mut self.n_crowded, n)
    }

    pub(super) fn take_bytes(&mut self, n: usize) -> bool {
        take(&mut self.n_bytes, n)
    }

    pub(super) fn take_multiples(&mut self, n: u32) -> bool {
        take(&mut self.n_multiples, n as usize)
    }
}

fn take(left: &mut usize, n: usize) -> bool {
    let is_enough = *left >= n;
    if is_enough {
        *left -= n;
    }
    is_enough
}
