//! The module as it was built, in the Python of this machine. The package is tested by `tools/ci/python.sh`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The module, which cargo builds for this test.
fn module() -> PathBuf {
    let tests = std::env::current_exe().expect("this test is a file");
    let name = format!("{}_moeflux{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    tests.with_file_name(name)
}

/// Whether there is a Python that the package is for.
fn has_python() -> bool {
    let code = "import sys; sys.exit(sys.version_info < (3, 10))";
    let asked = Command::new("python3").args(["-I", "-S", "-c", code]).status();
    asked.is_ok_and(|status| status.success())
}

#[test]
#[expect(clippy::print_stdout, reason = "a test that did not run says so")]
fn the_module_runs_the_command() {
    if !has_python() {
        println!("SKIP: there is no Python 3.10");
        return;
    }
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/moeflux/_program.py");
    let mut command = Command::new("python3");
    command.args(["-I", "-S"]).arg(program).arg(module());
    let ended = command.arg("--version").output().expect("python3 starts");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(said, format!("moeflux {}\n", env!("CARGO_PKG_VERSION")), "{ended:?}");
}
