//! Names of files in a container.

use moeflux_core::checkpoint::layer_file_name;

/// The folder of layer files.
pub(super) const FOLDER: &str = "packed_experts";

pub(crate) fn layer_path(layer: usize) -> String {
    format!("{FOLDER}/{}", layer_file_name(layer))
}
