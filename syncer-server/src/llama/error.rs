//! Reasons why a run cannot start from a model folder.

use archipelago_core::diloco::binary16::ABS_MAX;
use archipelago_core::model::ModelError;

/// Maximum length of an untrusted value in an error, in characters.
const VALUE_CHARS_MAX: usize = 60;

/// Fault of a model folder. The message includes a remedy where one exists.
#[derive(Debug, thiserror::Error)]
pub enum LlamaError {
    /// A file cannot be opened or read.
    #[error("cannot read {file}: {source}")]
    Read {
        /// Name of the file.
        file: String,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// There is no folder at the path.
    #[error("{why}")]
    NoFolder {
        /// Cause and remedy.
        why: String,
    },
    /// The folder holds PEFT adapters without their base model.
    #[error(
        "it has adapter_config.json but no config.json, so it holds adapters without their base model: merge them \
         first, with merge_and_unload of PEFT or `export --merged` of their run, and give that folder"
    )]
    Adapters,
    /// The folder has no safetensors file.
    #[error(
        "there is neither model.safetensors nor model.safetensors.index.json: save the model as safetensors"
    )]
    NoTensors,
    /// A file is too large.
    #[error("{file} has {bytes} bytes, but at most {bytes_max} are read: check that it is the right file")]
    Long {
        /// Name of the file.
        file: String,
        /// Its length in bytes.
        bytes: u64,
        /// Largest size that is read, in bytes.
        bytes_max: u64,
    },
    /// The content of a file is invalid.
    #[error("{file} cannot be used: {why}")]
    Form {
        /// Name of the file.
        file: String,
        /// Description of the fault.
        why: String,
    },
    /// A required key of `config.json` is missing.
    #[error("config.json has no {key}, which a model of type llama needs")]
    Absent {
        /// Name of the key.
        key: &'static str,
    },
    /// A key of `config.json` has a value that runs cannot represent.
    #[error("config.json has {key} = {value}: {why}")]
    Key {
        /// Name of the key.
        key: String,
        /// Its value as JSON, shortened.
        value: String,
        /// Description of the values that can be represented.
        why: String,
    },
    /// The sizes in `config.json` together describe no valid model.
    #[error("config.json does not describe a supported model: {0}")]
    Model(#[from] ModelError),
    /// A tensor does not belong to the model, or has a wrong shape or type.
    #[error("tensor {name} in {file} {why}")]
    Tensor {
        /// Name of the tensor, shortened.
        name: String,
        /// Name of the file.
        file: String,
        /// Description of the fault.
        why: String,
    },
    /// A parameter is outside the range that learners can hold.
    #[error(
        "tensor {name} in {file} has the value {value} at place {place}: values must be from -{ABS_MAX} to {ABS_MAX}"
    )]
    Value {
        /// Name of the tensor.
        name: String,
        /// Name of the file.
        file: String,
        /// The value.
        value: f32,
        /// Index of the value in the tensor, from 0.
        place: u64,
    },
    /// A tensor is missing.
    #[error("tensor {name} is missing from the folder's safetensors files")]
    Missing {
        /// Name of the tensor.
        name: String,
    },
}

impl LlamaError {
    /// Returns the error for a key with an unsupported value.
    pub(super) fn key(key: impl Into<String>, value: impl ToString, why: impl Into<String>) -> Self {
        Self::Key { key: key.into(), value: short(&value.to_string()), why: why.into() }
    }

    /// Returns the error for a file with invalid content.
    pub(super) fn form(file: &str, why: impl ToString) -> Self {
        Self::Form { file: short(file), why: why.to_string() }
    }

    /// Returns the error for an unexpected or invalid tensor.
    pub(super) fn tensor(name: &str, file: &str, why: impl Into<String>) -> Self {
        Self::Tensor { name: short(name), file: short(file), why: why.into() }
    }
}

/// Returns untrusted text on one line, shortened to [`VALUE_CHARS_MAX`] characters.
pub(super) fn short(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut short: String = text.chars().take(VALUE_CHARS_MAX).map(plain).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
