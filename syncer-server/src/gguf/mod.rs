//! Export of a decoder as one GGUF file, the format of llama.cpp: parameters, vocabulary and chat template.
//!
//! The file is of version 3 and little-endian. llama.cpp has one architecture, `llama`, for Llama and Mixtral models.

mod container;
mod metadata;
mod splitting;
mod tensors;
mod types;
mod vocabulary;

#[cfg(test)]
mod tests;

use std::path::Path;

use archipelago_core::diloco::Layout;
use archipelago_core::model::ModelSpec;

pub use container::Value;
pub use metadata::Description;
pub use types::TensorType;
pub use vocabulary::{GgufVocabulary, VocabularyError};

/// Writes the model `spec` with the parameters `theta` of `layout` to the file `path`, with matrices of the type
/// `kind`. `metadata` are the entries of the model and its vocabulary, in order. The file is not synced to disk.
///
/// # Errors
/// The operating system's error.
pub fn write_gguf(
    path: &Path,
    spec: &ModelSpec,
    layout: &Layout,
    theta: &[f32],
    kind: TensorType,
    metadata: &[(String, Value)],
) -> std::io::Result<()> {
    let tensors = tensors::tensors(spec, layout, theta, kind);
    container::write(std::fs::File::create(path)?, metadata, &tensors)
}
