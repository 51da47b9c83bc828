//! Reading of parameters from untrusted safetensors files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use archipelago_core::bytes::copy_f32s;
use archipelago_core::diloco::{Layout, binary16};
use safetensors::tensor::{Dtype, Metadata};

use super::LlamaError;
use super::error::short;
use super::small::{self, placeholder};
use super::writer::shape;

/// Maximum size of a file's header, in bytes. A header has some hundred bytes per tensor.
const HEADER_BYTES_MAX: u64 = 8 << 20;

/// Number of values in one read.
const PIECE: usize = 1 << 18;

/// Name of the output matrix, which some folders contain although it is tied to the embedding.
const HEAD: &str = "lm_head.weight";

/// Name parts that wrappers of PyTorch modules insert anywhere: torch.compile, FSDP, activation checkpoints.
const WRAPPERS: [&str; 3] = ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"];

/// Prefix that DDP and DataParallel add to names.
const DDP: &str = "module.";

/// Name suffix of tensors in old folders that follow from the settings and are ignored.
const DERIVED: &str = ".rotary_emb.inv_freq";

/// Locations and types of the tensors in several files.
#[derive(Debug)]
pub struct Tensors {
    folder: PathBuf,
    files: Vec<String>,
    locations: BTreeMap<String, TensorLocation>,
    /// Metadata entries of all files.
    notes: BTreeMap<String, String>,
}

/// Location and type of a tensor.
#[derive(Debug)]
struct TensorLocation {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    /// Offset of the tensor's first byte in the file.
    start: u64,
}

impl Tensors {
    /// Reads the headers of `files` in `folder`.
    ///
    /// # Errors
    /// - `Read`: a file cannot be read.
    /// - `Form`: a file is not valid safetensors, or its tensors overlap, leave holes or reach beyond its end.
    /// - `Tensor`: two files have a tensor with the same name.
    pub fn open(folder: &Path, files: Vec<String>) -> Result<Self, LlamaError> {
        let (mut locations, mut notes) = (BTreeMap::new(), BTreeMap::new());
        for (index, name) in files.iter().enumerate() {
            let (first, header) = header(&open(folder, name)?, name)?;
            notes.extend(header.metadata().iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
            for (tensor, info) in header.tensors() {
                let location = TensorLocation {
                    file: index,
                    dtype: info.dtype,
                    shape: info.shape.clone(),
                    start: first + info.data_offsets.0 as u64,
                };
                if locations.insert(tensor.clone(), location).is_some() {
                    return Err(LlamaError::tensor(&tensor, name, "is in another file too"));
                }
            }
        }
        Ok(Self { folder: folder.to_owned(), files, locations, notes })
    }

    /// Removes the name parts of PyTorch wrappers from all tensor names.
    ///
    /// # Errors
    /// `Tensor`: two tensors get the same name.
    pub(super) fn unwrapped(self) -> Result<Self, LlamaError> {
        let mut locations = BTreeMap::new();
        for (name, location) in self.locations {
            let plain = unwrapped(&name);
            let file = location.file;
            if locations.insert(plain.clone(), location).is_some() {
                let why = format!("occurs twice, with and without the prefix of a wrapper: {}", short(&name));
                return Err(LlamaError::tensor(&plain, &self.files[file], why));
            }
        }
        Ok(Self { locations, ..self })
    }

    /// Returns the name, file and shape of each tensor, ordered by name.
    pub(super) fn shapes(&self) -> impl Iterator<Item = (&str, &str, &[usize])> {
        self.locations.iter().map(|(name, location)| (&**name, &*self.files[location.file], &*location.shape))
    }

    /// Returns the metadata entries of all files.
    pub(super) fn notes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.notes.iter().map(|(key, value)| (&**key, &**value))
    }

