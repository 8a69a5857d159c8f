//! Asking memory for what will be read next while something else is worked on.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

/// Bytes of a line of the caches.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Memory that is about to be read, in equal portions.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "nobody asks"))]
pub(super) struct Upcoming<'a> {
    parts: [&'a [u8]; 3],
    part: usize,
    at: usize,
    /// Lines asked for at a time.
    portion: usize,
}

impl<'a> Upcoming<'a> {
    pub(super) fn nothing() -> Self {
        Upcoming::new([&[]; 3])
    }

    /// Nothing is asked for before it is divided.
    pub(super) fn new(parts: [&'a [u8]; 3]) -> Self {
        Upcoming { parts, part: 0, at: 0, portion: 0 }
    }

    /// What is left will be asked for in `n_times`.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn divide(&mut self, n_times: usize) {
        let left = self.parts[self.part..].iter().map(|it| it.len().div_ceil(LINE)).sum::<usize>();
        self.portion = left.saturating_sub(self.at / LINE).div_ceil(n_times.max(1));
    }

    /// Has the next portion brought into the second cache.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "sse")]
    pub(super) fn ask(&mut self) {
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
