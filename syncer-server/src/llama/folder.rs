//! Folder of the model that a run starts from.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use archipelago_core::model::{self, ModelSpec};
use serde_json::Value;

use super::config::Shape;
use super::error::short;
use super::reader::open;
use super::small::{self, check_json, check_len, object};
use super::source::is_id;
use super::{Chat, LlamaError, SourceSettings, SpecialTokens, Tensors};

/// Maximum size of a `tokenizer.json`, in bytes. Those of the largest vocabularies have some tens of millions.
const TOKENIZER_BYTES_MAX: u64 = 128 << 20;

/// Maximum number of files with parameters.
const FILES_MAX: usize = 1_000;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const CONFIG: &str = "config.json";
/// File that a folder of PEFT adapters has instead of `config.json`.
const ADAPTERS: &str = "adapter_config.json";
const TOKENIZER: &str = "tokenizer.json";

/// Folder whose model a run can use, as far as the files tell without their parameters.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    shape: Shape,
    settings: Box<SourceSettings>,
    tensors: Tensors,
}

impl Folder {
    /// Opens the folder at `path` for a run whose windows have `context` tokens. Without `context`, windows are as long
    /// as the model allows.
    ///
    /// # Errors
    /// - `NoFolder`: there is no folder at `path`.
    /// - `Read`, `Long`, `Form`, `NoTensors`: a file is missing, too long or invalid.
    /// - `Adapters`: the folder holds adapters and no model.
    /// - `Absent`, `Key`, `Model`: this program cannot train the model.
    /// - `Tensor`, `Missing`: the tensors do not match `config.json`.
    pub fn open(path: &Path, context: Option<u32>) -> Result<Self, LlamaError> {
        check_folder(path)?;
        if !path.join(CONFIG).exists() && path.join(ADAPTERS).exists() {
            return Err(LlamaError::Adapters);
        }
        let mut shape = Shape::read(&object(path, CONFIG)?, context)?;
        let settings = Box::new(SourceSettings::read(path)?);
        shape.special.add_generation(&settings.generation, shape.model.vocab);
        let tokenizer = open(path, TOKENIZER)?;
        let failed = |source| LlamaError::Read { file: TOKENIZER.to_owned(), source };
        check_len(TOKENIZER, tokenizer.metadata().map_err(failed)?.len(), TOKENIZER_BYTES_MAX)?;
        let mut beginning = Vec::new();
        tokenizer.take(small::BYTES as u64).read_to_end(&mut beginning).map_err(failed)?;
        check_json(TOKENIZER, &beginning)?;
        let tensors = Tensors::open(path, files(path)?)?.unwrapped()?;
        tensors.check(&model::layout(&shape.model)?)?;
        Ok(Self { path: path.to_owned(), shape, settings, tensors })
    }

    /// Returns the display name of the folder.
    #[must_use]
    pub fn name(&self) -> String {
        let whole = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        whole.file_name().map_or_else(|| "/".to_owned(), |name| name.to_string_lossy().into_owned())
    }

    /// Returns the shape of the model.
    #[must_use]
    pub fn model(&self) -> &ModelSpec {
        &self.shape.model
    }

    /// Returns the special tokens of the model.
    #[must_use]
    pub fn special(&self) -> &SpecialTokens {
        &self.shape.special
    }

    /// Returns the settings of the folder that exports repeat.
    #[must_use]
    pub fn settings(&self) -> &SourceSettings {
        &self.settings
    }

    /// Returns the path of the `tokenizer.json`.
    #[must_use]
    pub fn tokenizer(&self) -> PathBuf {
        self.path.join(TOKENIZER)
    }

    /// Reads the chat format.
    ///
    /// # Errors
    /// Those of [`Chat::read`].
    pub fn chat(&self) -> Result<Chat, LlamaError> {
        Chat::read(&self.path)
    }

    /// Returns the path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the tensors of the model.
    #[must_use]
    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Reads all parameters into one flat vector, in the order of the model's layout.
    ///
    /// # Errors
    /// Those of [`Tensors::read`].
    pub fn params(&self) -> Result<Vec<f32>, LlamaError> {
        self.tensors.read(&model::layout(&self.shape.model)?)
    }

    /// Checks that the embedding has a row for each token that can occur. The tokenizer has `tokens` tokens. As in
    /// transformers, added tokens may lack a row if no text contains them, as `<pad>` does in some folders.
    ///
    /// `without_row` is the first token of the vocabulary itself that lacks a row. `in_text` is the highest token in
    /// the text. Each is an id and a name.
    ///
    /// # Errors
    /// `Key`: a token of the vocabulary itself, or a token in the text, has no row.
    pub fn check_vocab(
        &self,
        tokens: u32,
        without_row: Option<(u32, String)>,
        in_text: (u32, String),
    ) -> Result<(), LlamaError> {
        let vocab = self.shape.model.vocab;
        let why = match (without_row, in_text) {
            (Some((id, name)), _) => format!(
                "tokenizer.json has {tokens} tokens, among them {} (id {id}): it does not belong to this model",
                short(&name)
            ),
            (None, (id, name)) if id >= vocab => format!(
                "the data has the token {} (id {id}), but the model has no row for it: remove it from the data, or \
                 from the added_tokens of tokenizer.json, or save the model with resize_token_embeddings of \
                 transformers",
                short(&name)
            ),
            (None, _) => return Ok(()),
        };
        Err(LlamaError::key("vocab_size", vocab, why))
    }
}

/// Checks that `path` is a folder.
///
/// # Errors
/// `NoFolder`, with the cause and a remedy.
fn check_folder(path: &Path) -> Result<(), LlamaError> {
    if path.is_dir() {
        return Ok(());
    }
    let text = path.to_string_lossy();
    let why = match text.split_once('/') {
        _ if path.exists() => "it is a file: give the folder that contains it".to_owned(),
        _ if text.starts_with('~') => {
            "there is no such folder: ~ is expanded only by shells, so write the whole path".to_owned()
        }
        Some((_, name)) if is_id(&text) => format!(
            "there is no such folder: to begin with the model of this name on the Hugging Face Hub, download it with \
             `hf download {text} --local-dir {name}` and give --init {name}"
        ),
        _ => "there is no such folder: check the path".to_owned(),
    };
    Err(LlamaError::NoFolder { why })
}

/// Returns the names of the safetensors files with the parameters.
fn files(path: &Path) -> Result<Vec<String>, LlamaError> {
    if path.join(SINGLE).exists() {
        return Ok(vec![SINGLE.to_owned()]);
    }
    if !path.join(INDEX).exists() {
        return Err(LlamaError::NoTensors);
    }
    let index = object(path, INDEX)?;
    let map = index.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| LlamaError::form(INDEX, "it has no weight_map"))?;
    let mut names = BTreeSet::new();
    for name in map.values() {
        // Names that lead outside the folder are refused.
        let plain = |name: &&str| Path::new(name).file_name().is_some_and(|last| last == *name);
        let Some(name) = name.as_str().filter(plain) else {
            let why = format!("{} is not the name of a file in this folder", short(&name.to_string()));
            return Err(LlamaError::form(INDEX, why));
        };
        names.insert(name.to_owned());
    }
    match names.len() {
        1..=FILES_MAX => Ok(names.into_iter().collect()),
        count => Err(LlamaError::form(
            INDEX,
            format!("it names {count} files, but 1 to {FILES_MAX} are supported"),
        )),
    }
}
