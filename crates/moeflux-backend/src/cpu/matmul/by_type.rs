//! The choice of a kernel by a type of blocks that is known when it is compiled.

/// `match` of the type with this number, a constant, whose arms for other types are not compiled.
///
/// A `match` compiles every function that an arm names before it finds out which arm is taken: with
/// a copy of each for every type that was half of the time that this crate took. Of a condition
/// that is a constant only what it leads to is compiled.
macro_rules! by_type {
    ($number:ident { $($types:pat => $run:expr),+ $(,)? }) => {{
        // Every type has an arm.
        const { match of($number) { $($types => ()),+ } };
        $(if const { matches!(of($number), $types) } { $run } else)+ {
            unreachable!("one of the arms is taken")
        }
    }};
}

pub(super) use by_type;
