//! Texts in documents, of which a part is learnt: lines of JSON.
//!
//! A line is a document of one of three forms:
//!
//! - `{"text": "…"}`: all of it is learnt;
//! - `{"prompt": "…", "completion": "…"}`: the completion is learnt, and the prompt is given;
//! - `{"messages": [{"role": "…", "content": "…"}, …]}`: a conversation, written as the model's chat template says;
//!   what the assistant says is learnt.
//!
//! Keys beside these are passed over. Of a line with several forms the conversation counts, then the completion.

mod line;
mod template;
mod tokens;

use std::path::PathBuf;

use archipelago_core::rng::{key, mix};
use sha2::{Digest, Sha256};

use super::vocabulary::Vocabulary;
use crate::errors::ServerError;
use crate::llama::Chat;

pub use template::Template;
pub use tokens::Ends;

/// Lines by which a text is told from documents.
const LOOKED_AT: usize = 4;

/// A file of lines.
pub struct Lines {
    /// Where it is from.
    pub path: PathBuf,
    /// What is in it.
    pub text: String,
}

/// Documents as tokens, those that are given marked as in [`archipelago_core::token`].
pub struct Documents {
    /// To train on, one after the other.
    pub train: Vec<u32>,
    /// Never trained on.
    pub held_out: Vec<u32>,
    /// Bytes of text behind one learnt token that is held out, on average.
    pub bytes_per_token: f64,
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

/// Reads all lines of `files`.
///
/// # Errors
/// - `DataLine`: a line is no document.
/// - `DataTooFew`: there are not two documents, one of which could be held out.
pub fn read(files: &[Lines], chat: &Chat) -> Result<Vec<Document>, ServerError> {
    let mut documents = Vec::new();
    // Made when the first conversation comes: other lines need none.
    let mut template = None;
    for Lines { path, text } in files {
        for (line, number) in text.lines().zip(1_u64..).filter(|(line, _)| !line.trim().is_empty()) {
            let bad = |why| ServerError::DataLine { path: path.clone(), line: number, why };
            let mut conversation = |messages: &[serde_json::Value]| {
                if template.is_none() {
                    template = Some(Template::new(chat)?);
                }
                template.as_ref().expect("it was made above").document(messages)
            };
            documents.push(line::document(line, &mut conversation).map_err(bad)?);
        }
    }
    match documents.len() {
        0 | 1 => Err(ServerError::DataTooFew { documents: documents.len() }),
        _ => Ok(documents),
    }
}

/// Whether a text of another name looks as if it were of lines that are documents: the first few all have one of their
/// keys.
pub fn look_like(text: &str) -> bool {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().filter(|line| !line.trim().is_empty()).take(LOOKED_AT);
    let has_key = |line: &str| {
        let value: Result<serde_json::Value, _> = serde_json::from_str(line);
        value.is_ok_and(|value| ["text", "messages", "prompt"].iter().any(|key| value.get(key).is_some()))
    };
    let found: Vec<bool> = lines.map(has_key).collect();
    found.len() >= 2 && found.iter().all(|&found| found)
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
    let (mut train, mut held_out) = (Vec::new(), Vec::new());
    let (mut learnt, mut learnt_bytes) = (0, 0);
    let tokens = tokens::all(documents, vocabulary, ends)?;
    for ((document, tokens), is_held_out) in documents.iter().zip(tokens).zip(is_held_out) {
        if is_held_out {
            learnt += tokens.iter().filter(|&&token| archipelago_core::token::is_learnt(token)).count();
            learnt_bytes += document.learnt.iter().map(std::ops::Range::len).sum::<usize>();
            held_out.extend(tokens);
        } else {
            train.extend(tokens);
        }
    }
    let bytes_per_token = learnt_bytes as f64 / (learnt as f64).max(1.0);
    Ok(Documents { train, held_out, bytes_per_token })
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
