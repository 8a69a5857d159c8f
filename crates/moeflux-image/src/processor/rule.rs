//! Which size a picture gets: the rules of published processors, named by what they do.
//!
//! Sizes are computed in `f64`, in the order of operations of transformers 5, whose rounding decides
//! at borders.

use crate::error::{ConfigError, LayoutError};
use crate::size::Size;

/// Pixels, tokens and patches of a picture stay far below what is computed exactly.
const MOST_PIXELS: usize = 1 << 28;

/// The size of the picture after resizing, and of the canvas that it is put on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fitted {
    pub(super) resized: Size,
    pub(super) canvas: Size,
}

impl Fitted {
    /// The picture fills its canvas.
    fn stretched(size: Size) -> Self {
        Self { resized: size, canvas: size }
    }
}

/// Which size a picture gets. `unit` is the side of a token in pixels: `patch_size * merge_size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeRule {
    /// Sides are rounded to whole units. Areas above the most or below the least pixels are scaled to
    /// them, and the picture is stretched to the result.
    ///
    /// transformers: `smart_resize` of `models/qwen2_vl` (one frame) and `models/glm4v` (two frames,
    /// short sides grow first).
    Area {
        /// The smallest area in pixels, counted in all frames.
        min_pixels: usize,
        /// The largest area in pixels, counted in all frames.
        max_pixels: usize,
        /// How often the pixels of a still count.
        counted_frames: usize,
        /// A side below one unit is scaled to it before all else, and the other with it.
        grows_short_sides: bool,
        /// The longer side as a multiple of the shorter one; beyond it a picture is refused.
        max_ratio: u32,
    },
    /// Pictures shrink to a number of patches and never grow. Zeros are added at the right and at the
    /// bottom up to whole units.
    ///
    /// transformers: `navit_resize` of `models/kimi_k25`.
    PatchLimit {
        /// The most patches of a picture, before zeros are added.
        max_patches: usize,
        /// The most patches of a side.
        max_side_patches: usize,
    },
    /// Every picture, small ones too, is scaled to nearly the same number of tokens, and stretched to
    /// whole units.
    ///
    /// transformers: `get_aspect_ratio_preserving_size` of `models/gemma4`.
    TokenBudget {
        /// The most tokens of a picture.
        tokens: usize,
    },
    /// The canvas has the picture's sides, rounded up to whole units, between two numbers of tokens.
    /// The picture keeps its proportions on it, and grows only where it is below the least. The rest
    /// of the canvas is zero.
    ///
    /// transformers: the processor of `models/glm5_next`.
    Canvas {
        /// The fewest tokens of a picture.
        min_tokens: usize,
        /// The most tokens of a picture.
        max_tokens: usize,
    },
}

