//! How the halves of a layer read the residual, and how what they give joins it.

use moeflux_backend::Cols;

use super::hyper::HyperConnection;
use super::norm::Norm;
use super::streams::GatedConnection;
use crate::step::Step;

/// What stands between the residual and one half of a layer, or the head.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Connection {
    /// A norm reads the one stream, to which outputs are added.
    Norm(Norm),
    /// Gates read several streams, and say how much of an output joins each of them.
    Gated(GatedConnection),
    /// Shares of several streams, which are mixed with each other where outputs join them.
    Hyper(HyperConnection),
}

impl Connection {
    /// Reads `residual` into `out`, and computes what [`join`](Connection::join) needs.
    pub(crate) fn read(&self, step: &mut Step<'_>, out: Cols, residual: Cols) {
        match self {
            Connection::Norm(norm) => norm.forward(step, out, residual),
            Connection::Gated(gated) => gated.read(step, out, residual),
            Connection::Hyper(hyper) => hyper.read(step, out, residual),
        }
    }

    /// Reads `residual` into `out` and leaves alone what another `join` still needs.
    pub(crate) fn preview(&self, step: &mut Step<'_>, out: Cols, residual: Cols) {
        match self {
            Connection::Norm(norm) => norm.forward(step, out, residual),
            Connection::Gated(gated) => gated.preview(step, out, residual),
            Connection::Hyper(hyper) => hyper.preview(step, out, residual),
        }
    }

    /// Joins `x` to `residual`, by what the last [`read`](Connection::read) found.
    pub(crate) fn join(&self, step: &mut Step<'_>, residual: Cols, x: Cols) {
        match self {
            Connection::Norm(_) => {
                let rows = step.rows();
                step.backend.add(rows, residual, x);
            }
            Connection::Gated(gated) => gated.join(step, residual, x),
            Connection::Hyper(hyper) => hyper.join(step, residual, x),
        }
    }
}
