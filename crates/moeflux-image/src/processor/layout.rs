//! What a picture of some size becomes.

use std::num::NonZeroUsize;

use super::parameters::Parameters;
use super::rule::Fitted;
use crate::error::LayoutError;
use crate::size::Size;

/// Sides above this are refused: sums and products of sides then fit in 64 bits.
const MOST_SIDE: usize = 1 << 24;

/// Rows and columns of patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Rows of patches.
    pub rows: usize,
    /// Columns of patches.
    pub columns: usize,
}

impl Grid {
    /// Patches of the picture.
    pub fn n_patches(&self) -> usize {
        self.rows * self.columns
    }
}

/// What a picture of some size becomes: [`crate::Processor::layout`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    source: Size,
    resized: Size,
    canvas: Size,
    grid: Grid,
    n_tokens: usize,
}

impl Layout {
    /// The size of the picture that this is the layout of.
    pub fn source(&self) -> Size {
        self.source
    }

    /// The size of the picture after resizing, at the upper left of the canvas.
    pub fn resized(&self) -> Size {
        self.resized
    }

    /// The size of the canvas, which is zero outside of the picture. Its sides are whole tokens.
    pub fn canvas(&self) -> Size {
        self.canvas
    }

    /// Rows and columns of patches on the canvas.
    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// Tokens of the prompt that the picture takes: patches over `merge_size^2`.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }
}

pub(super) fn layout(
    parameters: &Parameters,
    max_tokens: Option<NonZeroUsize>,
    width: usize,
    height: usize,
) -> Result<Layout, LayoutError> {
    let sides = 1..=MOST_SIDE;
    if !sides.contains(&width) || !sides.contains(&height) {
        return Err(LayoutError::Side { width, height });
    }
    let source = Size { width, height };
    let unit = parameters.patch_size * parameters.merge_size;
    let fitted = parameters.rule.fitted(source, parameters.patch_size, unit)?;
    let fitted = match max_tokens {
        Some(most) if n_tokens(fitted, unit) > most.get() => {
            below_ceiling(parameters, source, most.get())?
        }
        _ => fitted,
    };
    let Size { width: canvas_width, height: canvas_height } = fitted.canvas;
    if canvas_width == 0 || canvas_height == 0 {
        return Err(LayoutError::Vanishes { width, height });
    }
    let grid = Grid {
        rows: canvas_height / parameters.patch_size,
        columns: canvas_width / parameters.patch_size,
    };
    let (resized, canvas) = (fitted.resized, fitted.canvas);
    Ok(Layout { source, resized, canvas, grid, n_tokens: n_tokens(fitted, unit) })
}

fn n_tokens(fitted: Fitted, unit: usize) -> usize {
    (fitted.canvas.width / unit) * (fitted.canvas.height / unit)
}

/// The picture with at most `most` tokens. The rule rounds sides, so that its own limit has to be lower
/// at times; the highest one that does is searched by halving. What is too large for any, such as strips
/// that a rule leaves one unit wide, is cut.
fn below_ceiling(
    parameters: &Parameters,
    source: Size,
    most: usize,
) -> Result<Fitted, LayoutError> {
    let unit = parameters.patch_size * parameters.merge_size;
    let with_limit = |limit: usize| {
        let rule = parameters.rule.limited(limit, unit, parameters.merge_size);
        rule.fitted(source, parameters.patch_size, unit)
    };
    let mut best = with_limit(1)?;
    let (mut low, mut high) = (1, most);
    while low <= high {
        let limit = (low + high) / 2;
        let fitted = with_limit(limit)?;
        if n_tokens(fitted, unit) <= most {
            best = fitted;
            low = limit + 1;
        } else {
            high = limit - 1;
        }
    }
    Ok(cut(best, unit, most, parameters.rule.stretches()))
}

/// Shortens the longer side until there are at most `most` tokens. A picture that has a border keeps its
/// proportions.
fn cut(fitted: Fitted, unit: usize, most: usize, stretches: bool) -> Fitted {
    let (mut columns, mut rows) = (fitted.canvas.width / unit, fitted.canvas.height / unit);
    while columns * rows > most {
        if columns > rows {
            columns = (most / rows).max(1);
        } else {
            rows = (most / columns).max(1);
        }
    }
    let canvas = Size { width: columns * unit, height: rows * unit };
    if canvas == fitted.canvas {
        return fitted;
    }
    if stretches {
        return Fitted { resized: canvas, canvas };
    }
    let fit = |canvas: usize, side: usize| canvas as f64 / side as f64;
    let Size { width, height } = fitted.resized;
    let scale = fit(canvas.width, width).min(fit(canvas.height, height)).min(1.0);
    let scaled = |side: usize, most: usize| ((side as f64 * scale) as usize).clamp(1, most);
    let resized =
        Size { width: scaled(width, canvas.width), height: scaled(height, canvas.height) };
    Fitted { resized, canvas }
}
