//! Software prefetch of the memory that a later task reads.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

/// Bytes of a line of the caches.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Prefetches memory that is about to be read into the second-level cache, in equal
/// portions between other work.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "only kernels of x86-64 prefetch")
)]
pub(super) struct Prefetcher<'a> {
    parts: [&'a [u8]; 3],
    part: usize,
    at: usize,
    /// Cache lines of a portion; zero until [`divide`](Prefetcher::divide) sets it.
    portion: usize,
}

impl<'a> Prefetcher<'a> {
    pub(super) fn nothing() -> Self {
        Prefetcher::new([&[]; 3])
    }

    /// Prefetches these parts one after another.
    pub(super) fn new(parts: [&'a [u8]; 3]) -> Self {
        Prefetcher { parts, part: 0, at: 0, portion: 0 }
    }

    /// Divides what is left into `n_times` portions.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn divide(&mut self, n_times: usize) {
        let left =
            self.parts[self.part..].iter().map(|part| part.len().div_ceil(LINE)).sum::<usize>();
        self.portion = left.saturating_sub(self.at / LINE).div_ceil(n_times.max(1));
    }

    /// Prefetches the next portion.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "sse")]
    pub(super) fn prefetch(&mut self) {
        let mut left = self.portion;
        while let Some(part) = self.parts.get(self.part) {
            let end = part.len().min(self.at + left * LINE);
            for line in part[self.at..end].chunks(LINE) {
                _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast());
            }
            left -= (end - self.at).div_ceil(LINE);
            self.at = end;
            if end < part.len() {
                return;
            }
            (self.part, self.at) = (self.part + 1, 0);
        }
    }
}
