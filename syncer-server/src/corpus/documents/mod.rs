//! Documents: JSON records with texts that are trained on in full or in part.
//!
//! A record is a document of one of these forms:
//!
//! - `{"messages": [{"role": "…", "content": "…"}, …]}`: a conversation, rendered with the model's chat template; the
//!   assistant's words are targets. ShareGPT's `conversations` and lists of messages as `prompt` and `completion` are
//!   conversations as well;
//! - `{"prompt": "…", "completion": "…"}`: the completion is the target, and the prompt is masked;
//! - `{"instruction": "…", "input": "…", "output": "…"}`: a conversation if the model has a chat template, and a
//!   prompt with a completion otherwise. Dolly's `instruction`, `context` and `response` are the same form;
//! - `{"text": "…"}`: the whole text is the target.
//!
//! - `{"NAME": "…"}` if the owner names this key: the text of this key is the target.
//!
//! Other keys are ignored, and null is the same as no key. If a record has several forms, it is read as the first of
//! this list.

mod conversation;
mod json;
mod line;
mod renderer;
mod template;
mod tokens;

use std::collections::BTreeMap;
use std::path::PathBuf;

use archipelago_core::rng::{key, mix};
use sha2::{Digest, Sha256};

use super::records::{Record, records};
use super::vocabulary::Vocabulary;
use crate::errors::ServerError;
use crate::llama::Chat;

pub use line::Form;
pub use renderer::Renderer as Template;
pub use tokens::Ends;

use renderer::Renderer;
use template::Dialogue;

/// A file of records.
pub struct Lines {
    /// Path of the file.
    pub path: PathBuf,
    /// Content: JSON values on lines, or one JSON list.
    pub text: String,
    /// Name of its compression, if any.
    pub packed_by: Option<&'static str>,
}

/// Tokenised documents, with the mask bit of [`archipelago_core::token`] on tokens that are not targets.
pub struct Documents {
    /// Training tokens, document by document.
    pub train: Vec<u32>,
    /// Held-out tokens, which are never trained on.
    pub held_out: Vec<u32>,
    /// Average bytes of text per held-out target token.
    pub bytes_per_token: f64,
    /// Number of tokens of each document, in order.
    pub lengths: Vec<u32>,
}

/// Document before tokenisation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Text of the document.
    pub text: String,
    /// Byte ranges of the text that are targets, in order.
    pub targets: Vec<std::ops::Range<usize>>,
    /// End of the document.
    pub end: End,
}

/// End of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The end-of-text token, as a target.
    Target,
    /// The end-of-text token unless the text already ends with it. It is masked, because the template defines how
    /// turns end.
    Masked,
}

/// Documents of all files.
#[derive(Debug)]
pub struct Read {
    /// The documents in order.
    pub documents: Vec<Document>,
    /// Number of documents of each form.
    pub forms: BTreeMap<Form, usize>,
}

/// Reads all records of `files`. If there is a `column`, each record is the text under this key.
///
/// # Errors
/// - `DataLine`: a record is not a document.
/// - `DataTooFew`: there are fewer than two documents, so that none can be held out.
pub fn read(files: Vec<Lines>, chat: &Chat, column: Option<&str>) -> Result<Read, ServerError> {
    let (mut documents, mut forms) = (Vec::new(), BTreeMap::new());
    // The renderer starts at the first conversation: other lines do not need it.
    let mut renderer = None;
    let mut write = |conversation: &conversation::Conversation| {
        let dialogue = Dialogue::new(conversation)?;
        if renderer.is_none() {
            renderer = Some(Renderer::new(chat)?);
        }
        renderer.as_ref().expect("it was started above").document(dialogue)
    };
    for Lines { path, text, .. } in files {
        let bad = |(line, why)| ServerError::DataLine { path: path.clone(), line, why };
        for record in records(&text) {
            let Record { line, json } = record.map_err(bad)?;
            let write: Option<&mut line::Writer<'_>> =
                if chat.has_template() { Some(&mut write) } else { None };
            let (form, document) = line::document(json, column, write).map_err(|why| bad((line, why)))?;
            *forms.entry(form).or_default() += 1;
            documents.push(document);
        }
    }
    match documents.len() {
        0 | 1 => Err(ServerError::DataTooFew { documents: documents.len() }),
        _ => Ok(Read { documents, forms }),
    }
}

/// Returns the texts of all `documents`, as training text for a vocabulary.
pub fn plain(documents: &[Document]) -> String {
    documents.iter().flat_map(|document| [document.text.as_str(), "\n"]).collect()
}

/// Returns a hash of the files, of the rendering of their conversations, and of the key with their texts.
pub fn hash(files: &[Lines], chat: &Chat, column: Option<&str>) -> Vec<u8> {
    let mut sha = Sha256::new();
    for Lines { text, .. } in files {
        sha.update(Sha256::digest(text.as_bytes()));
    }
    sha.update(serde_json::to_vec(chat).expect("plain data"));
    sha.update(column.map(|column| format!("column {column:?}")).unwrap_or_default());
    sha.finalize().to_vec()
}

/// Tokenises `documents` with `vocabulary` and holds out whole documents, drawn by `seed`. Their share is about
/// `held_out_ratio`, but at least one document is held out and at least one is not.
///
/// # Errors
/// `Tokenizer`: the tokenizer rejects a text.
pub fn cut(
    documents: &[Document],
    vocabulary: &Vocabulary,
    ends: &Ends,
    held_out_ratio: f64,
    seed: u64,
) -> Result<Documents, ServerError> {
    let is_held_out = drawn(documents.len(), held_out_ratio, seed);
    let (mut train, mut held_out, mut lengths) =
        (Vec::new(), Vec::new(), Vec::with_capacity(documents.len()));
    let (mut targets, mut learnt_bytes) = (0, 0);
    tokens::each(documents, vocabulary, ends, &mut |index, tokens| {
        lengths.push(u32::try_from(tokens.len()).unwrap_or(u32::MAX));
        if is_held_out[index] {
            targets += tokens.iter().filter(|&&token| archipelago_core::token::is_target(token)).count();
            learnt_bytes += documents[index].targets.iter().map(std::ops::Range::len).sum::<usize>();
            held_out.extend_from_slice(tokens);
        } else {
            train.extend_from_slice(tokens);
        }
    })?;
    let bytes_per_token = learnt_bytes as f64 / (targets as f64).max(1.0);
    Ok(Documents { train, held_out, bytes_per_token, lengths })
}

/// Draws the held-out documents among `count`, which is at least two. Returns true for each of them.
fn drawn(count: usize, ratio: f64, seed: u64) -> Vec<bool> {
    let held_out = ((count as f64 * ratio).round() as usize).clamp(1, count - 1);
    let lot = |&index: &usize| mix(key(&[seed, index as u64, Purpose::HeldOut as u64]));
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(lot);
    let mut is_held_out = vec![false; count];
    order[..held_out].iter().for_each(|&index| is_held_out[index] = true);
    is_held_out
}

/// Purpose of a random draw.
enum Purpose {
    HeldOut = 0x68_6f,
}

#[cfg(test)]
mod tests;
