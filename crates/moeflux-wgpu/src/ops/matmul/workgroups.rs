//! How matrices of different sizes share a kernel's workgroups.

use crate::words::word;

/// Jobs whose ends `matmul/matvec.wgsl` has room for.
const MOST: usize = 8;

/// Where each job's workgroups end among all, after the last one as there, by the jobs' rows:
/// with this many of these a workgroup, and at most this many workgroups a job. `None` where jobs
/// are alike or too many.
pub(crate) fn ends(
    rows: impl ExactSizeIterator<Item = usize> + Clone,
    per_group: usize,
    most_groups: usize,
) -> Option<[u32; MOST]> {
    let first = rows.clone().next()?;
    if rows.len() > MOST || rows.clone().all(|n_rows| n_rows == first) {
        return None;
    }
    let mut groups = rows.map(|n_rows| n_rows.div_ceil(per_group).min(most_groups));
    let mut end = 0;
    Some(std::array::from_fn(|_| {
        end += groups.next().unwrap_or(0);
        word(end)
    }))
}

#[cfg(test)]
mod tests {
    use super::ends;

    #[test]
    fn jobs_have_the_workgroups_that_they_need() {
        let of = |rows: &[usize]| ends(rows.iter().copied(), 8, 1000);
        assert_eq!(of(&[32, 8192, 9]), Some([4, 1004, 1006, 1006, 1006, 1006, 1006, 1006]));
        assert_eq!(of(&[512, 512]), None);
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), None);
    }
}
