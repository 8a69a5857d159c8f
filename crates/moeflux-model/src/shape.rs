//! The figures of a model.

use moeflux_backend::CacheSpec;

/// The figures of a model that others than its family need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelShape {
    /// Rows of the embedding and of the head.
    pub vocab: usize,
    /// `hidden_size`.
    pub hidden: usize,
    /// Decoder layers.
    pub n_layers: usize,
    /// Layers with routed experts.
    pub n_moe_layers: usize,
    /// Experts of such a layer.
    pub n_experts: usize,
    /// Of these, how many a token may choose from.
    pub n_eligible: usize,
    /// Experts that a token gets, as this engine runs it.
    pub top_k: usize,
    /// And as the config has it.
    pub config_top_k: usize,
    /// Positions that the model was made for.
    pub max_positions: usize,
    /// What each sequence keeps.
    pub caches: Vec<CacheSpec>,
    /// How many of these, the last, belong to multi-token prediction; 0 where there is none.
    pub n_mtp_caches: usize,
    /// Floats of a row of the output from which multi-token prediction goes on.
    pub mtp_width: usize,
    /// Whether positions have three parts: time, height and width.
    pub has_position_parts: bool,
    /// How many positions of rows before a step its spans have to name
    /// ([`Span::rotary_before`](moeflux_backend::Span)), where these are not the rows' own.
    pub rotary_before: usize,
    /// Whether all rows of a picture must be in one step: they see those after them, up to the
    /// [`Span::ahead_to`](moeflux_backend::Span) of their span, which has no other rows.
    pub sees_pictures_whole: bool,
}

impl ModelShape {
    /// Whether the model predicts the token after the next one, too.
    pub fn has_mtp(&self) -> bool {
        self.n_mtp_caches > 0
    }

    /// What the layers of the model itself keep.
    pub fn own_caches(&self) -> &[CacheSpec] {
        &self.caches[..self.caches.len() - self.n_mtp_caches]
    }

    /// The widest window of layers whose caches forget what it has passed.
    pub fn window(&self) -> Option<usize> {
        self.caches.iter().filter_map(CacheSpec::window).max()
    }

    /// Whether sequences can be cut at certain positions only: where recurrent states were
    /// copied, or where windows see what is still there.
    pub fn has_cut_points(&self) -> bool {
        self.is_recurrent() || self.window().is_some()
    }

    /// Whether some layer keeps a state that cannot be cut back.
    pub fn is_recurrent(&self) -> bool {
        self.caches.iter().any(CacheSpec::is_recurrent)
    }
}
