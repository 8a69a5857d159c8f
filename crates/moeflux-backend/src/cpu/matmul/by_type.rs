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

/// Calls `$kernel::<TYPE, N>` for a type, with more generic arguments where there are some; `N` are
/// the bytes of a step.
macro_rules! for_type {
    ($block_type:expr, $kernel:ident$(::<$($generic:ident),*>)?($($arg:expr),*)) => {
        for_type!(
            @types $block_type, $kernel, ($($($generic),*)?), ($($arg),*),
            Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL
            IQ3_S IQ2_S IQ4_XS IQ1_M TQ1_0 TQ2_0 MXFP4 NVFP4 Q1_0 Q2_0
        )
    };
    (@types $block_type:expr, $kernel:ident, $generics:tt, $args:tt, $($name:ident)*) => {
        match $block_type {
            $(
                BlockType::$name => for_type!(@call $name, $kernel, $generics, $args),
            )*
        }
    };
    (@call $name:ident, $kernel:ident, ($($generic:ident),*), ($($arg:expr),*)) => {{
        const TYPE: u8 = BlockType::$name as u8;
        $kernel::<TYPE, { step_bytes(TYPE) }, $($generic),*>($($arg),*)
    }};
}

pub(super) use {by_type, for_type};
