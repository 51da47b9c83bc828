//! Hugging Face folders of Llama models: reading, and export. Parameter files of other models can be read, too.
//!
//! Folders are untrusted. Reading one yields a model that this program can train, or an error of one sentence. Reading
//! takes no more memory than the model's parameters and a few megabytes.

mod card;
mod chat;
mod config;
mod error;
mod folder;
mod own;
mod peft;
mod reader;
mod small;
mod source;
mod special;
mod writer;

#[cfg(test)]
mod tests;

pub use card::{Card, TrainingProgress, licence};
pub use chat::{Chat, TEMPLATE_BYTES_MAX};
pub use config::{generation_config, model_config, positions, tokenizer_config};
pub use error::LlamaError;
pub use folder::Folder;
pub use peft::{adapter_config, peft_layout};
pub use reader::Tensors;
pub use small::check_json;
pub use source::SourceSettings;
pub use source::is_id;
pub use special::SpecialTokens;
pub use writer::{Precision, f16_of, write_tensors};
