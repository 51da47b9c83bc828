//! Initial parameters of a run: the shape and seed of a preset, the model of a folder, or the tensors of a file.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use archipelago_core::diloco::Layout;
use archipelago_core::model::{self, DECODER, FrozenWeights, ModelSpec};
use archipelago_core::wire::{
    ARCHITECTURE_BYTES_MAX, ARCHITECTURE_NAME_BYTES_MAX, Architecture, Frozen, Model, RunSpec,
};

use crate::config::{ServeConfig, check_context, preset};
use crate::corpus::Corpus;
use crate::errors::ServerError;
use crate::llama::{Chat, Folder, LlamaError, SpecialTokens, TEMPLATE_BYTES_MAX, Tensors};
use crate::progress::{Cancellation, Progress, Unit};
use crate::store::{Initial, Manifest, Store, decoder};

/// Parameters computed or read between two checks for cancellation, which takes some tens of milliseconds.
const PIECE: usize = 1 << 20;

/// Initial parameters of a run, with their source.
pub(crate) struct StartingPoint {
    /// All parameters as one flat vector, `[len]`.
    pub(crate) theta: Vec<f32>,
    /// The record of the source folder, if the parameters came from one.
    pub(crate) initial: Option<Initial>,
}

/// Frozen weights to which a run adds adapters.
#[derive(Default)]
pub(crate) struct FrozenBase {
    /// Description of the weights for learners; `None` if all weights are trained.
    pub(crate) said: Option<Frozen>,
    /// The weights; `None` if all weights are trained, or if the run resumes from its own folder.
    pub(crate) weights: Option<Arc<FrozenWeights>>,
}

/// The source of a run's parameters.
pub(crate) enum Origin {
    /// A preset and a seed.
    Seed,
    /// A folder named by the settings.
    Folder(Folder),
    /// A file named by the settings. Only learners know the meaning of its tensors.
    Own(Own),
    /// A folder or file that the settings no longer name. The run's own folder keeps the parts of it that are needed.
    Kept(Box<Manifest>),
}

/// A model from a file that is not the built-in decoder.
pub(crate) struct Own {
    path: PathBuf,
    tensors: Tensors,
    layout: Layout,
    name: String,
}

impl Own {
    fn open(path: &Path) -> Result<Self, LlamaError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let tensors = Tensors::open(path.parent().unwrap_or(Path::new("")), vec![name.clone()])?;
        let layout = tensors.layout()?;
        Ok(Self { path: path.to_owned(), tensors, layout, name })
    }
}

impl Origin {
    /// Returns the origin that `config` asks for. `there` is the manifest of the run that already exists in its
    /// folder.
    ///
    /// # Errors
    /// `Init`: the folder holds no model that a run can start from.
    pub(crate) fn of(config: &ServeConfig, there: Option<&Manifest>) -> Result<Self, ServerError> {
        if let Some(path) = &config.initial.params {
            return Own::open(path).map(Self::Own).map_err(unusable(path));
        }
        match (&config.initial.init, there) {
            (Some(path), _) => Folder::open(path, config.identity.context.map(Into::into))
                .map(Self::Folder)
                .map_err(unusable(path)),
            (None, Some(manifest)) if manifest.init.is_some() => Ok(Self::Kept(Box::new(manifest.clone()))),
            (None, _) => Ok(Self::Seed),
        }
    }

    /// Returns the path of the tokenizer that belongs to the model, if there is one.
    pub(crate) fn tokenizer(&self, store: &Store) -> Option<PathBuf> {
        match self {
            Self::Seed | Self::Own(_) => None,
            Self::Kept(manifest) if manifest.spec.model.architecture.name != DECODER => None,
            Self::Folder(folder) => Some(folder.tokenizer()),
            Self::Kept(_) => Some(store.tokenizer_path()),
        }
    }

    /// Returns the chat format of the model's folder. A template that `config` names replaces the folder's. If the
    /// data has no documents (`has_lines` is false), errors in the folder's format are ignored.
    ///
    /// # Errors
    /// - `Init`: the chat format of the folder cannot be used.
    /// - `Config`: the requested template cannot be read.
    pub(crate) fn chat(&self, config: &ServeConfig, has_lines: bool) -> Result<Chat, ServerError> {
        let mut chat = match self {
            Self::Seed | Self::Own(_) => Chat::default(),
            Self::Kept(manifest) => manifest.chat.clone(),
            Self::Folder(folder) => match folder.chat() {
                Err(_) if !has_lines => Chat::default(),
                read => read.map_err(unusable(config.initial.init.as_deref().unwrap_or(Path::new(""))))?,
            },
        };
        if let Some(path) = &config.initial.chat_template {
            (chat.template, chat.tool_use) = (Some(chat_template(path)?), None);
        }
        Ok(chat)
    }

