//! Eviction policies: which resident expert is evicted when a slot is needed.

mod frequency;
mod lru;
mod rule;

use crate::CachePolicy;

use frequency::Frequency;
use lru::Lru;
pub(crate) use rule::Policy;

/// Creates a policy. `layers` has the number of experts of each layer, in the order in which a step
/// requests the layers.
pub(crate) fn policy(choice: CachePolicy, layers: &[usize]) -> Box<dyn Policy> {
    match choice {
        CachePolicy::Lru => Box::new(Lru::new(layers.iter().sum())),
        CachePolicy::Frequency => Box::new(Frequency::new(layers)),
    }
}

#[cfg(test)]
mod tests;
