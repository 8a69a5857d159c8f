//! How a checkpoint is to be packed.

use std::path::PathBuf;

use moeflux_core::checkpoint::Precision;
use moeflux_core::manifest::{MatrixDecl, Role};
use moeflux_core::quant::{Affine, Float, MatrixFormat};
use serde::{Deserialize, Serialize};

use crate::error::PackError;

/// How a checkpoint is to be packed. Bits are for floats of eight bits and
/// more; `None` leaves those as they are. What a quantised checkpoint left as
/// floats is kept, unless `requantise` or `asked` says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackOptions {
    /// Of the routed experts.
    pub expert_bits: Option<u8>,
    /// Of the routed experts' last projections, where they differ.
    #[serde(default)]
    pub down_bits: Option<u8>,
    /// Of the resident projections.
    pub resident_bits: Option<u8>,
    /// Of the embedding.
    pub embedding_bits: Option<u8>,
    /// Of the head.
    pub head_bits: Option<u8>,
    /// Of routers and gates; those of FP8 and of quantised checkpoints are kept unless `asked` says
    /// otherwise.
    pub gate_bits: Option<u8>,
    /// Columns that share a scale and a bias.
    pub group_size: usize,
    /// Whether bits are for checkpoints that are quantised too: for their floats,
    /// their micro-scaled floats (MXFP4 and the like), and what has more bits.
    pub requantise: bool,
    /// Which bits were asked for by themselves.
    #[serde(default)]
    pub asked: AskedBits,
    /// How scales and biases are chosen.
    #[serde(default)]
    pub rounding: Rounding,
    /// A file of [`calibrate`](crate::calibrate) that says which columns matter.
    #[serde(skip)]
    pub importance: Option<PathBuf>,
    /// Starts over what was packed with other options or from another source.
    #[serde(skip)]
    pub force: bool,
    /// Threads that quantise; 0 for as many as the machine has.
    #[serde(skip)]
    pub n_threads: usize,
}

/// Kinds of weights whose bits were asked for by themselves: they change in checkpoints that are
/// quantised, where others of the kind are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AskedBits {
    /// The routed experts' last projections.
    pub down: bool,
    /// The resident projections.
    pub resident: bool,
    /// The embedding.
    pub embedding: bool,
    /// The head.
    pub head: bool,
    /// Routers and gates.
    pub gates: bool,
}

/// How the scale and the bias of a group are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rounding {
    /// From the extremes of the group.
    Nearest,
    /// So that the squared error is least.
    #[default]
    Fitted,
}

impl Default for PackOptions {
    fn default() -> PackOptions {
        PackOptions::with_bits(4)
    }
}

impl PackOptions {
    /// `bits` for all matrices, but eight for gates.
    pub fn with_bits(bits: u8) -> PackOptions {
        PackOptions {
            expert_bits: Some(bits),
            down_bits: None,
            resident_bits: Some(bits),
            embedding_bits: Some(bits),
            head_bits: Some(bits),
            gate_bits: Some(8),
            group_size: 64,
            requantise: false,
            asked: AskedBits::default(),
            rounding: Rounding::default(),
            importance: None,
            force: false,
            n_threads: 0,
        }
    }

    /// Quantises nothing.
    pub fn unquantised() -> PackOptions {
        PackOptions {
            expert_bits: None,
            resident_bits: None,
            embedding_bits: None,
            head_bits: None,
            gate_bits: None,
            ..PackOptions::with_bits(4)
        }
    }

    pub(super) fn check(&self) -> Result<(), PackError> {
        let all = [
            ("expert bits", self.expert_bits),
            ("bits of down projections", self.down_bits),
            ("resident bits", self.resident_bits),
            ("embedding bits", self.embedding_bits),
            ("head bits", self.head_bits),
            ("gate bits", self.gate_bits),
        ];
        for (what, bits) in all {
            if let Some(bits) = bits.filter(|bits| !Affine::BITS.contains(bits)) {
                let allowed = format!("{:?}", Affine::BITS);
                return Err(PackError::Option { what, value: usize::from(bits), allowed });
            }
        }
        if !Affine::GROUP_SIZES.contains(&self.group_size) {
            let allowed = format!("{:?}", Affine::GROUP_SIZES);
            return Err(PackError::Option { what: "group size", value: self.group_size, allowed });
        }
        Ok(())
    }

