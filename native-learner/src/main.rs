//! The `native-learner` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    native_learner::main()
}
