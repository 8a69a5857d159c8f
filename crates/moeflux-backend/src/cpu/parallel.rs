//! Work on disjoint chunks of one slice, divided among threads.

use std::sync::{Mutex, PoisonError};

use super::pool::{Pool, SharedMut};

/// Memory that tasks use one after the other, kept from call to call.
#[derive(Debug, Default)]
pub(super) struct Spare<T>(Mutex<Vec<T>>);

impl<T: Default> Spare<T> {
    pub(super) fn take(&self) -> T {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    pub(super) fn put(&self, item: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(item);
    }
}

/// Elements that are worth a task: about ten microseconds of simple work.
const TASK_ELEMENTS: usize = 16 * 1024;

/// Calls `work` with every chunk of `chunk` elements and its index; `cost` is
/// the work of one chunk in elements touched.
pub(super) fn for_each_chunk(
    pool: &Pool,
    data: &mut [f32],
    chunk: usize,
    cost: usize,
    work: &(dyn Fn(usize, &mut [f32]) + Sync),
) {
    let n_chunks = data.len() / chunk;
    let per_task = TASK_ELEMENTS.div_ceil(cost.max(1)).max(1);
    let n_tasks = n_chunks.div_ceil(per_task);
    if n_tasks <= 1 {
        for (i, chunk) in data.chunks_exact_mut(chunk).enumerate() {
            work(i, chunk);
        }
        return;
    }
    let shared = SharedMut::new(data);
    pool.run(n_tasks, &|task| {
        for i in task * per_task..((task + 1) * per_task).min(n_chunks) {
            // SAFETY: every index below `n_chunks` belongs to one task, and
            // chunks of different indices do not overlap.
            let chunk = unsafe { shared.slice(i * chunk..(i + 1) * chunk) };
            work(i, chunk);
        }
    });
}

/// Has what will be read soon brought into the second cache: places for lines under way
/// to the first one are few, and memory is far.
#[inline]
pub(super) fn prefetch<T>(values: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for line in values.chunks(64 / size_of::<T>()) {
        use std::arch::x86_64::*;
        // SAFETY: every machine has this instruction, which reads nothing that the program sees.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = values;
}

/// An empty vector of another type in the memory of `old`, where one element of
/// both takes the same.
pub(super) fn recycle<T, U>(mut old: Vec<T>) -> Vec<U> {
    old.clear();
    old.into_iter().map(|_| unreachable!("it is empty")).collect()
}
