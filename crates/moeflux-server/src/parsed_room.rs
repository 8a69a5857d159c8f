//! Memory that parsed bodies share until their prompts are made.
//!
//! A request keeps its share in the task that handles it. `ask::submit` gives the share up when it queues the prompt,
//! so that requests that wait for the model hold none.

use std::cell::RefCell;
use std::future::Future;

use tokio::sync::{Semaphore, SemaphorePermit};

/// Bytes that parsed bodies may take together.
pub(crate) const MAX_PARSED: usize = 32 << 20;

/// Bytes that a permit stands for.
const UNIT: usize = 1 << 10;

/// Bytes of a body that takes no share.
const SMALL: usize = 64 << 10;

static FREE: Semaphore = Semaphore::const_new(MAX_PARSED / UNIT);

tokio::task_local! {
    static SHARE: RefCell<ParsedShare>;
}

/// The memory of a parsed body, which is given back when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct ParsedShare {
    _permit: Option<SemaphorePermit<'static>>,
}

impl ParsedShare {
    /// Waits until there is room for a body that takes this many bytes when it is parsed.
    pub(crate) async fn take(bytes: usize) -> ParsedShare {
        if bytes <= SMALL {
            return ParsedShare::default();
        }
        let units = (bytes.min(MAX_PARSED) / UNIT) as u32;
        // The semaphore is never closed.
        ParsedShare { _permit: FREE.acquire_many(units).await.ok() }
    }

    /// Handles a request that keeps this share until [`give_up`], or until it is handled.
    pub(crate) fn held_by<F: Future>(self, handling: F) -> impl Future<Output = F::Output> {
        SHARE.scope(RefCell::new(self), handling)
    }
}

/// Gives up the share of the request that is handled by this task, if it has one.
pub(crate) fn give_up() {
    // Tests queue prompts outside of requests.
    let _ = SHARE.try_with(RefCell::take);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_share_is_given_up_with_the_prompt_or_at_the_end() {
        let all = || FREE.available_permits();
        let before = all();
        let share = ParsedShare::take(1 << 20).await;
        assert_eq!(all(), before - 1024);
        let handling = async {
            give_up();
            assert_eq!(all(), before);
        };
        share.held_by(handling).await;
        ParsedShare::take(1 << 20).await.held_by(async {}).await;
        assert_eq!(all(), before);
        give_up();
    }
}
