//! Backends under test, and the numbers that they are given.

use moeflux_core::quant::MatrixFormat;

use crate::cpu::matmul::integer_group_size;
use crate::cpu::{Cpu, Isa};
use crate::{ActivationPrecision, Backend, Buf, Cols};

/// How close a backend must come to the specification.
#[derive(Clone, Copy, Debug)]
pub enum Closeness {
    /// The same bits.
    Bits,
    /// `|got - want| <= absolute + relative * max |want|`, over each result.
    Within {
        /// Allowed whatever the result. What is not a number must not be one on
        /// both sides.
        absolute: f32,
        /// Allowed as a share of the result's largest element.
        relative: f32,
        /// Set where products with many rows take each input as a half instead of limbs: also
        /// allowed there. Weights in blocks of ggml are halves as well then.
        one_half: Option<f32>,
    },
}

/// Reproducible numbers between -1 and 1. How close devices must come was measured with these, so
/// they stay as they are.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn new(seed: u64) -> Numbers {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }

    pub(super) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }

    pub(super) fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| (self.bits() >> 33) as u8).collect()
    }
}

/// Makes a backend.
pub type Open<'a> = &'a dyn Fn() -> Box<dyn Backend>;

pub(super) struct Suite<'a> {
    pub(super) candidates: &'a [Open<'a>],
    pub(super) closeness: Closeness,
}

impl Suite<'_> {
    /// Runs one case on the specification and on the candidates.
    pub(super) fn case(&self, name: &str, run: &dyn Fn(&mut dyn Backend) -> Vec<f32>) {
        let values = run(&mut Cpu::new(1, Isa::SCALAR));
        self.compare(name, &[Wanted { values, more: 0.0 }], run);
    }

    /// Runs a case of products.
    pub(super) fn case_of_products(
        &self,
        name: &str,
        case: Products,
        run: &dyn Fn(&mut dyn Backend, ActivationPrecision) -> Vec<f32>,
    ) {
        let Products { format, inputs, is_many, step } = case;
        let specified = |inputs| run(&mut Cpu::new(1, Isa::SCALAR), inputs);
        let mut wanted = vec![Wanted { values: specified(inputs), more: step }];
        // Only inputs that are rounded to integers may also be taken as halves.
        if let (Closeness::Within { one_half, .. }, Some(_)) =
            (self.closeness, integer_group_size(format))
        {
            // Errors of inputs and of weights add up by chance.
            let n_rounded: f32 = if matches!(format, MatrixFormat::Ggml(_)) { 2.0 } else { 1.0 };
            let in_halves = one_half.filter(|_| is_many).map(|one| one * n_rounded.sqrt());
            // Backends may take MXFP4 and NVFP4 as the floats that they are.
            let as_they_are = matches!(format, MatrixFormat::Micro(_)).then_some(0.0);
            if let Some(more) =
                in_halves.or(as_they_are).filter(|_| inputs != ActivationPrecision::F32)
            {
                wanted.push(Wanted { values: specified(ActivationPrecision::F32), more });
            }
        }
        self.compare(name, &wanted, &|b| run(b, inputs));
    }

    /// Every result of the candidates is close to one of those that are wanted.
    pub(super) fn compare(
        &self,
        name: &str,
        wanted: &[Wanted],
        run: &dyn Fn(&mut dyn Backend) -> Vec<f32>,
    ) {
        let allowed: Vec<f32> = wanted.iter().map(|wanted| self.allowed(wanted)).collect();
        let first = &wanted[0].values;
        for (nth, open) in self.candidates.iter().enumerate() {
            let got = run(open().as_mut());
            assert_eq!(got.len(), first.len(), "{name}: number of results of candidate {nth}");
            for (i, got) in got.iter().enumerate() {
                let is_close = |(wanted, allowed): (&Wanted, &f32)| {
                    let want = wanted.values[i];
                    let is_within = (got - want).abs() <= *allowed || got.is_nan() && want.is_nan();
                    match self.closeness {
                        Closeness::Bits => got.to_bits() == want.to_bits(),
                        Closeness::Within { .. } => is_within,
                    }
                };
                assert!(
                    wanted.iter().zip(&allowed).any(is_close),
                    "{name}: element {i} of candidate {nth} is {got:e}, the specification says {:e}",
                    first[i]
                );
            }
        }
    }

    /// By how much results may differ.
    pub(super) fn allowed(&self, wanted: &Wanted) -> f32 {
        let largest = wanted.values.iter().fold(0.0f32, |max, value| max.max(value.abs()));
        match self.closeness {
            Closeness::Bits => 0.0,
            Closeness::Within { absolute, relative, .. } => {
                absolute + (relative + wanted.more) * largest
            }
        }
    }
}

/// What is known of the products of a case.
pub(super) struct Products {
    pub(super) format: MatrixFormat,
    pub(super) inputs: ActivationPrecision,
    /// Whether all of them have few rows or many to every backend, and some have many.
    pub(super) is_many: bool,
    /// Of the values between two products, which are rounded to steps of such a share
    /// of their group's largest, 0 where there are none: who differs in a last place
    /// may round one of them the other way, which moves results by a step times a weight.
    pub(super) step: f32,
}

/// What the specification says, and what is allowed besides as a share of its
/// largest element.
pub(super) struct Wanted {
    pub(super) values: Vec<f32>,
    pub(super) more: f32,
}

/// A buffer filled with numbers that depend on the seed.
pub(super) fn filled(backend: &mut dyn Backend, rows: usize, width: usize, seed: u64) -> Cols {
    let buf = backend.alloc(rows, width);
    backend.write(buf, &Numbers::new(seed).floats(rows * width));
    Cols { buf, start: 0, len: width }
}

pub(super) fn read(backend: &mut dyn Backend, buf: Buf, rows: usize) -> Vec<f32> {
    backend.read(buf, rows).expect("the device works")
}