    /// Checks that the tensors are exactly the parameters of `layout`, each with its shape and in f32, f16 or bf16. A
    /// layout without output matrix still allows one, because it may be tied to the embedding.
    ///
    /// # Errors
    /// - `Missing`: a tensor is missing.
    /// - `Tensor`: a tensor has a wrong shape or type, or does not belong to the model.
    pub fn check(&self, layout: &Layout) -> Result<(), LlamaError> {
        let mut wanted: BTreeMap<&str, Vec<usize>> =
            layout.tensors().iter().map(|tensor| (&*tensor.name, shape(tensor))).collect();
        for (name, location) in &self.locations {
            let file = &self.files[location.file];
            let expected = match wanted.remove(&**name) {
                Some(expected) => expected,
                None if name == HEAD => layout.tensors().first().map(shape).unwrap_or_default(),
                None if name.ends_with(DERIVED) => continue,
                None => {
                    return Err(LlamaError::tensor(name, file, "does not belong to a model of this type"));
                }
            };
            if location.shape != expected {
                let why =
                    format!("has the shape {:?}, but config.json requires {expected:?}", location.shape);
                return Err(LlamaError::tensor(name, file, why));
            }
            if !matches!(location.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
                let why = format!("is of the type {}: save the model in F32, F16 or BF16", location.dtype);
                return Err(LlamaError::tensor(name, file, why));
            }
        }
        match wanted.into_keys().next() {
            Some(name) => Err(LlamaError::Missing { name: name.to_owned() }),
            None => Ok(()),
        }
    }

    /// Reads all parameters into one flat vector, `[layout.len()]`. This takes about one further megabyte of memory.
    ///
    /// # Errors
    /// - Those of [`Self::check`].
    /// - `Read`: a file can no longer be read.
    /// - `Value`: a value is not finite, or larger than learners can hold.
    /// - `Key`: the layout has no output matrix, but the files have one that differs from the embedding.
    pub fn read(&self, layout: &Layout) -> Result<Vec<f32>, LlamaError> {
        self.read_within(layout, std::slice::from_ref(&(0..layout.len())))
    }

    /// Reads only these ranges of the flat parameter vector, in their order.
    ///
    /// # Errors
    /// Those of [`Self::read`], for the ranges that are read.
    pub fn read_within(&self, layout: &Layout, ranges: &[Range<usize>]) -> Result<Vec<f32>, LlamaError> {
        self.check(layout)?;
        let is_tied = layout.tensors().iter().all(|tensor| tensor.name != HEAD);
        let has_twin = is_tied && self.locations.contains_key(HEAD);
        let mut read = Vec::with_capacity(ranges.iter().map(ExactSizeIterator::len).sum());
        for range in ranges {
            for (start, tensor) in layout.offsets() {
                let (start, end) = (start as usize, start as usize + tensor.len() as usize);
                let (from, to) = (range.start.max(start), range.end.min(end));
                if from >= to {
                    continue;
                }
                let (within, before) = (from - start..to - start, read.len());
                self.pieces(&tensor.name, within.clone(), |_, values| {
                    read.extend_from_slice(values);
                    Ok(())
                })?;
                // The embedding is the first tensor.
                if has_twin && start == 0 {
                    self.pieces(HEAD, within, |offset, values| {
                        let same = read[before + offset..].get(..values.len());
                        (same == Some(values)).then_some(()).ok_or_else(not_the_embedding)
                    })?;
                }
            }
        }
        Ok(read)
    }

    /// Passes the values of a range of the tensor `name` to `take`, piece by piece, each with its offset in the range.
    fn pieces(
        &self,
        name: &str,
        range: Range<usize>,
        mut take: impl FnMut(usize, &[f32]) -> Result<(), LlamaError>,
    ) -> Result<(), LlamaError> {
        let location = self.locations.get(name).ok_or_else(|| LlamaError::Missing { name: short(name) })?;
        let file_name = &self.files[location.file];
        let mut file = open(&self.folder, file_name)?;
        let failed = |source| LlamaError::Read { file: short(file_name), source };
        let (count, width) = (range.len(), location.dtype.bitsize() / 8);
        file.seek(SeekFrom::Start(location.start + (width * range.start) as u64)).map_err(failed)?;
        let (mut bytes, mut values) = (vec![0; width * PIECE.min(count)], vec![0.0; PIECE.min(count)]);
        let mut done = 0;
        while done < count {
            let now = PIECE.min(count - done);
            let (bytes, values) = (&mut bytes[..width * now], &mut values[..now]);
            file.read_exact(bytes).map_err(failed)?;
            decode(location.dtype, bytes, values);
            let bad = |value: &f32| !(value.is_finite() && value.abs() <= binary16::ABS_MAX);
            if let Some(at) = values.iter().position(bad) {
                let (name, file) = (short(name), short(file_name));
                return Err(LlamaError::Value {
                    name,
                    file,
                    value: values[at],
                    place: (range.start + done + at) as u64,
                });
            }
            take(done, values)?;
            done += now;
        }
        Ok(())
    }
}

