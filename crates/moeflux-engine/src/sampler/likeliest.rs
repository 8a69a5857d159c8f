//! The likeliest of many tokens.

/// Logits whose highest is found together, in vectors.
const CHUNK: usize = 2048;

/// Where the highest logit stands, the first of equal ones. What is not a number lies
/// beyond all numbers, by its sign.
pub(crate) fn likeliest(logits: &[f32]) -> Option<usize> {
    let highest = |it: &[f32]| it.iter().map(key).fold(i32::MIN, i32::max);
    let (mut best, mut first) = (i32::MIN, 0);
    for (nth, chunk) in logits.chunks(CHUNK).enumerate() {
        let its = highest(chunk);
        if its > best {
            (best, first) = (its, nth * CHUNK);
        }
    }
    logits[first..].iter().position(|it| key(it) == best).map(|it| first + it)
}

/// An integer that is ordered as [`f32::total_cmp`] does it.
fn key(it: &f32) -> i32 {
    let bits = it.to_bits().cast_signed();
    bits ^ ((bits >> 31).cast_unsigned() >> 1).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_first_of_the_highest_wherever_it_stands() {
        assert_eq!(likeliest(&[]), None);
        assert_eq!(likeliest(&[f32::NEG_INFINITY]), Some(0));
        assert_eq!(likeliest(&[-0.0, 0.0, -1.0]), Some(1));
        for at in [0, 1, CHUNK - 1, CHUNK, 3 * CHUNK + 7] {
            let mut logits: Vec<f32> = (0..4 * CHUNK).map(|i| -1.0 - i as f32).collect();
            logits[at] = 2.5;
            logits[4 * CHUNK - 1] = 2.5;
            assert_eq!(likeliest(&logits), Some(at));
        }
    }

    #[test]
    fn keys_are_ordered_as_floats() {
        let floats = [f32::NEG_INFINITY, -2.0, -1.0e-40, -0.0, 0.0, 1.0e-40, 1.5, f32::INFINITY];
        assert!(floats.iter().map(key).is_sorted_by(|a, b| a < b));
    }
}
