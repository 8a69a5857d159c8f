//! How far the layers of a model see.

use moeflux_core::checkpoint::Config;

use crate::load::LoadError;

/// The window of every layer of `layer_types`, which has that many entries.
pub(crate) fn windows_of_types(
    config: &Config,
    types: &[&str],
    n_layers: usize,
    window: usize,
) -> Result<Vec<Option<usize>>, LoadError> {
    let refuse = |rule| LoadError::from(config.refuse("layer_types", rule));
    if types.len() != n_layers {
        return Err(refuse("have num_hidden_layers entries"));
    }
    let window = |it: &&str| match *it {
        "sliding_attention" => Ok(Some(window)),
        "full_attention" => Ok(None),
        _ => Err(refuse("hold only \"full_attention\" and \"sliding_attention\"")),
    };
    types.iter().map(window).collect()
}
