//! `exp` and `ln` in plain `f64` arithmetic, the same bits on every machine: the functions of the
//! platform's library differ in the last place from one system to another.

const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1; // its low 21 bits are zero: k·LN_2_HIGH is exact
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;

/// Taylor's coefficients; the first term left out is below 2^-60.
const INVERSE_FACTORIALS: [f64; 15] = {
    let mut c = [1.0; 15];
    let mut factorial = 1.0; // exact: 14! < 2^53
    let mut n = 1;
    while n < c.len() {
        factorial *= n as f64;
        c[n] = 1.0 / factorial;
        n += 1;
    }
    c
};

/// e^x within 2 units in the last place; 0 below -708.
pub(super) fn exp(x: f64) -> f64 {
    if x.is_nan() || x > 709.0 {
        return if x.is_nan() { x } else { f64::INFINITY };
    }
    if x < -708.0 {
        return 0.0;
    }
    let k = (x * std::f64::consts::LOG2_E).round_ties_even();
    let r = (x - k * LN_2_HIGH) - k * LN_2_LOW; // |r| <= ln(2)/2
    let sum = INVERSE_FACTORIALS.iter().rev().fold(0.0, |sum, c| sum * r + c);
    sum * f64::from_bits(((k as i64 + 1023) as u64) << 52)
}

/// e^x within 2^-22 of it for x of at most 0; 0 below -87. Without branches: compilers make
/// vectors of many.
#[inline]
pub(super) fn exp_f32(x: f32) -> f32 {
    // Added to a number below 2^22, it leaves the nearest integer in the lowest bits.
    const ROUNDER: f32 = 1.5 * (1 << 23) as f32;
    const HIGH: f32 = 355.0 / 512.0; // k·HIGH is exact
    const LOW: f32 = -2.121_944_4e-4;
    let shifted = x * std::f32::consts::LOG2_E + ROUNDER;
    let k = shifted - ROUNDER;
    let r = (x - k * HIGH) - k * LOW; // |r| <= ln(2)/2
    let coefficients = INVERSE_FACTORIALS[..8].iter().rev();
    let sum = coefficients.fold(0.0, |sum, c| sum * r + *c as f32);
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    if x < -87.0 { 0.0 } else { sum * power }
}

/// The natural logarithm of a normal positive number, within 2 units in the last place.
pub(super) fn ln(x: f64) -> f64 {
    debug_assert!(x.is_normal() && x > 0.0, "ln of {x}");
    let bits = x.to_bits();
    let mut k = (bits >> 52) as i64 - 1023;
    let mut m = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52)); // in [1, 2)
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        k += 1;
    }
    // ln m = 2·artanh(s) = 2·(s + s³/3 + s⁵/5 + …), |s| < 0.172
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for n in (0..12).rev() {
        sum = sum * square + 1.0 / f64::from(2 * n + 1);
    }
    let k = k as f64;
    k * LN_2_HIGH + (2.0 * s * sum + k * LN_2_LOW)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_values_are_exact() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-1e9), 0.0);
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
        assert_eq!([0.0, -1e9, f32::NEG_INFINITY].map(exp_f32), [1.0, 0.0, 0.0]);
        assert_eq!(ln(1.0), 0.0);
        assert_eq!(ln(2.0), std::f64::consts::LN_2);
        assert_eq!(LN_2_HIGH.to_bits() & ((1 << 21) - 1), 0);
    }

    proptest! {
        #[test]
        fn agree_with_the_platform(x in -700.0..700.0f64, y in 1e-300..1e300f64) {
            prop_assert!((exp(x) / x.exp() - 1.0).abs() < 1e-15);
            let few = -(x.abs() / 8.0) as f32; // at least -87.5
            let error = f64::from(exp_f32(few)) - f64::from(few).exp();
            prop_assert!(error.abs() < f64::from(few).exp() * 2f64.powi(-22) || few < -87.0);
            prop_assert!((ln(y) - y.ln()).abs() <= y.ln().abs() * 5e-16);
        }
    }
}
