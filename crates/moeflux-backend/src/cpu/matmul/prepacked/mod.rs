//! Activations in the order that an instruction set wants for many rows, made
//! once a call for all of its tasks.

#[cfg(target_arch = "x86_64")]
mod tiles;

#[cfg(target_arch = "x86_64")]
pub(super) use tiles::{Bytes, Input, Inputs, Place};

/// None is wanted here.
#[cfg(not(target_arch = "x86_64"))]
pub(super) type Input<'a> = std::marker::PhantomData<&'a std::convert::Infallible>;

/// No instruction set of this architecture wants any.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Debug, Default)]
pub(super) struct Inputs;

#[cfg(not(target_arch = "x86_64"))]
impl Inputs {
    pub(super) fn of(&self, _: usize) -> Option<Input<'_>> {
        None
    }
}
