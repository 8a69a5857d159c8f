//! What can be wrong with a picture, its size, or the configuration of a processor: one line each.

use crate::format::PictureFormat;

/// Why a picture is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PictureError {
    /// The first bytes are those of no format that is read.
    #[error("the picture is no PNG, JPEG, WebP or GIF: convert it to one of these")]
    UnknownFormat,
    /// The file is longer than [`crate::DecodeLimits::file_bytes`].
    #[error(
        "the picture has {bytes} bytes, at most {limit} are read: compress it more or make it smaller"
    )]
    FileTooLong {
        /// Length of the file.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A side is 0.
    #[error("the {format} picture is {width} x {height} pixels: send one with pixels")]
    Empty {
        /// The format.
        format: PictureFormat,
        /// Pixels of a row.
        width: usize,
        /// Rows.
        height: usize,
    },
    /// A side is longer than [`crate::DecodeLimits::side`].
    #[error("the picture is {width} x {height} pixels, a side may have {limit}: make it smaller")]
    SideTooLong {
        /// Pixels of a row.
        width: usize,
        /// Rows.
        height: usize,
        /// The limit.
        limit: usize,
    },
    /// The picture has more pixels than [`crate::DecodeLimits::pixels`].
    #[error(
        "the picture is {width} x {height} pixels, together they may be {limit}: make it smaller"
    )]
    TooManyPixels {
        /// Pixels of a row.
        width: usize,
        /// Rows.
        height: usize,
        /// The limit.
        limit: usize,
    },
    /// A JPEG has more scans than [`crate::DecodeLimits::jpeg_scans`].
    #[error("the JPEG picture has more than {limit} scans: save it anew")]
    TooManyScans {
        /// The limit.
        limit: usize,
    },
    /// Decoding may need more memory than [`crate::DecodeLimits::memory_bytes`].
    #[error(
        "decoding the picture may take {needed} bytes of memory, at most {limit} are allowed: make it smaller"
    )]
    TooMuchMemory {
        /// The bound of [`crate::DecodeLimits`]' formulas.
        needed: usize,
        /// The limit.
        limit: usize,
    },
    /// The system has no room for the picture.
    #[error("there is no memory for {bytes} bytes of the picture: make it smaller or free memory")]
    OutOfMemory {
        /// What was asked for.
        bytes: usize,
    },
    /// The file ends before the picture does.
    #[error("the {format} picture is cut off: send the whole file")]
    CutOff {
        /// The format.
        format: PictureFormat,
    },
    /// The file contradicts its format.
    #[error("the {format} picture is damaged ({reason}): save it anew")]
    Damaged {
        /// The format.
        format: PictureFormat,
        /// What is wrong, in a few words.
        reason: String,
    },
    /// The file uses a part of its format that is not read.
    #[error("the {format} picture has {what}, which is not read: save it as PNG")]
    Unsupported {
        /// The format.
        format: PictureFormat,
        /// What is not read.
        what: String,
    },
}

impl PictureError {
    pub(crate) fn damaged(format: PictureFormat, reason: impl ToString) -> Self {
        Self::Damaged { format, reason: one_line(&reason.to_string()) }
    }

    pub(crate) fn unsupported(format: PictureFormat, what: impl ToString) -> Self {
        Self::Unsupported { format, what: one_line(&what.to_string()) }
    }
}

/// The first line of a message, with no more characters than an error needs, all of them visible.
fn one_line(message: &str) -> String {
    const MAX_CHARS: usize = 120;
    let line = message.lines().next().unwrap_or("");
    line.chars().filter(|c| !c.is_control()).take(MAX_CHARS).collect()
}

/// Why a picture of this size has no patches.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A side is 0, or longer than 16,777,216 pixels.
    #[error(
        "a picture of {width} x {height} pixels has no patches: sides are 1 to 16777216 pixels long"
    )]
    Side {
        /// Pixels of a row.
        width: usize,
        /// Rows.
        height: usize,
    },
    /// One side is too long for the other.
    #[error(
        "the picture is {width} x {height} pixels; this model takes a ratio of sides up to {limit}: cut it"
    )]
    Ratio {
        /// Pixels of a row.
        width: usize,
        /// Rows.
        height: usize,
        /// The longest side as a multiple of the shortest.
        limit: u32,
    },
    /// The system has no room for the resized picture or its patches.
    #[error(
        "there is no memory for {bytes} bytes of the resized picture: lower the tokens that a picture may take"
    )]
    OutOfMemory {
        /// What was asked for.
        bytes: usize,
    },
    /// The rule leaves no row or no column.
    #[error(
        "the picture is {width} x {height} pixels, of which this model's rule leaves none: make it larger"
    )]
    Vanishes {
        /// Pixels of a row.
        width: usize,
        /// Rows.
        height: usize,
    },
}

/// Why a processor's configuration is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value}: {remedy}")]
pub struct ConfigError {
    /// The key, with the keys of the objects around it.
    pub key: String,
    /// Its value, as JSON, shortened.
    pub value: String,
    /// What it must be.
    pub remedy: String,
}

impl ConfigError {
    pub(crate) fn new(key: impl ToString, value: impl ToString, remedy: impl ToString) -> Self {
        let (key, value) = (one_line(&key.to_string()), one_line(&value.to_string()));
        Self { key, value, remedy: one_line(&remedy.to_string()) }
    }

    /// Refuses a number outside of `least..=most`.
    pub(crate) fn check_range(
        key: &str,
        value: usize,
        least: usize,
        most: usize,
    ) -> Result<(), Self> {
        if (least..=most).contains(&value) {
            return Ok(());
        }
        Err(Self::new(key, value, format!("write a number from {least} to {most}")))
    }
}
