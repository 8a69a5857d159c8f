//! The table of live objects. A handle is a number in a pointer's clothes: nothing is ever read or
//! written where it points, so a freed, foreign or invented handle is found out and does no harm.

use std::any::Any;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

use crate::status::{
    Fault, MOEFLUX_ERROR_FORKED, MOEFLUX_ERROR_HANDLE, MOEFLUX_ERROR_IN_USE, MOEFLUX_ERROR_INTERNAL,
};

/// A type of handles.
pub(crate) trait Handle: 'static {
    /// Its name in C.
    const NAME: &'static str;
    /// What a handle of it stands for.
    type Object: Any + Send + Sync;
}

/// An object, and the name of its handles' type.
#[derive(Clone)]
struct Entry {
    name: &'static str,
    object: Arc<dyn Any + Send + Sync>,
}

static LIVE: RwLock<BTreeMap<usize, Entry>> = RwLock::new(BTreeMap::new());

/// The last number that was given out. None is given out twice.
static LAST: AtomicUsize = AtomicUsize::new(BASE);

/// In front of the first number. On 64-bit systems no address begins so, which keeps handles apart from
/// pointers to memory.
const BASE: usize = (0x6d66_u64 << 48) as usize;

/// The process that uses the library; 0 before its first call.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Gives out a handle.
pub(crate) fn issue<H: Handle>(object: H::Object) -> Result<*mut H, Fault> {
    check_process()?;
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    write().insert(number, Entry { name: H::NAME, object: Arc::new(object) });
    Ok(ptr::without_provenance_mut(number))
}

/// The object of a handle. It lives until the caller drops it, even where the handle is freed.
pub(crate) fn look_up<H: Handle>(handle: *mut H) -> Result<Arc<H::Object>, Fault> {
    check_process()?;
    let entry = read().get(&handle.addr()).cloned();
    typed::<H>(handle, entry)
}

/// Takes a handle out of the table: the object ends with its last user.
pub(crate) fn retire<H: Handle>(handle: *mut H) -> Result<(), Fault> {
    if handle.is_null() {
        return Ok(());
    }
    // A handle of another type stays in the table. Objects end outside of the table's lock: those of
    // models wait for their thread.
    let object = look_up(handle)?;
    if write().remove(&handle.addr()).is_none() {
        return Err(missing::<H>(handle));
    }
    drop(object);
    Ok(())
}

/// How many handles are not freed.
pub(crate) fn n_live() -> usize {
    read().len()
}

/// The object's state for one call. Calls do not wait for each other: the second one fails, so that a
/// callback that uses its own object does not wait for ever.
pub(crate) fn exclusive<'a, H: Handle, T>(
    _: *mut H,
    state: &'a Mutex<T>,
) -> Result<MutexGuard<'a, T>, Fault> {
    match state.try_lock() {
        Ok(state) => Ok(state),
        Err(TryLockError::WouldBlock) => {
            let text = format!("another call uses this {} now: wait for it to return", H::NAME);
            Err(Fault::new(MOEFLUX_ERROR_IN_USE, text))
        }
        Err(TryLockError::Poisoned(_)) => {
            let text = format!("an earlier call with this {} failed inside: free it", H::NAME);
            Err(Fault::new(MOEFLUX_ERROR_INTERNAL, text))
        }
    }
}

fn typed<H: Handle>(handle: *mut H, entry: Option<Entry>) -> Result<Arc<H::Object>, Fault> {
    let Some(Entry { name, object }) = entry else { return Err(missing::<H>(handle)) };
    object.downcast().map_err(|_| {
        let text = format!("a handle of {} was given, {} is wanted", name, H::NAME);
        Fault::new(MOEFLUX_ERROR_HANDLE, text)
    })
}

/// Why a handle is not in the table.
fn missing<H: Handle>(handle: *mut H) -> Fault {
    let number = handle.addr();
    let was_issued = number > BASE && number <= LAST.load(Ordering::Relaxed);
    let name = H::NAME;
    let text = if handle.is_null() {
        format!("the handle is null, {name} is wanted")
    } else if was_issued {
        format!("the handle was freed, {name} is wanted")
    } else {
        format!("{handle:p} is no handle of this library, {name} is wanted")
    };
    Fault::new(MOEFLUX_ERROR_HANDLE, text)
}

/// Refuses a fork: it has no thread of the models, and locks may be held by threads that it lacks.
fn check_process() -> Result<(), Fault> {
    let own = std::process::id();
    match OWNER.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed) {
        Err(owner) if owner != own => {
            let text = format!(
                "process {own} is a fork of {owner}, which uses moeflux: fork before the first call, or \
                 start a program in the fork"
            );
            Err(Fault::new(MOEFLUX_ERROR_FORKED, text))
        }
        _ => Ok(()),
    }
}

// No call panics while it holds the table.
fn read() -> RwLockReadGuard<'static, BTreeMap<usize, Entry>> {
    LIVE.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, BTreeMap<usize, Entry>> {
    LIVE.write().unwrap_or_else(PoisonError::into_inner)
}