    /// What is left of them for a source: routers that FP8 models and quantised
    /// ones left as they are stay so, and so does all of a quantised one, unless
    /// bits were asked for.
    pub(super) fn for_source(&self, precision: Precision) -> PackOptions {
        let AskedBits { down, resident, embedding, head, gates } = self.asked;
        let if_asked = |is_asked: bool, bits: Option<u8>| bits.filter(|_| is_asked);
        let kept_gates = PackOptions { gate_bits: if_asked(gates, self.gate_bits), ..self.clone() };
        match precision {
            Precision::Floats => self.clone(),
            Precision::Quantised if !self.requantise => PackOptions {
                expert_bits: None,
                down_bits: if_asked(down, self.down_bits),
                resident_bits: if_asked(resident, self.resident_bits),
                embedding_bits: if_asked(embedding, self.embedding_bits),
                head_bits: if_asked(head, self.head_bits),
                ..kept_gates
            },
            Precision::Eights | Precision::Quantised => kept_gates,
        }
    }

    /// What becomes of a resident matrix.
    pub(super) fn resident_format(&self, decl: &MatrixDecl, stored: MatrixFormat) -> MatrixFormat {
        self.of_resident(decl).target(stored, decl.cols)
    }

    fn of_resident(&self, decl: &MatrixDecl) -> Wanted {
        let asked = self.asked;
        let (bits, is_asked) = match decl.role {
            Role::Embedding => (self.embedding_bits, asked.embedding),
            Role::Projection => (self.resident_bits, asked.resident),
            Role::Gate => (self.gate_bits, asked.gates),
            Role::Head => (self.head_bits, asked.head),
        };
        self.wanted(bits, is_asked)
    }

    fn of_expert(&self, is_down: bool) -> Wanted {
        match self.down_bits.filter(|_| is_down) {
            Some(bits) => self.wanted(Some(bits), self.asked.down),
            None => self.wanted(self.expert_bits, false),
        }
    }

    fn wanted(&self, bits: Option<u8>, is_asked: bool) -> Wanted {
        let requantise = self.requantise || is_asked;
        Wanted { bits, group_size: self.group_size, requantise }
    }

    /// Whether a resident matrix stays as it is only because groups do not
    /// divide its columns.
    pub(super) fn leaves_resident(&self, decl: &MatrixDecl, stored: MatrixFormat) -> bool {
        self.of_resident(decl).leaves(stored, decl.cols)
    }

    /// Whether gate and up of an expert, or its down, stay as they are only because groups do not
    /// divide their columns.
    pub(super) fn leaves_expert(&self, is_down: bool, stored: MatrixFormat, cols: usize) -> bool {
        self.of_expert(is_down).leaves(stored, cols)
    }

    /// What becomes of an expert's gate or up.
    pub(super) fn expert_format(&self, stored: MatrixFormat, cols: usize) -> MatrixFormat {
        self.of_expert(false).target(stored, cols)
    }

    /// What becomes of an expert's down.
    pub(super) fn down_format(&self, stored: MatrixFormat, cols: usize) -> MatrixFormat {
        self.of_expert(true).target(stored, cols)
    }

    pub(super) fn threads(&self) -> usize {
        let available = || std::thread::available_parallelism().map_or(1, |n| n.get());
        if self.n_threads == 0 { available() } else { self.n_threads }
    }
}

/// What is wanted of one kind of matrices.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    bits: Option<u8>,
    group_size: usize,
    /// Whether it is for those that are quantised, too.
    requantise: bool,
}

impl Wanted {
    fn target(self, stored: MatrixFormat, cols: usize) -> MatrixFormat {
        let Some(bits) = self.bits else { return stored };
        match stored {
            MatrixFormat::Affine(affine) if !self.requantise || affine.bits <= bits => {
                return stored;
            }
            MatrixFormat::Micro(_) | MatrixFormat::Nf4 | MatrixFormat::Ggml(_)
                if !self.requantise =>
            {
                return stored;
            }
            MatrixFormat::Affine(_)
            | MatrixFormat::Micro(_)
            | MatrixFormat::Nf4
            | MatrixFormat::Ggml(_)
            | MatrixFormat::Dense(_)
            | MatrixFormat::Transposed(_)
            | MatrixFormat::Blocks(_) => {}
        }
        let affine = Affine::new(bits, self.group_size, Float::BF16);
        if affine.is_supported(cols) { MatrixFormat::Affine(affine) } else { stored }
    }

    fn leaves(self, stored: MatrixFormat, cols: usize) -> bool {
        !cols.is_multiple_of(self.group_size) && self.target(stored, self.group_size) != stored
    }
}