/// Returns `name` without the parts that torch.compile, FSDP and activation checkpoints insert, and without the DDP
/// prefix.
fn unwrapped(name: &str) -> String {
    let mut name = name;
    while let Some(inner) = name.strip_prefix(DDP) {
        name = inner;
    }
    let parts: Vec<&str> = name.split('.').filter(|part| !WRAPPERS.contains(part)).collect();
    // DDP may be inside another wrapper.
    match parts.first() {
        Some(&"module") => unwrapped(&parts.join(".")),
        _ => parts.join("."),
    }
}

/// Converts `bytes` to numbers. Types that [`Tensors::check`] refuses yield NaN.
fn decode(dtype: Dtype, bytes: &[u8], values: &mut [f32]) {
    match dtype {
        Dtype::F32 => copy_f32s(bytes, values),
        Dtype::F16 => values.copy_from_slice(&binary16::from_bytes(bytes)),
        Dtype::BF16 => {
            for (value, word) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = half::bf16::from_le_bytes(*word).to_f32();
            }
        }
        _ => values.fill(f32::NAN),
    }
}

fn not_the_embedding() -> LlamaError {
    let why = "lm_head.weight differs from the embedding: write false if the model has two matrices, or remove one of \
         them";
    LlamaError::key("tie_word_embeddings", true, why)
}

/// Opens a regular file of the folder. Pipes and folders are refused.
pub(super) fn open(folder: &Path, name: &str) -> Result<File, LlamaError> {
    let failed = |source| LlamaError::Read { file: short(name), source };
    let path = folder.join(name);
    if !path.metadata().map_err(failed)?.is_file() {
        return Err(LlamaError::form(name, "it is not a file"));
    }
    File::open(&path).map_err(failed)
}

/// Reads the header of a safetensors file. Returns it with the offset of the first tensor byte.
fn header(mut file: &File, name: &str) -> Result<(u64, Metadata), LlamaError> {
    let failed = |source| LlamaError::Read { file: short(name), source };
    let bytes = file.metadata().map_err(failed)?.len();
    let mut beginning = Vec::new();
    file.take(small::BYTES as u64).read_to_end(&mut beginning).map_err(failed)?;
    if let Some(why) = placeholder(&beginning) {
        return Err(LlamaError::form(name, why));
    }
    file.rewind().map_err(failed)?;
    let mut first = [0; 8];
    file.read_exact(&mut first)
        .map_err(|_| LlamaError::form(name, "it is too short for a safetensors file"))?;
    let header_bytes = u64::from_le_bytes(first);
    let rest = bytes.saturating_sub(first.len() as u64);
    if header_bytes > rest.min(HEADER_BYTES_MAX) {
        let why = format!(
            "its header claims {header_bytes} bytes, but the file has {bytes} and at most {HEADER_BYTES_MAX} are read"
        );
        return Err(LlamaError::form(name, why));
    }
    let mut header = vec![0; header_bytes as usize];
    file.read_exact(&mut header).map_err(failed)?;
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|error| LlamaError::form(name, short(&error.to_string())))?;
    // The parser has checked that the tensors follow each other without gaps, and that lengths match shapes.
    let (end, there) = (metadata.data_len() as u64, rest - header_bytes);
    if end != there {
        let why =
            format!("its tensors claim {end} bytes, but the file has {there}: check that it is complete");
        return Err(LlamaError::form(name, why));
    }
    Ok((first.len() as u64 + header_bytes, metadata))
}