impl SizeRule {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        match *self {
            Self::Area { min_pixels, max_pixels, counted_frames, max_ratio, .. } => {
                ConfigError::check_range("max_pixels", max_pixels, 1, MOST_PIXELS)?;
                ConfigError::check_range("min_pixels", min_pixels, 0, max_pixels)?;
                ConfigError::check_range("counted_frames", counted_frames, 1, 8)?;
                ConfigError::check_range("max_ratio", max_ratio as usize, 1, 10_000)
            }
            Self::PatchLimit { max_patches, max_side_patches } => {
                ConfigError::check_range("max_patches", max_patches, 1, MOST_PIXELS >> 8)?;
                ConfigError::check_range("max_side_patches", max_side_patches, 1, 1 << 14)
            }
            Self::TokenBudget { tokens } => {
                ConfigError::check_range("tokens", tokens, 1, MOST_PIXELS >> 8)
            }
            Self::Canvas { min_tokens, max_tokens } => {
                ConfigError::check_range("max_tokens", max_tokens, 1, MOST_PIXELS >> 8)?;
                ConfigError::check_range("min_tokens", min_tokens, 0, max_tokens)
            }
        }
    }

    /// Whether a picture fills its canvas, whatever its proportions become.
    pub(super) fn stretches(&self) -> bool {
        matches!(self, Self::Area { .. } | Self::TokenBudget { .. })
    }

    /// The rule with limits of at most `max_tokens`. Rounding may still give a picture more.
    pub(super) fn limited(&self, max_tokens: usize, unit: usize, merge_size: usize) -> Self {
        let mut rule = *self;
        match &mut rule {
            Self::Area { min_pixels, max_pixels, counted_frames, .. } => {
                let pixels = max_tokens.saturating_mul(unit * unit).saturating_mul(*counted_frames);
                *max_pixels = pixels.min(*max_pixels);
                *min_pixels = (*min_pixels).min(*max_pixels);
            }
            Self::PatchLimit { max_patches, .. } => {
                let patches = max_tokens.saturating_mul(merge_size * merge_size);
                *max_patches = patches.min(*max_patches);
            }
            Self::TokenBudget { tokens } => *tokens = max_tokens.min(*tokens),
            Self::Canvas { min_tokens, max_tokens: most } => {
                *most = max_tokens.min(*most);
                *min_tokens = (*min_tokens).min(*most);
            }
        }
        rule
    }

    /// The fewest and the most tokens that the rule aims at. Rounding may give a picture some more.
    pub(super) fn tokens(&self, unit: usize, merge_size: usize) -> [usize; 2] {
        match *self {
            Self::Area { min_pixels, max_pixels, counted_frames, .. } => [min_pixels, max_pixels]
                .map(|pixels| (pixels / (unit * unit * counted_frames)).max(1)),
            Self::PatchLimit { max_patches, .. } => {
                [1, (max_patches / (merge_size * merge_size)).max(1)]
            }
            Self::TokenBudget { tokens } => [1, tokens],
            Self::Canvas { min_tokens, max_tokens } => [min_tokens.max(1), max_tokens],
        }
    }

    /// The size of a picture, or why the rule has none for it.
    pub(super) fn fitted(
        &self,
        size: Size,
        patch_size: usize,
        unit: usize,
    ) -> Result<Fitted, LayoutError> {
        match *self {
            Self::Area { min_pixels, max_pixels, counted_frames, grows_short_sides, max_ratio } => {
                let grown = if grows_short_sides { grow(size, unit) } else { size };
                check_ratio(size, grown, max_ratio)?;
                let bounds = Bounds { min_pixels, max_pixels, frames: counted_frames };
                Ok(Fitted::stretched(by_area(grown, unit, bounds)))
            }
            Self::PatchLimit { max_patches, max_side_patches } => {
                Ok(by_patches(size, patch_size, unit, max_patches, max_side_patches))
            }
            Self::TokenBudget { tokens } => {
                let fitted = by_budget(size, unit, tokens);
                let Size { width, height } = size;
                let fitted = fitted.ok_or(LayoutError::Vanishes { width, height })?;
                Ok(Fitted::stretched(fitted))
            }
            Self::Canvas { min_tokens, max_tokens } => {
                Ok(on_canvas(size, unit, min_tokens, max_tokens))
            }
        }
    }
}

/// Pixels, in all frames.
#[derive(Clone, Copy)]
struct Bounds {
    min_pixels: usize,
    max_pixels: usize,
    frames: usize,
}

fn check_ratio(shown: Size, size: Size, limit: u32) -> Result<(), LayoutError> {
    let Size { width, height } = size;
    let ratio = width.max(height) as f64 / width.min(height) as f64;
    if ratio > f64::from(limit) {
        return Err(LayoutError::Ratio { width: shown.width, height: shown.height, limit });
    }
    Ok(())
}

/// Scales a side below one unit to it, and the other with it; fractions are cut off.
fn grow(size: Size, unit: usize) -> Size {
    let Size { width, height } = size;
    if width >= unit && height >= unit {
        return size;
    }
    let scale = (unit as f64 / height as f64).max(unit as f64 / width as f64);
    let grown = |side: usize| (side as f64 * scale) as usize;
    Size { width: grown(width), height: grown(height) }
}

fn by_area(size: Size, unit: usize, bounds: Bounds) -> Size {
    let step = unit as f64;
    let (width, height) = (size.width as f64, size.height as f64);
    let (most, least) = (bounds.max_pixels as f64, bounds.min_pixels as f64);
    let frames = bounds.frames as f64;
    // The nearest whole units, halves to even: 0 for sides below half a unit.
    let nearest = |side: f64| (side / step).round_ties_even() * step;
    let area = frames * nearest(height) * nearest(width);
    let (width, height) = if area > most {
        let shrink = (frames * height * width / most).sqrt();
        let down = |side: f64| step.max((side / shrink / step).floor() * step);
        (down(width), down(height))
    } else if area < least {
        let stretch = (least / (frames * height * width)).sqrt();
        let up = |side: f64| (side * stretch / step).ceil() * step;
        (up(width), up(height))
    } else {
        (nearest(width), nearest(height))
    };
    Size { width: width as usize, height: height as usize }
}

