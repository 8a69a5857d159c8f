//! Projections, and what is added to them.

use moeflux_backend::{Cols, Projection, Vector, Weight};

use crate::layers::builder::Builder;
use crate::layers::step::Step;
use crate::load::LoadError;

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
        (rows, cols): (usize, usize),
        has_bias: bool,
        builder: &mut Builder<'_, '_>,
    ) -> Result<Linear, LoadError> {
        let weight = builder.projection(name, rows, cols)?;
        let bias = has_bias.then(|| builder.vector(&format!("{name}.bias"), rows));
        Ok(Linear { weight, bias: bias.transpose()? })
    }
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
    for it in projections {
        all[n] = it;
        n += 1;
    }
    work(&all[..n]);
}

/// Several projections of one input.
pub(crate) fn project(step: &mut Step<'_>, x: Cols, outputs: &[(Linear, Cols)]) {
    let rows = step.rows();
    let projection = |(it, out): &(Linear, Cols)| Projection { weight: it.weight, out: *out };
    with_projections(outputs.iter().map(projection), |all| step.backend.project(rows, x, all));
    for (linear, out) in outputs {
        if let Some(bias) = linear.bias {
            step.backend.add_bias(rows, *out, bias);
        }
    }
}
