//! Has the module linked as PyO3 asks for: Python itself has the functions that it calls.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