fn by_patches(
    size: Size,
    patch_size: usize,
    unit: usize,
    max_patches: usize,
    max_side_patches: usize,
) -> Fitted {
    let n_patches = |side: usize| (side / patch_size).max(1) as f64;
    let longest = max_side_patches * patch_size;
    let of_side = |side: usize| longest as f64 / side as f64;
    let by_area = (max_patches as f64 / (n_patches(size.height) * n_patches(size.width))).sqrt();
    let scale = by_area.min(1.0).min(of_side(size.height)).min(of_side(size.width));
    let scaled = |side: usize| ((side as f64 * scale) as usize).max(1).min(longest);
    let resized = Size { width: scaled(size.width), height: scaled(size.height) };
    let up = |side: usize| side.next_multiple_of(unit);
    let canvas = Size { width: up(resized.width), height: up(resized.height) };
    Fitted { resized, canvas }
}

/// `None` where neither side has a whole unit.
fn by_budget(size: Size, unit: usize, tokens: usize) -> Option<Size> {
    let Size { width, height } = size;
    let step = unit as f64;
    let scale = ((tokens * unit * unit) as f64 / (height as f64 * width as f64)).sqrt();
    let down = |side: usize| (scale * side as f64 / step).floor() as usize * unit;
    // A side of no unit gets one, and the other at most the whole budget.
    let along = |longer: usize, shorter: usize| (longer / shorter * unit).min(tokens * unit);
    match (down(width), down(height)) {
        (0, 0) => None,
        (_, 0) => Some(Size { width: along(width, height), height: unit }),
        (0, _) => Some(Size { width: unit, height: along(height, width) }),
        (width, height) => Some(Size { width, height }),
    }
}

fn on_canvas(size: Size, unit: usize, min_tokens: usize, max_tokens: usize) -> Fitted {
    let up = |side: usize| side.next_multiple_of(unit);
    let n_tokens = |canvas: Size| (canvas.width / unit) * (canvas.height / unit);
    let area = (size.width * size.height) as f64;
    let least = (min_tokens * unit * unit) as f64;
    let mut canvas = Size { width: up(size.width), height: up(size.height) };
    if n_tokens(canvas) < min_tokens {
        let stretch = (least / area).sqrt();
        let stretched = |side: usize| up(((side as f64 * stretch).ceil() as usize).max(1));
        canvas = Size { width: stretched(size.width), height: stretched(size.height) };
    }
    if n_tokens(canvas) > max_tokens {
        canvas = largest_canvas(size, unit, max_tokens);
    }
    let fit = |canvas: usize, side: usize| canvas as f64 / side as f64;
    let scale = fit(canvas.height, size.height).min(fit(canvas.width, size.width));
    let scale = if area >= least { scale.min(1.0) } else { scale };
    let scaled =
        |side: usize, canvas: usize| ((side as f64 * scale).floor() as usize).min(canvas).max(1);
    let resized = Size {
        width: scaled(size.width, canvas.width),
        height: scaled(size.height, canvas.height),
    };
    Fitted { resized, canvas }
}

/// The canvas of the highest content with at most `max_tokens`, found by halving as if the number of
/// tokens grew with every row.
fn largest_canvas(size: Size, unit: usize, max_tokens: usize) -> Size {
    let up = |side: usize| side.next_multiple_of(unit);
    let mut found = Size { width: unit, height: unit };
    let (mut low, mut high) = (1, size.height);
    while low <= high {
        let height = (low + high) / 2;
        let proportional = (size.width * height) as f64 / size.height as f64;
        let width = (proportional.floor() as usize).max(1);
        let canvas = Size { width: up(width), height: up(height) };
        if (canvas.width / unit) * (canvas.height / unit) <= max_tokens {
            found = canvas;
            low = height + 1;
        } else {
            high = height - 1;
        }
    }
    found
}
