//! Panics of libraries on input that was not made for them, turned into errors.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread is about to become an error.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`; a panic in it is returned as its message, and neither it nor a backtrace is
/// printed. Whatever `work` was changing must not be used after a panic.
///
/// The first call wraps the panic hook of the process: panics outside of `work` reach the hook
/// that was there before.
///
/// # Errors
/// The first line of the panic's message.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static WRAP_HOOK: Once = Once::new();
    WRAP_HOOK.call_once(|| {
        let earlier = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_GUARDED.get() {
                earlier(info);
            }
        }));
    });
    let was_guarded = IS_GUARDED.replace(true);
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    IS_GUARDED.set(was_guarded);
    done.map_err(|payload| message(payload.as_ref()))
}

pub(crate) type Source = Box<dyn std::error::Error + Send + Sync>;

/// The work of the library, with its panics as errors.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, Source>) -> Result<T, Source> {
    catch_panic(work)?
}

/// The first line of a panic's message.
fn message(payload: &(dyn Any + Send)) -> String {
    const MAX_CHARS: usize = 160;
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    let line = text.and_then(|text| text.lines().next()).unwrap_or("no reason given");
    let line: String = line.chars().take(MAX_CHARS).collect();
    format!("its library panicked: {line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_its_message() {
        assert_eq!(catch_panic(|| 3), Ok(3));
        let nested = catch_panic(|| catch_panic(|| panic!("inner {}", 1)));
        assert_eq!(nested, Ok(Err::<(), _>(String::from("its library panicked: inner 1"))));
        assert!(!IS_GUARDED.get());
    }
}
