//! Why a folder is no model that a run can begin from.

use archipelago_core::diloco::halves::ABS_MAX;
use archipelago_core::model::ModelError;

/// Characters of a stranger's value that an error repeats.
const VALUE_CHARS_MAX: usize = 60;

/// What is wrong with a folder, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum LlamaError {
    /// A file cannot be opened or read.
    #[error("cannot read {file}: {source}")]
    Read {
        /// Its name.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is no such folder.
    #[error("{why}")]
    NoFolder {
        /// Description of what is there instead, and what to do.
        why: String,
    },
    /// It is a folder of adapters for PEFT.
    #[error(
        "it has adapter_config.json and no config.json, so that it holds adapters and not the model that they belong \
         to: merge them first, with merge_and_unload of PEFT or `export --merged` of their run, and give that folder"
    )]
    Adapters,
    /// The parameters are not there.
    #[error(
        "there is neither model.safetensors nor model.safetensors.index.json: save the model in the form safetensors"
    )]
    NoTensors,
    /// A file is longer than it has reason to be.
    #[error("{file} has {bytes} bytes, at most {bytes_max} are read: is it the right file?")]
    Long {
        /// Its name.
        file: String,
        /// Its length.
        bytes: u64,
        /// Bytes that are read at most.
        bytes_max: u64,
    },
    /// A file is not of the form that its name promises.
    #[error("{file} cannot be used: {why}")]
    Form {
        /// Its name.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// A key without which there is no model.
    #[error("config.json has no {key}, which a model of type llama needs")]
    Absent {
        /// The key.
        key: &'static str,
    },
    /// A key with a value that runs cannot represent.
    #[error("config.json has {key} = {value}: {why}")]
    Key {
        /// The key.
        key: String,
        /// Its value as JSON, shortened.
        value: String,
        /// What can be represented.
        why: String,
    },
    /// Sizes that together are no model.
    #[error("config.json describes no model that can be trained here: {0}")]
    Model(#[from] ModelError),
    /// A tensor that there is none of in such a model, or one of another form.
    #[error("tensor {name} in {file} {why}")]
    Tensor {
        /// Its name, shortened.
        name: String,
        /// The file.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// A value that no learner can hold.
    #[error(
        "tensor {name} in {file} has the value {value} at place {place}: -{ABS_MAX} to {ABS_MAX} can be held"
    )]
    Value {
        /// The tensor.
        name: String,
        /// The file.
        file: String,
        /// The value.
        value: f32,
        /// Which of the tensor's values it is, from 0.
        place: u64,
    },
    /// A tensor is missing.
    #[error("tensor {name} is in none of the folder's safetensors files")]
    Missing {
        /// Its name.
        name: String,
    },
}

impl LlamaError {
    /// Of a key whose value cannot be represented.
    pub(super) fn key(key: impl Into<String>, value: impl ToString, why: impl Into<String>) -> Self {
        Self::Key { key: key.into(), value: short(&value.to_string()), why: why.into() }
    }

    /// Of a file that is not of its form.
    pub(super) fn form(file: &str, why: impl ToString) -> Self {
        Self::Form { file: short(file), why: why.to_string() }
    }

    /// Of a tensor that does not belong there.
    pub(super) fn tensor(name: &str, file: &str, why: impl Into<String>) -> Self {
        Self::Tensor { name: short(name), file: short(file), why: why.into() }
    }
}

/// A stranger's text on one line and not too long of it.
pub(super) fn short(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut short: String = text.chars().take(VALUE_CHARS_MAX).map(plain).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
