//! Small files of a folder, which are read whole.

use std::io::Read;
use std::path::Path;

use super::LlamaError;
use super::reader::open;

/// Bytes of a `config.json` or of an index of files at most.
pub(super) const JSON_BYTES_MAX: u64 = 16 << 20;

/// All of a small file.
pub(super) fn bytes(path: &Path, name: &str, bytes_max: u64) -> Result<Vec<u8>, LlamaError> {
    let file = open(path, name)?;
    let mut bytes = Vec::new();
    let read = file.take(bytes_max + 1).read_to_end(&mut bytes);
    let read = read.map_err(|source| LlamaError::Read { file: name.to_owned(), source })?;
    check_len(name, read as u64, bytes_max)?;
    Ok(bytes)
}

/// That a file has no more bytes than it has reason to.
pub(super) fn check_len(name: &str, bytes: u64, bytes_max: u64) -> Result<(), LlamaError> {
    match bytes <= bytes_max {
        true => Ok(()),
        false => Err(LlamaError::Long { file: name.to_owned(), bytes, bytes_max }),
    }
}
