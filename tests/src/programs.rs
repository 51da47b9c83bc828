//! Our programs, as they lie beside the tests.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The path of one of our programs, which lies beside this test's own; built if it is not there.
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

/// `cargo` in this folder, without the variables in which it describes the test to the test: scripts of builds that
/// look there would run again, and all that depends on them would be built anew, now and by the next who calls cargo.
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
