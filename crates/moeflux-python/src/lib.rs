//! What the Python package `moeflux` computes with: the module `moeflux._moeflux`.
//!
//! It is thin: what it takes and returns are texts, numbers, bytes and JSON. The package turns these into the
//! types that its users see. No call keeps Python's lock while it computes or waits, and the threads of a model
//! never ask for it.

mod answer;
mod api;
mod error;
mod facts;
mod finding;
mod model;
mod news;
mod opening;
mod options;
mod process;
mod program;
mod request;
mod score;
mod session;

use pyo3::prelude::*;

/// The module.
#[pymodule]
fn _moeflux(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<model::PyModel>()?;
    module.add_class::<answer::PyAnswer>()?;
    module.add_class::<session::PySession>()?;
    module.add_class::<api::PyApi>()?;
    module.add_class::<api::PyReply>()?;
    module.add_function(wrap_pyfunction!(opening::open_model, module)?)?;
    module.add_function(wrap_pyfunction!(facts::plan, module)?)?;
    module.add_function(wrap_pyfunction!(facts::models, module)?)?;
    module.add_function(wrap_pyfunction!(news::wait_for_news, module)?)?;
    module.add_function(wrap_pyfunction!(news::stop_news, module)?)?;
    module.add_function(wrap_pyfunction!(process::render_in_children, module)?)?;
    module.add_function(wrap_pyfunction!(program::run_program, module)?)?;
    Ok(())
}