    /// Returns the special tokens of the model, if it came from a folder.
    fn special(&self) -> Option<&SpecialTokens> {
        match self {
            Self::Seed | Self::Own(_) => None,
            Self::Folder(folder) => Some(folder.special()),
            Self::Kept(manifest) => manifest.init.as_ref().map(|initial| &initial.special),
        }
    }

    /// Returns the token that ends texts, if the model has one.
    pub(crate) fn end(&self) -> Option<u32> {
        self.special().and_then(|special| special.eos.first().copied())
    }

    /// Returns the tokens at which the model stops writing, according to its folder.
    pub(crate) fn stops(&self) -> Vec<u32> {
        self.special().map(SpecialTokens::stops).unwrap_or_default()
    }

    /// Rejects a vocabulary or text with tokens for which the folder's model has no embedding row.
    ///
    /// # Errors
    /// `Init`: there is such a token; the error names it.
    pub(crate) fn check_tokens(&self, corpus: &Corpus) -> Result<(), ServerError> {
        let Self::Folder(folder) = self else { return Ok(()) };
        let (vocabulary, highest) = (&corpus.vocabulary, corpus.token_max);
        let without_row = vocabulary.without_row(folder.model().vocab);
        let checked = folder.check_vocab(vocabulary.size(), without_row, (highest, vocabulary.name(highest)));
        checked.map_err(unusable(folder.path()))
    }

    /// Returns the model for a tokenizer with `tokens` tokens.
    ///
    /// # Errors
    /// - `Preset`: there is no preset of that name.
    /// - `Setting`: its experts, adapters or windows are out of range.
    /// - `Config`: the name or settings of the architecture do not fit this model; experts are asked for where the
    ///   model has its own; or adapters are asked for without a dense Llama to train them on.
    /// - `Internal`: the stored model is invalid.
    pub(crate) fn model(&self, config: &ServeConfig, tokens: u32) -> Result<Model, ServerError> {
        let experts = config.experts.spec()?;
        if experts.is_some() && matches!(self, Self::Own(_) | Self::Folder(_)) {
            let why = "--experts is for models with random initial parameters: the model of --init or --params has \
                 its own";
            return Err(ServerError::Config { why: why.to_owned() });
        }
        let lora = config.lora.spec()?;
        if lora.is_some() {
            self.takes_adapters()?;
        }
        let context = |context: u32| config.identity.context.map_or(context, Into::into);
        let of = |decoder: ModelSpec| {
            ModelSpec { context: context(decoder.context), lora: lora.or(decoder.lora), ..decoder }.into()
        };
        let model = match self {
            Self::Seed => of(ModelSpec { experts, ..preset(config)?.model(tokens) }),
            // From a custom model, only window and vocabulary are taken.
            Self::Own(own) => Model {
                context: context(preset(config)?.model(tokens).context),
                vocab: tokens,
                tensors: own.layout.tensors().to_vec(),
                architecture: architecture(config)?,
                experts: None,
            },
            Self::Folder(folder) => of(*folder.model()),
            Self::Kept(manifest) => match manifest.decoder()? {
                Some(decoder) => of(decoder),
                None => {
                    let model = manifest.spec.model.clone();
                    Model { context: context(model.context), ..model }
                }
            },
        };
        check_context(model.context)?;
        let is_decoder = decoder(&model)?.is_some();
        let why = match (is_decoder, &config.identity.architecture, &config.evaluator) {
            (true, Some(_), _) => "--architecture names a model of your own: give its tensors with --params",
            (true, None, Some(_)) => {
                "--evaluator is for a model of your own: the syncer measures the built-in decoder itself"
            }
            _ => return Ok(model),
        };
        Err(ServerError::Config { why: why.into() })
    }

