//! Conversion of the stored corpus to and from libFuzzer's folder of files: `corpus unpack|pack TARGET FOLDER`.

#![expect(clippy::print_stderr, reason = "a command line tool says what is wrong")]

use std::io::{Error, Result};
use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use archipelago_fuzz::{read, target, write};

/// Longest stored input in bytes. Shorter inputs find the same faults, and longer ones would slow down every test run.
const BYTES_MAX: usize = 128;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let done = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["unpack", name, folder] => unpack(name, Path::new(folder)),
        ["pack", name, folder] => pack(name, Path::new(folder)),
        _ => Err(Error::other("corpus unpack|pack TARGET FOLDER")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Adds the stored inputs of `name` to the files in `folder`.
fn unpack(name: &str, folder: &Path) -> Result<()> {
    target(name).ok_or_else(|| Error::other(format!("there is no target {name}")))?;
    fs::create_dir_all(folder)?;
    // A new target has no inputs yet.
    for (number, input) in read(name).unwrap_or_default().into_iter().enumerate() {
        fs::write(folder.join(format!("kept-{number}")), input)?;
    }
    Ok(())
}

/// Stores the files in `folder` as the inputs of `name`.
fn pack(name: &str, folder: &Path) -> Result<()> {
    let mut inputs = Vec::new();
    for entry in fs::read_dir(folder)? {
        inputs.push(fs::read(entry?.path())?);
    }
    inputs.retain(|input| input.len() <= BYTES_MAX);
    write(name, inputs)
}
