//! An architecture of GGUF files, as the family says that runs it.

use super::keys::Keys;
use super::names::Names;
use super::routing::Gating;
use crate::checkpoint::FormatError;

/// How files of an architecture are read.
#[derive(Clone, Copy, Debug)]
pub struct Architecture {
    /// The value of `general.architecture`.
    pub name: &'static str,
    /// Another value of it, which a program other than llama.cpp writes.
    pub other_name: Option<&'static str>,
    /// The `model_type` of the family that runs it.
    pub model_type: &'static str,
    /// Whether a file is of this family, where several have files of the same name.
    pub is_meant: Option<IsMeant>,
    /// Writes the keys of the config that not all architectures have.
    pub config: WriteConfig,
    /// The names of tensors.
    pub names: Names,
    /// How experts are chosen, where files say it.
    pub gating: Option<Gating>,
    /// Whether files say which rotated pairs take time, height and width of a picture as position.
    pub has_sections: bool,
    /// Whether there are files of it without experts, which are not run.
    pub may_be_dense: bool,
}

/// Whether a file is of a family, by its keys.
pub type IsMeant = fn(&Keys<'_>) -> Result<bool, FormatError>;

/// Writes the keys of the config that not all architectures have.
pub type WriteConfig = fn(&mut Keys<'_>) -> Result<(), FormatError>;

impl Architecture {
    /// An architecture whose experts are chosen by softmax.
    pub const fn new(
        name: &'static str,
        model_type: &'static str,
        config: WriteConfig,
        names: Names,
    ) -> Architecture {
        let gating = Some(Gating::Softmax);
        let (other_name, has_sections, may_be_dense) = (None, false, false);
        Architecture {
            name,
            other_name,
            model_type,
            is_meant: None,
            config,
            names,
            gating,
            has_sections,
            may_be_dense,
        }
    }

    /// Whether files call it so.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.name == name || self.other_name == Some(name)
    }

    /// The same with another way to choose experts.
    pub const fn gated_by(self, gating: Gating) -> Architecture {
        Architecture { gating: Some(gating), ..self }
    }
}