    /// Checks that there are weights to train adapters on.
    ///
    /// # Errors
    /// `Config`: there are no such weights.
    fn takes_adapters(&self) -> Result<(), ServerError> {
        let why = match self {
            Self::Seed => {
                "--lora-rank trains adapters on an existing model: give its folder with --init, or leave --lora-rank \
                 out to train all weights"
            }
            Self::Own(_) => {
                "--lora-rank is for a Llama given with --init: the program that belongs to --params decides what it \
                 trains"
            }
            Self::Folder(folder) if folder.model().experts.is_some() => {
                "--lora-rank is for dense models, but the one of --init has experts: leave --lora-rank out to train \
                 all of it"
            }
            Self::Folder(_) | Self::Kept(_) => return Ok(()),
        };
        Err(ServerError::Config { why: why.to_owned() })
    }

    /// Returns the decoder whose adapters are trained, with the context length of its origin; `None` if all weights
    /// are trained.
    ///
    /// # Errors
    /// - `Setting`: the adapters are out of range.
    /// - `Config`: there are no weights to train adapters on.
    /// - `Internal`: the stored model is invalid.
    pub(crate) fn adapters(&self, config: &ServeConfig) -> Result<Option<ModelSpec>, ServerError> {
        let lora = config.lora.spec()?;
        if lora.is_some() {
            self.takes_adapters()?;
        }
        let decoder = match self {
            Self::Folder(folder) => Some(*folder.model()),
            Self::Kept(manifest) => manifest.decoder()?,
            Self::Seed | Self::Own(_) => None,
        };
        let with = |decoder: ModelSpec| ModelSpec { lora: lora.or(decoder.lora), ..decoder };
        Ok(decoder.map(with).filter(|decoder| decoder.lora.is_some()))
    }

    /// Returns the frozen weights to which `model` adds adapters; empty for a model without adapters. A folder provides
    /// the weights and their description, a resumed run only their description.
    ///
    /// # Errors
    /// - `Init`: the folder's parameters cannot be read or held in memory.
    /// - `Internal`: `model` is invalid, or the weights do not fit it.
    pub(crate) fn frozen_base(&self, config: &ServeConfig, model: &Model) -> Result<FrozenBase, ServerError> {
        let Some(decoder) = decoder(model)?.filter(|decoder| decoder.lora.is_some()) else {
            return Ok(FrozenBase::default());
        };
        match self {
            Self::Folder(folder) => {
                let path = config.initial.init.as_deref().unwrap_or(Path::new(""));
                let theta = folder.params().map_err(unusable(path))?;
                let weights = FrozenWeights::quantised(&decoder, &theta, config.lora.frozen);
                let weights = weights.map_err(|error| no_model(&error))?;
                let said = Frozen::of(weights.form(), weights.bytes());
                Ok(FrozenBase { said: Some(said), weights: Some(Arc::new(weights)) })
            }
            Self::Kept(manifest) => Ok(FrozenBase { said: manifest.spec.frozen.clone(), weights: None }),
            Self::Seed | Self::Own(_) => Ok(FrozenBase::default()),
        }
    }

    /// Returns the name of the source folder or file, if there is one.
    pub(crate) fn folder(&self) -> Option<String> {
        match self {
            Self::Seed => None,
            Self::Own(own) => Some(own.name.clone()),
            Self::Folder(folder) => Some(folder.name()),
            Self::Kept(manifest) => manifest.init.as_ref().map(|initial| initial.folder.clone()),
        }
    }

    /// Returns the initial parameters of the run.
    ///
    /// # Errors
    /// - `Init`: the folder's parameters cannot be read or held in memory.
    /// - `DirCorrupt`: the stored parameters are damaged.
    /// - `Internal`: `spec` is not a valid model.
    /// - `Cancelled`.
    pub(crate) fn beginning(
        &self,
        store: &Store,
        spec: &RunSpec,
        layout: &Layout,
        cancellation: &Cancellation,
    ) -> Result<StartingPoint, ServerError> {
        if let Self::Kept(manifest) = self {
            return Ok(StartingPoint { theta: store.initial(manifest)?, initial: manifest.init.clone() });
        }
        let theta = self.all(spec, layout, cancellation)?;
        let initial = self.named(|| Initial::digest(&theta));
        Ok(StartingPoint { theta, initial })
    }

    /// Computes or reads all parameters in pieces, and returns them as one flat vector.
    fn all(
        &self,
        spec: &RunSpec,
        layout: &Layout,
        cancellation: &Cancellation,
    ) -> Result<Vec<f32>, ServerError> {
        let (what, len) = (
            if matches!(self, Self::Seed) { "making parameters" } else { "reading parameters" },
            layout.len(),
        );
        let progress = Progress::of(cancellation, what, len as u64, Unit::Parameters);
        let mut theta = Vec::with_capacity(len);
        for start in (0..len).step_by(PIECE) {
            let piece = start..len.min(start + PIECE);
            progress.add(piece.len() as u64)?;
            theta.append(&mut self.within(spec, layout, std::slice::from_ref(&piece))?);
        }
        Ok(theta)
    }

