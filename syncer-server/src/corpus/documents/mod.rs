//! Documents: JSON records whose texts are learnt in part.
//!
//! A record is a document of one of these forms:
//!
//! - `{"messages": [{"role": "…", "content": "…"}, …]}`: a conversation, written as the model's chat template says;
//!   what the assistant says is learnt. ShareGPT's `conversations` and lists of messages as `prompt` and `completion`
//!   are conversations as well;
//! - `{"prompt": "…", "completion": "…"}`: the completion is learnt, and the prompt is given;
//! - `{"instruction": "…", "input": "…", "output": "…"}`: a conversation if the model has a chat template, and a prompt
//!   with a completion otherwise;
//! - `{"text": "…"}`: all of it is learnt.
//!
//! Other keys are ignored, and null is the same as no key. If a record has several forms, the first of this list
//! counts.

mod conversation;
mod form;
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

pub use form::Form;
pub use renderer::Renderer as Template;
pub use tokens::Ends;

use renderer::Renderer;
use template::Dialogue;

/// A file of records.
pub struct Lines {
    /// Where it is from.
    pub path: PathBuf,
    /// Its text, lines of JSON or one list of it.
    pub text: String,
    /// Name of its compression, if it had one.
    pub packed_by: Option<&'static str>,
}

/// Documents as tokens, those that are given marked as in [`archipelago_core::token`].
pub struct Documents {
    /// To train on, one after the other.
    pub train: Vec<u32>,
    /// Never trained on.
    pub held_out: Vec<u32>,
    /// Bytes of text behind one learnt token that is held out, on average.
    pub bytes_per_token: f64,
    /// Tokens of each document, in order.
    pub lengths: Vec<u32>,
}

/// A document before it is cut into tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Its text.
    pub text: String,
    /// The parts of it that are learnt, in bytes, in order.
    pub learnt: Vec<std::ops::Range<usize>>,
    /// What ends it.
    pub end: End,
}

/// What ends a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The token that ends texts, and it is learnt.
    Learnt,
    /// The same, unless the text ends with it; not learnt, since the template says how turns end.
    Given,
}

/// Documents of all files.
#[derive(Debug)]
pub struct Read {
    /// The documents in order.
    pub documents: Vec<Document>,
    /// Number of documents of each form.
    pub forms: BTreeMap<Form, usize>,
}

/// Reads all records of `files`.
///
/// # Errors
/// - `DataLine`: a record is no document.
/// - `DataTooFew`: there are not two documents, one of which could be held out.
pub fn read(files: Vec<Lines>, chat: &Chat) -> Result<Read, ServerError> {
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
            let (form, document) = line::document(json, write).map_err(|why| bad((line, why)))?;
            *forms.entry(form).or_default() += 1;
            documents.push(document);
        }
    }
    match documents.len() {
        0 | 1 => Err(ServerError::DataTooFew { documents: documents.len() }),
        _ => Ok(Read { documents, forms }),
    }
}

/// All that is said in `documents`, for a vocabulary to be made of.
pub fn plain(documents: &[Document]) -> String {
    documents.iter().flat_map(|document| [document.text.as_str(), "\n"]).collect()
}

/// What tells these files and how conversations in them are written from others.
pub fn hash(files: &[Lines], chat: &Chat) -> Vec<u8> {
    let mut sha = Sha256::new();
    for Lines { text, .. } in files {
        sha.update(Sha256::digest(text.as_bytes()));
    }
    sha.update(serde_json::to_vec(chat).expect("plain data"));
    sha.finalize().to_vec()
}

/// Cuts `documents` into tokens of `vocabulary` and holds a part of them out: as many as their share is, whole, at
/// least one and not all, drawn by `seed`.
///
/// # Errors
/// `Tokenizer`: the tokenizer does not take a text.
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
    let (mut learnt, mut learnt_bytes) = (0, 0);
    tokens::each(documents, vocabulary, ends, &mut |index, tokens| {
        lengths.push(u32::try_from(tokens.len()).unwrap_or(u32::MAX));
        if is_held_out[index] {
            learnt += tokens.iter().filter(|&&token| archipelago_core::token::is_learnt(token)).count();
            learnt_bytes += documents[index].learnt.iter().map(std::ops::Range::len).sum::<usize>();
            held_out.extend_from_slice(tokens);
        } else {
            train.extend_from_slice(tokens);
        }
    })?;
    let bytes_per_token = learnt_bytes as f64 / (learnt as f64).max(1.0);
    Ok(Documents { train, held_out, bytes_per_token, lengths })
}

/// Which of `count` documents, two or more, are held out.
fn drawn(count: usize, ratio: f64, seed: u64) -> Vec<bool> {
    let held_out = ((count as f64 * ratio).round() as usize).clamp(1, count - 1);
    let lot = |&index: &usize| mix(key(&[seed, index as u64, Purpose::HeldOut as u64]));
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(lot);
    let mut is_held_out = vec![false; count];
    order[..held_out].iter().for_each(|&index| is_held_out[index] = true);
    is_held_out
}

/// What a number is drawn for.
enum Purpose {
    HeldOut = 0x68_6f,
}

#[cfg(test)]
mod tests;
