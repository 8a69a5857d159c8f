//! Projections, and what is added to them.

use moeflux_backend::{Cols, Projection, Vector, Weight};

use crate::layers::builder::Builder;
use crate::load::LoadError;
use crate::step::Step;

/// A projection and what is added to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linear {
    weight: Weight,
    bias: Option<Vector>,
}

impl Linear {
    /// The projection called `name`, of that many rows and columns.
    pub(crate) fn load(
        name: &str,
        rows: usize,
        cols: usize,
        has_bias: bool,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Linear, LoadError> {
        let weight = builder.projection(name, rows, cols)?;
        let bias = has_bias.then(|| builder.vector(&format!("{name}.bias"), rows));
        Ok(Linear { weight, bias: bias.transpose()? })
    }

    /// This projection, written to `out`.
    pub(crate) fn onto(self, out: Cols) -> LinearOutput {
        LinearOutput { linear: self, out }
    }
}

/// A projection and where it is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinearOutput {
    linear: Linear,
    out: Cols,
}

/// Most projections of one input.
const MOST: usize = 8;

/// Calls `work` with some projections, without a list of them in memory.
///
/// # Panics
/// If there are more than [`MOST`].
pub(crate) fn with_projections(
    projections: impl Iterator<Item = Projection>,
    work: impl FnOnce(&[Projection]),
) {
    let mut projections = projections.peekable();
    let Some(&first) = projections.peek() else { return work(&[]) };
    let (mut all, mut n) = ([first; MOST], 0);
    for projection in projections {
        all[n] = projection;
        n += 1;
    }
    work(&all[..n]);
}

/// Several projections of one input.
pub(crate) fn project(step: &mut Step<'_>, x: Cols, outputs: &[LinearOutput]) {
    let rows = step.rows();
    let projections = outputs
        .iter()
        .map(|LinearOutput { linear, out }| Projection { weight: linear.weight, out: *out });
    with_projections(projections, |all| step.backend.project(rows, x, all));
    for LinearOutput { linear, out } in outputs {
        if let Some(bias) = linear.bias {
            step.backend.add_bias(rows, *out, bias);
        }
    }
}