    /// Returns the parameters in `ranges` of the flat vector, concatenated. Other parameters are not loaded.
    ///
    /// # Errors
    /// - `Init`: the folder's parameters cannot be read or held in memory.
    /// - `Internal`: `spec` is not a valid model, or the run resumes from its own folder.
    pub(crate) fn within(
        &self,
        spec: &RunSpec,
        layout: &Layout,
        ranges: &[Range<usize>],
    ) -> Result<Vec<f32>, ServerError> {
        let drawn = |decoder: &ModelSpec| {
            model::init_within(decoder, spec.seed, ranges).map_err(|error| no_model(&error))
        };
        match self {
            Self::Seed => drawn(&ModelSpec::of(&spec.model).map_err(|error| no_model(&error))?),
            Self::Folder(folder) => match decoder(&spec.model)?.filter(|decoder| decoder.lora.is_some()) {
                Some(adapters) => drawn(&adapters),
                None => folder.tensors().read_within(layout, ranges).map_err(unusable(folder.path())),
            },
            Self::Own(own) => own.tensors.read_within(layout, ranges).map_err(unusable(&own.path)),
            Self::Kept(_) => {
                Err(ServerError::Internal { what: "a run's own folder is read as a whole".to_owned() })
            }
        }
    }

    /// Returns the run's record of its source folder or file, if there is one. `sha256` returns the checksum of its
    /// parameters.
    pub(crate) fn named(&self, sha256: impl FnOnce() -> String) -> Option<Initial> {
        match self {
            Self::Seed => None,
            Self::Folder(folder) => {
                let source = Some(Box::new(folder.settings().clone()));
                let (folder, special) = (folder.name(), folder.special().clone());
                Some(Initial { folder, sha256: sha256(), special, source })
            }
            Self::Own(own) => {
                let (folder, special) = (own.name.clone(), SpecialTokens::default());
                Some(Initial { folder, sha256: sha256(), special, source: None })
            }
            Self::Kept(manifest) => manifest.init.clone(),
        }
    }
}

/// Returns the architecture of a custom model as `config` names it.
///
/// # Errors
/// `Config`: the name is that of the built-in decoder, or the name or the settings are too long.
fn architecture(config: &ServeConfig) -> Result<Architecture, ServerError> {
    let name = config.identity.architecture.clone().unwrap_or_default();
    let settings = config.identity.architecture_settings.clone().unwrap_or_default().into_bytes();
    let why = if name == DECODER {
        format!("--architecture {DECODER:?} is the name of the built-in decoder: give another name")
    } else if name.len() > ARCHITECTURE_NAME_BYTES_MAX as usize {
        format!("--architecture has {} bytes: give at most {ARCHITECTURE_NAME_BYTES_MAX}", name.len())
    } else if settings.len() > ARCHITECTURE_BYTES_MAX as usize {
        let (found, most) = (settings.len(), ARCHITECTURE_BYTES_MAX);
        format!(
            "--architecture-settings has {found} bytes: give at most {most}, and pass the rest to your learners \
             another way"
        )
    } else {
        return Ok(Architecture { name, settings });
    };
    Err(ServerError::Config { why })
}

fn chat_template(path: &Path) -> Result<String, ServerError> {
    let why = match std::fs::read(path) {
        Err(error) => error.to_string(),
        Ok(bytes) if bytes.len() as u64 > TEMPLATE_BYTES_MAX => {
            format!("it has {} bytes, but at most {TEMPLATE_BYTES_MAX} are read", bytes.len())
        }
        Ok(bytes) => match String::from_utf8(bytes) {
            Ok(template) => return Ok(template),
            Err(_) => "it is not UTF-8 text".to_owned(),
        },
    };
    let why =
        format!("cannot read the chat template {}: {why}; give --chat-template another file", path.display());
    Err(ServerError::Config { why })
}

fn no_model(error: &dyn std::fmt::Display) -> ServerError {
    ServerError::Internal { what: format!("the run cannot be set up: {error}") }
}

fn unusable(path: &Path) -> impl Fn(LlamaError) -> ServerError {
    move |why| ServerError::Init { dir: path.to_owned(), why }
}
