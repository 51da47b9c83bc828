//! Golden model and text, with which a run can begin, and their damaged variants.

use std::fs;
use std::path::{Path, PathBuf};

use syncer_server::ServerError;

use crate::script::Script;

/// Returns the folder of the model.
pub fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/init/model")
}

/// Returns the path of a text that is long enough.
pub fn text() -> PathBuf {
    model().with_file_name("text.txt")
}

/// Reads these files of the model.
pub fn read<const N: usize>(names: [&str; N]) -> [Vec<u8>; N] {
    names.map(|name| fs::read(model().join(name)).unwrap())
}

/// Returns the index of one of `files` and its damaged content: edited in a few places, or replaced by the script's
/// bytes.
pub fn damaged(script: &mut Script<'_>, files: &[Vec<u8>]) -> (usize, Vec<u8>) {
    let (which, is_whole) = (script.below(files.len()), script.byte().is_multiple_of(4));
    (which, if is_whole { script.0.to_vec() } else { script.edited(&files[which]) })
}

/// Checks that a refusal describes a fault of the file, not of the system.
pub fn judge<T>(found: Result<T, ServerError>) {
    if let Err(error) = found {
        let is_of_the_system = matches!(error, ServerError::System { .. } | ServerError::Disk { .. });
        assert!(!is_of_the_system, "a damaged file is no failure of the system: {error}");
        assert!(!error.to_string().trim().is_empty());
    }
}
