//! Which resident expert leaves when a slot is needed.

mod frequency;
mod lru;
mod rule;

use crate::CachePolicy;

use frequency::Frequency;
use lru::Lru;
pub(crate) use rule::Policy;

/// Makes a policy for layers of so many experts each, in the order of their turns.
pub(crate) fn policy(choice: CachePolicy, layers: &[usize]) -> Box<dyn Policy> {
    match choice {
        CachePolicy::Lru => Box::new(Lru::new(layers.iter().sum())),
        CachePolicy::Frequency => Box::new(Frequency::new(layers)),
    }
}

#[cfg(test)]
mod tests;
