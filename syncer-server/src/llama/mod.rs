//! A Hugging Face folder of a Llama: what it says of its model, its parameters, and the same once more when it is
//! written; and a file of parameters that are no Llama's.
//!
//! Folders come from strangers. Whatever is in one, reading it ends with a model that this program can train or with
//! one sentence; no more memory is taken than the model has parameters, and a few megabytes.

mod card;
mod card_keys;
mod chat;
mod config;
mod error;
mod folder;
mod hub;
mod own;
mod peft;
mod placeholder;
mod reader;
mod small;
mod source;
mod special;
mod writer;

#[cfg(test)]
mod tests;

pub use card::{Card, Course, licence};
pub use chat::{Chat, TEMPLATE_BYTES_MAX};
pub use config::{generation_config, model_config, tokenizer_config};
pub use error::LlamaError;
pub use folder::Folder;
pub use hub::is_id;
pub use peft::{adapter_config, peft_layout};
pub use placeholder::placeholder;
pub use reader::Tensors;
pub use small::check_json;
pub use source::SourceSettings;
pub use special::SpecialTokens;
pub use writer::{Precision, write_tensors};
