//! The stored model and its text, with which a run could begin, and what a run makes of them once they are damaged.

use std::fs;
use std::path::{Path, PathBuf};

use syncer_server::ServerError;

use crate::script::Script;

/// The folder of the model.
pub fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/init/model")
}

/// A text that is long enough.
pub fn text() -> PathBuf {
    model().with_file_name("text.txt")
}

/// The bytes of these files of the model.
pub fn read<const N: usize>(names: [&str; N]) -> [Vec<u8>; N] {
    names.map(|name| fs::read(model().join(name)).unwrap())
}

/// One of `files` and what the script makes of it: a few of its bytes are others, or all of them are the script's.
pub fn damaged(script: &mut Script<'_>, files: &[Vec<u8>]) -> (usize, Vec<u8>) {
    let (which, is_whole) = (script.below(files.len()), script.byte().is_multiple_of(4));
    (which, if is_whole { script.0.to_vec() } else { script.edited(&files[which]) })
}

/// A refusal says what is wrong, and is no failure of the system's.
pub fn judge<T>(found: Result<T, ServerError>) {
    if let Err(error) = found {
        let is_of_the_system = matches!(error, ServerError::System { .. } | ServerError::Disk { .. });
        assert!(!is_of_the_system, "a damaged file is no failure of the system: {error}");
        assert!(!error.to_string().trim().is_empty());
    }
}
