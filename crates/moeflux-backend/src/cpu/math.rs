//! Elementary functions with one definition for every instruction set, free of
//! branches so that compilers vectorise them.

/// Partial sums of a dot product.
pub(crate) const LANES: usize = 16;

/// Adds sixteen partial sums as the fixed tree 8, 4, 2, 1.
#[inline(always)]
pub(crate) fn tree_sum(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Adds products of `a` and `b` to sixteen partial sums, lane = index mod 16.
#[inline(always)]
pub(crate) fn dot_lanes(a: &[f32], b: &[f32], lanes: &mut [f32; LANES]) {
    let (a_blocks, a_tail) = a.as_chunks::<LANES>();
    let (b_blocks, b_tail) = b.as_chunks::<LANES>();
    for (x, y) in a_blocks.iter().zip(b_blocks) {
        for i in 0..LANES {
            lanes[i] = x[i].mul_add(y[i], lanes[i]);
        }
    }
    for (i, (x, y)) in a_tail.iter().zip(b_tail).enumerate() {
        lanes[i] = x.mul_add(*y, lanes[i]);
    }
}

/// `sum of a[i] * b[i]`, over sixteen partial sums.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    dot_lanes(a, b, &mut lanes);
    tree_sum(lanes)
}

/// The sum of all elements, over sixteen partial sums.
#[inline(always)]
pub(crate) fn sum(a: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (blocks, tail) = a.as_chunks::<LANES>();
    for x in blocks {
        for i in 0..LANES {
            lanes[i] += x[i];
        }
    }
    for (lane, x) in lanes.iter_mut().zip(tail) {
        *lane += x;
    }
    tree_sum(lanes)
}

