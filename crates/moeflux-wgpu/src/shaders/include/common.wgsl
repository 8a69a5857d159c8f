// What every kernel may call: elementary functions with one definition for all
// drivers, and where a workgroup stands.

// Values of FORMAT: how the elements of a matrix are stored.
const FORMAT_AFFINE: u32 = 0u;
const FORMAT_F32: u32 = 1u;
const FORMAT_F16: u32 = 2u;
const FORMAT_BF16: u32 = 3u;
const FORMAT_E2M1: u32 = 4u;
const FORMAT_E4M3: u32 = 5u;
const FORMAT_E4M3_BLOCKS: u32 = 6u;
const FORMAT_GGML: u32 = 7u;
const FORMAT_NF4: u32 = 8u;

// Values of FLOATS: how scales and biases are stored. FLOATS_APART is added where biases are
// apart from scales, FLOATS_SYMMETRIC where they follow from scales and are not stored.
const FLOATS_BF16: u32 = 0u;
const FLOATS_F16: u32 = 1u;
const FLOATS_F32: u32 = 2u;
const FLOATS_APART: u32 = 3u;
const FLOATS_SYMMETRIC: u32 = 6u;

// Bits of BITS of small floats: scales are E4M3, not E8M0; groups have 16 columns, not 32; a single
// that all of the matrix shares multiplies scales, and it is apart from them, not in front.
const SMALL_E4M3: u32 = 1u;
const SMALL_SIXTEEN: u32 = 2u;
const SMALL_GLOBAL: u32 = 4u;
const SMALL_APART: u32 = 8u;

// Values of KV: how keys and values are stored.
const KV_F32: u32 = 0u;
const KV_BF16: u32 = 1u;
const KV_Q8: u32 = 2u;

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

// To about one unit in the last place; 0 below -87.3, finite above 88.3
// (polynomial of Cephes' expf). NaN stays NaN: a driver's clamp may make a number of it.
fn exp_(x: f32) -> f32 {
    let clamped = clamp(x, -87.3, 88.3);
    let n = round(clamped * 1.44269504);
    let r = fma(n, 2.1219444e-4, fma(n, -0.6933594, clamped));
    var p = 1.9875691e-4;
    p = fma(p, r, 1.3982e-3);
    p = fma(p, r, 8.333452e-3);
    p = fma(p, r, 4.1665796e-2);
    p = fma(p, r, 1.6666665e-1);
    p = fma(p, r, 0.5);
    let mantissa = fma(r * r, p, r) + 1.0;
    let value = mantissa * bitcast<f32>(u32(i32(n) + 127) << 23u);
    return select(select(value, 0.0, x < -87.3), x, is_nan(x));
}

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp_(-x));
}

fn silu(x: f32) -> f32 {
    return x / (1.0 + exp_(-x));
}

// x / 2 * (1 + tanh(u)) with u = sqrt(2 / pi) * (x + 0.044715 x^3), which is x * sigmoid(2 u).
fn gelu_tanh(x: f32) -> f32 {
    return x / (1.0 + exp_(-(1.5957691 * x * fma(x * x, 0.044715, 1.0))));
}

// x / 2 * (1 + erf(x / sqrt(2))), as the host computes it.
fn gelu_erf(x: f32) -> f32 {
    let z = abs(x) * 0.70710678;
    let t = 1.0 / fma(z, 0.5, 1.0);
    var p = 0.17087277;
    p = fma(p, t, -0.82215223);
    p = fma(p, t, 1.48851587);
    p = fma(p, t, -1.13520398);
    p = fma(p, t, 0.27886807);
    p = fma(p, t, -0.18628806);
    p = fma(p, t, 0.09678418);
    p = fma(p, t, 0.37409196);
    p = fma(p, t, 1.00002368);
    p = fma(p, t, -1.26551223);
    let half = 0.5 * t * exp_(fma(-z, z, p));
    return x * select(1.0 - half, half, x < 0.0);
}

const ACTIVATION_CLAMPED: u32 = 1u;
const ACTIVATION_GELU: u32 = 2u;
const ACTIVATION_BOUNDED: u32 = 3u;
// From here on of MLPs without a gate.
const ACTIVATION_RELU2: u32 = 4u;
const ACTIVATION_PLAIN_GELU: u32 = 5u;
const ACTIVATION_GELU_ERF: u32 = 6u;

// What stands between the products of a gated MLP; any other kind is SwiGLU.
fn gated(kind: u32, gate: f32, up: f32, alpha: f32, limit: f32) -> f32 {
    if (kind == ACTIVATION_CLAMPED || kind == ACTIVATION_BOUNDED) {
        // Comparisons that let what is not a number pass.
        var g = gate;
        var u = up;
        if (g > limit) { g = limit; }
        if (u > limit) { u = limit; }
        if (u < -limit) { u = -limit; }
        if (kind == ACTIVATION_BOUNDED) { return silu(g) * u; }
        return g * sigmoid(alpha * g) * (u + 1.0);
    }
    if (kind == ACTIVATION_GELU) { return gelu_tanh(gate) * up; }
    return silu(gate) * up;
}

// What stands between the products of an MLP without a gate.
fn plain_activation(kind: u32, up: f32) -> f32 {
    if (kind == ACTIVATION_PLAIN_GELU) { return gelu_tanh(up); }
    if (kind == ACTIVATION_GELU_ERF) { return gelu_erf(up); }
    // A comparison that lets what is not a number pass.
    var x = up;
    if (x < 0.0) { x = 0.0; }
    return x * x;
}

// ln(1 + e^x); what rounding takes from 1 + e^x is given back.
fn softplus(x: f32) -> f32 {
    if (x > 20.0 || is_nan(x)) { return x; }
    let e = exp_(x);
    let u = 1.0 + e;
    if (u == 1.0) { return e; }
    return log(u) * (e / (u - 1.0));
}

// Orders floats as integers, what is not a number below all numbers.
fn ordered(x: f32) -> u32 {
    let bits = bitcast<u32>(x + 0.0);
    if (is_nan(x)) { return 1u; }
    return select(~bits, bits | 0x80000000u, (bits >> 31u) == 0u);
}

// The upper half, ties to even; what is not a number stays so.
fn bf16(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let rounded = bits + 0x7fffu + ((bits >> 16u) & 1u);
    return select(rounded, bits | 0x400000u, is_nan(value)) >> 16u;
}

// The number of a workgroup of a linear grid.
fn linear(id: vec3<u32>, n: vec3<u32>) -> u32 {
    return id.y * n.x + id.x;
}

// The nearest numbers that halves hold, the even ones between two, of what is in the range of
// normal halves: conversions may round as the driver likes.
fn nearest_halves(v: vec4<f32>) -> vec4<f32> {
    let bits = bitcast<vec4<u32>>(v);
    let up = vec4<u32>(0xfffu) + ((bits >> vec4<u32>(13u)) & vec4<u32>(1u));
    let rounded = (bits + up) & vec4<u32>(0xffffe000u);
    let is_finite = (bits & vec4<u32>(0x7f800000u)) < vec4<u32>(0x7f800000u);
    return bitcast<vec4<f32>>(select(bits, rounded, is_finite));
}
