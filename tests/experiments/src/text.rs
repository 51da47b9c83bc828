//! A text in parts: for training, for choosing settings, and for the final test.

use std::path::Path;
use std::{fs, io};

use archipelago_sim::corpus::CorpusError;
use clap::ValueEnum;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::SimulateError;
use crate::lab::{Corpus, Documents, pieces};
use crate::training::TrainingArgs;

/// Largest number of bytes read.
const BYTES_MAX: u64 = 256 << 20;

/// Held-out part of a text.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// A tenth of the documents for validation, and another for the test
    Documents,
    /// The last tenth, for validation; there is no test
    End,
}

/// A text in parts.
pub struct Text {
    /// Display name.
    pub name: String,
    /// Digest of the parts, which identifies the text.
    pub digest: String,
    /// Number of documents, and bytes of the training, validation and test parts.
    pub sizes: (usize, [usize; 3]),
    pub corpus: Corpus,
}

impl Text {
    /// Reads the text of `args`. Each file of a folder is a document; a file or a built-in text is split into
    /// documents.
    ///
    /// # Errors
    /// - `Disk`: the text cannot be read.
    /// - `Refused`: the text is too long or too short.
    pub fn read(args: &TrainingArgs, split: Split) -> Result<Self, SimulateError> {
        let (name, documents) = match &args.data {
            None => (args.text.name(), pieces(args.text.generate().as_bytes())),
            Some(path) => {
                let disk = |source| SimulateError::Disk { what: "read", path: path.clone(), source };
                let name = path.file_stem().map_or("text".into(), |stem| stem.to_string_lossy().into_owned());
                (name, documents(path).map_err(disk)?)
            }
        };
        let count = documents.len();
        let refused = |error: CorpusError| SimulateError::refused(format!("{name}: {error}"));
        let mut digest = Sha256::new();
        let mut add = |part: &[u8]| {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        };
        let corpus = match split {
            Split::Documents => {
                let parts = Documents::part(&documents);
                [&parts.train, &parts.validation, &parts.test].iter().for_each(|part| add(part));
                Corpus::try_from(&parts).map_err(refused)?
            }
            Split::End => {
                let whole = documents.concat();
                add(&whole);
                Corpus::new(&whole).map_err(refused)?
            }
        };
        let digest = hex(&digest.finalize()[..8]);
        let train = corpus.data.shards.iter().map(|shard| shard.tokens as usize).sum();
        let sizes = (count, [train, corpus.held_out.len(), corpus.test.len()]);
        Ok(Self { name, digest, sizes, corpus })
    }

    /// Returns true if there is a test part, which is not used for choosing.
    pub fn has_test(&self) -> bool {
        !self.corpus.test.is_empty()
    }

    /// Describes the parts in a sentence or two.
    pub fn words(&self) -> String {
        let (documents, [train, validation, test]) = self.sizes;
        format!(
            "{} has {documents} documents: {train} bytes to train on, {validation} to choose settings by, {test} for \
             the test. Losses are in nats per byte.",
            self.name
        )
    }
}

/// Returns the documents at `path`: the files of a folder by name, then those of its subfolders, the last subfolder
/// first. Digests of texts depend on this order.
fn documents(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    let mut left = BYTES_MAX;
    if path.is_file() {
        return Ok(pieces(&file(path, &mut left)?));
    }
    let (mut documents, mut folders) = (Vec::new(), vec![path.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        let mut entries = fs::read_dir(&folder)?.collect::<Result<Vec<_>, _>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let kind = entry.file_type()?;
            if entry.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                let bytes = file(&entry.path(), &mut left)?;
                // Files that are not text are skipped.
                documents
                    .extend(std::str::from_utf8(&bytes).is_ok_and(|text| !text.is_empty()).then_some(bytes));
            }
        }
    }
    Ok(documents)
}

fn file(path: &Path, left: &mut u64) -> io::Result<Vec<u8>> {
    let bytes = fs::metadata(path)?.len();
    *left = left.checked_sub(bytes).ok_or_else(|| {
        io::Error::new(io::ErrorKind::FileTooLarge, format!("there are more than {BYTES_MAX} bytes"))
    })?;
    fs::read(path)
}

/// Returns lower-case hex digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use archipelago_cli::defaults;

    #[test]
    fn files_of_a_folder_are_documents() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().to_str().unwrap().to_owned();
        let read = || Text::read(&defaults::<TrainingArgs>(&["--data", &data]), Split::Documents);
        let error = read().err().unwrap().to_string();
        assert!(error.contains("leave none to train on"), "{error}");
        fs::create_dir(folder.path().join("deep")).unwrap();
        for i in 0..20 {
            let name = if i % 2 == 0 { format!("deep/{i}.txt") } else { format!("{i}.txt") };
            fs::write(folder.path().join(name), format!("document {i}\n").repeat(100)).unwrap();
        }
        fs::write(folder.path().join(".hidden"), "not this").unwrap();
        fs::write(folder.path().join("binary"), [0xff, 0xfe]).unwrap();
        let text = read().unwrap();
        let (documents, bytes) = text.sizes;
        assert_eq!((documents, bytes.iter().sum::<usize>()), (20, 100 * (10 * 11 + 10 * 12)));
        assert_eq!(text.corpus.test.len(), bytes[2]);
        let whole = Text::read(&defaults::<TrainingArgs>(&["--data", &data]), Split::End).unwrap();
        assert!(whole.digest != text.digest && !whole.has_test() && whole.sizes.1[1] > 2_000);
        let before = text.digest;
        fs::write(folder.path().join("0.txt"), "another").unwrap();
        assert_ne!(read().unwrap().digest, before);
    }
}