/// Adding this rounds to an integer and leaves it in the low bits.
pub(super) const EXP_MAGIC: f32 = 12_582_912.0;
/// `ln 2` in two parts.
pub(super) const LN2_HI: f32 = 0.693_359_4;
pub(super) const LN2_LO: f32 = -2.121_944_4e-4;
/// Where [`exp`] ends: it is 0 below the first, and above the second what it is there.
pub(super) const EXP_MIN: f32 = -87.3;
pub(super) const EXP_MAX: f32 = 88.3;
/// Polynomial of Cephes' `expf`, the highest power first.
pub(super) const EXP_POLYNOMIAL: [f32; 6] =
    [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// `e^x` to about one unit in the last place; 0 below -87.3, finite above
/// 88.3.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let clamped = x.clamp(EXP_MIN, EXP_MAX);
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, EXP_MAGIC);
    let n = shifted - EXP_MAGIC;
    let r = n.mul_add(-LN2_LO, n.mul_add(-LN2_HI, clamped));
    let mut p = EXP_POLYNOMIAL[0];
    for next in &EXP_POLYNOMIAL[1..] {
        p = p.mul_add(r, *next);
    }
    let mantissa = (r * r).mul_add(p, r) + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(EXP_MAGIC.to_bits()).wrapping_add(127) << 23;
    let value = mantissa * f32::from_bits(exponent);
    if x < EXP_MIN { 0.0 } else { value }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x * sigmoid(x)`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `x / 2 * (1 + tanh(u))` with `u = sqrt(2 / pi) * (x + 0.044715 * x^3)`, which is
/// `x * sigmoid(2 u)`.
#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    // sqrt(8 / pi)
    const SLOPE: f32 = 1.595_769;
    let cubic = (x * x).mul_add(0.044_715, 1.0);
    x / (1.0 + exp(-(SLOPE * x * cubic)))
}

/// `x / 2 * (1 + erf(x / sqrt(2)))`. The complementary error function of Press et al., "Numerical
/// Recipes", section 6.2: a Chebyshev fit of its logarithm, within 1.2e-7 of its value everywhere.
#[inline(always)]
pub(crate) fn gelu_erf(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / z.mul_add(0.5, 1.0);
    let mut p = 0.170_872_77_f32;
    p = p.mul_add(t, -0.822_152_23);
    p = p.mul_add(t, 1.488_515_9);
    p = p.mul_add(t, -1.135_204);
    p = p.mul_add(t, 0.278_868_07);
    p = p.mul_add(t, -0.186_288_06);
    p = p.mul_add(t, 0.096_784_18);
    p = p.mul_add(t, 0.374_091_96);
    p = p.mul_add(t, 1.000_023_7);
    p = p.mul_add(t, -1.265_512_2);
    let half = 0.5 * t * exp((-z).mul_add(z, p));
    x * if x < 0.0 { half } else { 1.0 - half }
}

/// Hyperbolic tangent, within three units in the last place. Polynomial of Cephes' `tanhf`.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let square = x * x;
    let mut p = -5.704_988_7e-3_f32;
    p = p.mul_add(square, 2.063_909e-2);
    p = p.mul_add(square, -5.373_971_6e-2);
    p = p.mul_add(square, 1.333_144_2e-1);
    p = p.mul_add(square, -3.333_328e-1);
    let near = (p * square).mul_add(x, x);
    let far = 1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0);
    if x.abs() < 0.625 { near } else { far.copysign(x) }
}

/// `ln(1 + e^x)`, and `x` itself above 20, as PyTorch defines it. NaN stays NaN.
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    if x <= 20.0 { ln(1.0 + f64::from(exp(x))) as f32 } else { x }
}

/// Natural logarithm of a finite number that is at least one.
#[inline(always)]
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i32 - 1023;
    let mut mantissa = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2 atanh s with s = (m - 1) / (m + 1), |s| < 0.172.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for k in (0..12).rev() {
        sum = sum * square + 1.0 / f64::from(2 * k + 1);
    }
    f64::from(exponent) * std::f64::consts::LN_2 + 2.0 * s * sum
}

/// Sine and cosine of an angle in radians of magnitude below 2^30.
pub(crate) fn sin_cos(angle: f32) -> (f32, f32) {
    // pi / 2 in two parts, so that multiples stay exact to 2^-70.
    const HALF_PI_HI: f64 = 1.570_796_326_734_125_6;
    const HALF_PI_LO: f64 = 6.077_100_506_506_192e-11;
    let x = f64::from(angle);
    let quarter = (x * std::f64::consts::FRAC_2_PI).round_ties_even();
    let r = (x - quarter * HALF_PI_HI) - quarter * HALF_PI_LO;
    let square = r * r;
    let mut sin = 0.0;
    let mut cos = 0.0;
    for k in (0..9).rev() {
        let n = f64::from(2 * k + 1);
        sin = 1.0 - sin * square / ((n + 1.0) * (n + 2.0));
        cos = 1.0 - cos * square / (n * (n + 1.0));
    }
    let (sin, cos) = (sin * r, cos);
    match (quarter as i64).rem_euclid(4) {
        0 => (sin as f32, cos as f32),
        1 => (cos as f32, -sin as f32),
        2 => (-sin as f32, -cos as f32),
        _ => (-cos as f32, sin as f32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_of_the_true_value() {
        for i in -8700..8800 {
            let x = i as f32 * 0.01;
            let want = f64::from(x).exp();
            let error = (f64::from(exp(x)) - want).abs() / want;
            assert!(error < 2.4e-7, "exp({x}): {error:e}");
        }
        assert_eq!(exp(-1000.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(1000.0).is_finite());
    }

    #[test]
    fn softplus_is_accurate() {
        for i in -400..400 {
            let x = i as f32 * 0.1;
            let want = f64::from(x).exp().ln_1p();
            assert!((f64::from(softplus(x)) - want).abs() < 3e-7 * want.max(1.0), "softplus({x})");
        }
    }

    #[test]
    fn tanh_and_gelu_are_accurate() {
        for i in -3000..3000 {
            let x = i as f32 * 0.004;
            let want = f64::from(x).tanh();
            assert!((f64::from(tanh(x)) - want).abs() <= 3e-7 * want.abs(), "tanh({x})");
            let x64 = f64::from(x);
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x64 + 0.044715 * x64.powi(3));
            let want = x64 * (-2.0 * inner).exp().recip() / (1.0 + (-2.0 * inner).exp().recip());
            let error = (f64::from(gelu_tanh(x)) - want).abs();
            // Six roundings of the exponent, each of 2^-24 of it, and those of what follows.
            let allowed = 6.0 * 2f64.powi(-24) * (2.0 * inner).abs() + 4e-7;
            assert!(error <= allowed * want.abs() + 1e-30, "gelu({x}): {error:e} of {want:e}");
        }
        assert_eq!([gelu_erf(0.0), gelu_erf(1e9), gelu_erf(-1e9)], [0.0, 1e9, 0.0]);
        // Twice the normal distribution at -3 ..= 3, from its tables to ten digits.
        let normal = [0.001_349_898, 0.022_750_132, 0.158_655_254, 0.5];
        for (x, below) in (-3..=0_i16).map(f32::from).zip(normal) {
            let error = |x: f32, of: f64| (f64::from(gelu_erf(x)) - f64::from(x) * of).abs();
            assert!(error(x, below) <= 4e-7 && error(-x, 1.0 - below) <= 4e-7, "gelu_erf({x})");
        }
        assert_eq!([tanh(0.0), tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)], [0.0, 1.0, -1.0]);
        assert_eq!([gelu_tanh(0.0), gelu_tanh(1e9)], [0.0, 1e9]);
        assert!(gelu_tanh(-1e9).abs() < 1e-20);
    }

    #[test]
    fn nothing_makes_a_number_of_nan() {
        for f in [exp, sigmoid, silu, softplus, gelu_tanh, gelu_erf, tanh] {
            for nan in [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001)] {
                assert!(f(nan).is_nan());
            }
        }
        assert_eq!(softplus(f32::INFINITY), f32::INFINITY);
        assert_eq!(softplus(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn sine_and_cosine_are_accurate_at_small_and_large_angles() {
        for i in 0..20_000 {
            let x = (i as f32 - 10_000.0) * 0.37 + (i as f32) * (i as f32) * 0.011;
            let (sin, cos) = sin_cos(x);
            let want = f64::from(x).sin_cos();
            assert!((f64::from(sin) - want.0).abs() < 1e-7, "sin({x})");
            assert!((f64::from(cos) - want.1).abs() < 1e-7, "cos({x})");
        }
    }

    #[test]
    fn dot_adds_lanes_in_the_fixed_order() {
        for len in [0usize, 1, 15, 16, 17, 100, 256] {
            let a: Vec<f32> = (0..len).map(|i| ((i * 37 % 19) as f32 - 9.0) * 0.37).collect();
            let b: Vec<f32> = (0..len).map(|i| ((i * 53 % 23) as f32 - 11.0) * 0.11).collect();
            let mut lanes = [0.0f32; 16];
            for i in 0..len {
                lanes[i % 16] = a[i].mul_add(b[i], lanes[i % 16]);
            }
            for width in [8, 4, 2, 1] {
                for i in 0..width {
                    lanes[i] += lanes[i + width];
                }
            }
            assert_eq!(dot(&a, &b).to_bits(), lanes[0].to_bits(), "len {len}");
        }
    }
}
