//! Paths of this project's programs, next to the tests.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Returns the path of a program, which lies next to this test. Builds it if it is missing.
///
/// # Panics
/// If it cannot be built.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let test = std::env::current_exe().expect("this test has a path");
        let folder = test.ancestors().nth(2).expect("target/PROFILE/deps/test").to_owned();
        let exe = |name: &str| folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
        if !["syncer-server", "native-learner"].iter().all(|name| exe(name).exists()) {
            let mut cargo = cargo();
            cargo.args(["build", "--quiet", "--bins", "-p", "syncer-server", "-p", "native-learner"]);
            if folder.ends_with("release") {
                cargo.arg("--release");
            }
            let built = cargo.status().expect("cargo can be started");
            assert!(built.success(), "the programs cannot be built");
        }
        folder
    });
    folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
}

/// Returns `cargo` in this folder, without the variables that describe the test. Build scripts that read those would
/// run again, and all their dependents would be rebuilt, now and by the next call of cargo.
#[must_use]
pub fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    for (name, _) in std::env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|own| name.to_string_lossy().starts_with(own)) {
            cargo.env_remove(name);
        }
    }
    cargo
}
