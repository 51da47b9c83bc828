//! The files of a folder that a run begins from.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use archipelago_core::model::{self, ModelSpec};
use serde_json::Value;

use super::config::Shape;
use super::placeholder;
use super::reader::open;
use super::small::{check_json, check_len, object};
use super::{Chat, LlamaError, SourceSettings, SpecialTokens, Tensors};

/// Bytes of a `tokenizer.json` at most; those of the largest vocabularies have some tens of millions.
const TOKENIZER_BYTES_MAX: u64 = 128 << 20;

/// Files that the parameters are in, at most.
const FILES_MAX: usize = 1_000;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const CONFIG: &str = "config.json";
/// What a folder of adapters for PEFT has in its place.
const ADAPTERS: &str = "adapter_config.json";
const TOKENIZER: &str = "tokenizer.json";

/// A folder whose model a run can have, as far as that shows without reading the parameters.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    shape: Shape,
    settings: SourceSettings,
    tensors: Tensors,
}

impl Folder {
    /// Looks at the folder at `path`, for a run whose windows have `context` tokens, or as many as the model was made
    /// for.
    ///
    /// # Errors
    /// - `Read`, `Long`, `Form`, `NoTensors`: a file is missing, too long or not what it should be.
    /// - `Adapters`: it holds adapters and no model.
    /// - `Absent`, `Key`, `Model`: the model is none that can be trained here.
    /// - `Tensor`, `Missing`: its tensors are not those of its `config.json`.
    pub fn open(path: &Path, context: Option<u32>) -> Result<Self, LlamaError> {
        if !path.join(CONFIG).exists() && path.join(ADAPTERS).exists() {
            return Err(LlamaError::Adapters);
        }
        let mut shape = Shape::read(&object(path, CONFIG)?, context)?;
        let settings = SourceSettings::read(path)?;
        shape.special.add_generation(&settings.generation, shape.model.vocab);
        let tokenizer = open(path, TOKENIZER)?;
        let failed = |source| LlamaError::Read { file: TOKENIZER.to_owned(), source };
        check_len(TOKENIZER, tokenizer.metadata().map_err(failed)?.len(), TOKENIZER_BYTES_MAX)?;
        let mut beginning = Vec::new();
        tokenizer.take(placeholder::BYTES as u64).read_to_end(&mut beginning).map_err(failed)?;
        check_json(TOKENIZER, &beginning)?;
        let tensors = Tensors::open(path, files(path)?)?;
        tensors.check(&model::layout(&shape.model)?)?;
        Ok(Self { path: path.to_owned(), shape, settings, tensors })
    }

    /// Its name, for people.
    #[must_use]
    pub fn name(&self) -> String {
        let whole = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        whole.file_name().map_or_else(|| "/".to_owned(), |name| name.to_string_lossy().into_owned())
    }

    /// The sizes of its model.
    #[must_use]
    pub fn model(&self) -> &ModelSpec {
        &self.shape.model
    }

    /// Its tokens with a meaning of their own.
    #[must_use]
    pub fn special(&self) -> &SpecialTokens {
        &self.shape.special
    }

    /// Its settings for exports to repeat.
    #[must_use]
    pub fn settings(&self) -> &SourceSettings {
        &self.settings
    }

    /// Its `tokenizer.json`.
    #[must_use]
    pub fn tokenizer(&self) -> PathBuf {
        self.path.join(TOKENIZER)
    }

    /// How it writes conversations.
    ///
    /// # Errors
    /// Those of [`Chat::read`].
    pub fn chat(&self) -> Result<Chat, LlamaError> {
        Chat::read(&self.path)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its tensors.
    #[must_use]
    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Its parameters, flat.
    ///
    /// # Errors
    /// Those of [`Tensors::read`].
    pub fn params(&self) -> Result<Vec<f32>, LlamaError> {
        self.tensors.read(&model::layout(&self.shape.model)?)
    }

    /// Refuses a tokenizer with `tokens` tokens if the model has fewer.
    ///
    /// # Errors
    /// `Key`: it has fewer.
    pub fn check_vocab(&self, tokens: u32) -> Result<(), LlamaError> {
        let vocab = self.shape.model.vocab;
        match tokens <= vocab {
            true => Ok(()),
            false => {
                let why = format!("tokenizer.json has {tokens} tokens: they do not belong together");
                Err(LlamaError::key("vocab_size", vocab, why))
            }
        }
    }
}

/// The names of the files that the parameters are in.
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
        // Nothing outside the folder is read.
        let plain = |name: &&str| Path::new(name).file_name().is_some_and(|last| last == *name);
        let Some(name) = name.as_str().filter(plain) else {
            let why = format!("{} is no name of a file beside it", super::error::short(&name.to_string()));
            return Err(LlamaError::form(INDEX, why));
        };
        names.insert(name.to_owned());
    }
    match names.len() {
        1..=FILES_MAX => Ok(names.into_iter().collect()),
        count => {
            Err(LlamaError::form(INDEX, format!("it names {count} files, from 1 to {FILES_MAX} are read")))
        }
    }
}
