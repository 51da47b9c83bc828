//! Stored corpus: a file for each target, with one input on each line, in hexadecimal.

use std::fs;
use std::io::Result;
use std::path::{Path, PathBuf};

/// Returns the stored inputs of the target `name`.
///
/// # Errors
/// The file is missing or cannot be read.
///
/// # Panics
/// If a line is not hexadecimal.
pub fn read(name: &str) -> Result<Vec<Vec<u8>>> {
    let text = fs::read_to_string(file(name))?;
    Ok(text.lines().map(|line| from_hex(line).unwrap_or_else(|| panic!("{name}: {line:?}"))).collect())
}

/// Stores `inputs` for the target `name`, sorted by length, in place of the earlier ones.
///
/// # Errors
/// The file cannot be written.
pub fn write(name: &str, mut inputs: Vec<Vec<u8>>) -> Result<()> {
    inputs.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    inputs.dedup();
    let hex = |input: &Vec<u8>| input.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n";
    fs::write(file(name), inputs.iter().map(hex).collect::<String>())
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name).with_extension("hex")
}

fn from_hex(line: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = line.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}
