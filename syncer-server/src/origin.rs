//! What a run begins with: the shape and the seed of a preset, the model of a folder, or tensors of a file.

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

/// Parameters that are made or read at once: some hundredths of a second.
const PIECE: usize = 1 << 20;

/// The first parameters of a run.
pub(crate) struct Beginning {
    /// Flat, `[len]`.
    pub(crate) theta: Vec<f32>,
    /// What the run remembers of the folder that they are from, if they are from one.
    pub(crate) initial: Option<Initial>,
}

/// What a run of adapters builds on.
#[derive(Default)]
pub(crate) struct Basis {
    /// What learners are told of it; `None` where all weights are trained.
    pub(crate) said: Option<Frozen>,
    /// The weights, where they had to be read.
    pub(crate) weights: Option<Arc<FrozenWeights>>,
}

/// Where the parameters of a run come from.
pub(crate) enum Origin {
    /// From a preset and a seed.
    Seed,
    /// From a folder that the settings name.
    Folder(Folder),
    /// From a file that the settings name: tensors of which learners alone know what they mean.
    Own(Own),
    /// From a folder or a file that the settings do not name any more: the run's own folder keeps what it needs of it.
    Kept(Box<Manifest>),
}

/// A model that is not the built-in decoder, as its file has it.
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
    /// The origin that `config` asks for, in a folder that holds the run `there`, if any.
    ///
    /// # Errors
    /// `Init`: the folder holds no model that a run can begin from.
    pub(crate) fn of(config: &ServeConfig, there: Option<&Manifest>) -> Result<Self, ServerError> {
        if let Some(path) = &config.params {
            return Own::open(path).map(Self::Own).map_err(unusable(path));
        }
        match (&config.init, there) {
            (Some(path), _) => {
                Folder::open(path, config.context.map(Into::into)).map(Self::Folder).map_err(unusable(path))
            }
            (None, Some(manifest)) if manifest.init.is_some() => Ok(Self::Kept(Box::new(manifest.clone()))),
            (None, _) => Ok(Self::Seed),
        }
    }

    /// The tokenizer that belongs to the model, if one does.
    pub(crate) fn tokenizer(&self, store: &Store) -> Option<PathBuf> {
        match self {
            Self::Seed | Self::Own(_) => None,
            Self::Kept(manifest) if manifest.spec.model.architecture.name != DECODER => None,
            Self::Folder(folder) => Some(folder.tokenizer()),
            Self::Kept(_) => Some(store.tokenizer_path()),
        }
    }

    /// How the model writes conversations: as `config` says, or as the folder does. Where no conversation is trained
    /// on, what is wrong with that matters to nobody.
    ///
    /// # Errors
    /// - `Init`: what the folder says of it cannot be used.
    /// - `Config`: the template that is asked for cannot be read.
    pub(crate) fn chat(&self, config: &ServeConfig, has_lines: bool) -> Result<Chat, ServerError> {
        let mut chat = match self {
            Self::Seed | Self::Own(_) => Chat::default(),
            Self::Kept(manifest) => manifest.chat.clone(),
            Self::Folder(folder) => match folder.chat() {
                Err(_) if !has_lines => Chat::default(),
                read => read.map_err(unusable(config.init.as_deref().unwrap_or(Path::new(""))))?,
            },
        };
        if let Some(path) = &config.chat_template {
            (chat.template, chat.tool_use) = (Some(chat_template(path)?), None);
        }
        Ok(chat)
    }

    /// The model's tokens with a meaning of their own, if it is from a folder.
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

    /// Refuses a vocabulary and a text with tokens for which the model of a folder has no row.
    ///
    /// # Errors
    /// `Init`: names the token.
    pub(crate) fn check_tokens(&self, corpus: &Corpus) -> Result<(), ServerError> {
        let Self::Folder(folder) = self else { return Ok(()) };
        let (vocabulary, highest) = (&corpus.vocabulary, corpus.token_max);
        let without_row = vocabulary.without_row(folder.model().vocab);
        let checked = folder.check_vocab(vocabulary.size(), without_row, (highest, vocabulary.name(highest)));
        checked.map_err(unusable(folder.path()))
    }

    /// The model, for a tokenizer with `tokens` tokens.
    ///
    /// # Errors
    /// - `Preset`: there is none of that name.
    /// - `Setting`: its experts, its adapters or its windows are out of range.
    /// - `Config`: the name or the settings of an architecture are none for this model, experts are asked for where
    ///   the model has its own, or adapters where there is no dense Llama to train them on.
    /// - `Internal`: what is kept is no model.
    pub(crate) fn model(&self, config: &ServeConfig, tokens: u32) -> Result<Model, ServerError> {
        let experts = config.experts.spec()?;
        if experts.is_some() && matches!(self, Self::Own(_) | Self::Folder(_)) {
            let why = "--experts is for models that begin at random: what --init or --params begins with has its own";
            return Err(ServerError::Config { why: why.to_owned() });
        }
        let lora = config.lora.spec()?;
        if lora.is_some() {
            self.takes_adapters()?;
        }
        let context = |context: u32| config.context.map_or(context, Into::into);
        let of = |decoder: ModelSpec| {
            ModelSpec { context: context(decoder.context), lora: lora.or(decoder.lora), ..decoder }.into()
        };
        let model = match self {
            Self::Seed => of(ModelSpec { experts, ..preset(config)?.model(tokens) }),
            // Of a model of one's own that is not the decoder, window and vocabulary are taken.
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
        let why = match (is_decoder, &config.architecture, &config.evaluator) {
            (true, Some(_), _) => "--architecture names a model of your own: give its tensors with --params",
            (true, None, Some(_)) => {
                "--evaluator is for a model of your own: the syncer measures the built-in decoder itself"
            }
            _ => return Ok(model),
        };
        Err(ServerError::Config { why: why.into() })
    }

    /// Sees to it that there are weights that adapters can be trained on.
    ///
    /// # Errors
    /// `Config`: there are none.
    fn takes_adapters(&self) -> Result<(), ServerError> {
        let why = match self {
            Self::Seed => {
                "--lora-rank trains adapters on a model that there is already: give its folder with --init, or leave \
                 --lora-rank out to train all weights"
            }
            Self::Own(_) => {
                "--lora-rank is for a Llama that --init begins with: what the model of --params trains, its own \
                 program says"
            }
            Self::Folder(folder) if folder.model().experts.is_some() => {
                "--lora-rank is for dense models, and the one of --init has experts: leave --lora-rank out to train \
                 all of it"
            }
            Self::Folder(_) | Self::Kept(_) => return Ok(()),
        };
        Err(ServerError::Config { why: why.to_owned() })
    }

    /// The decoder whose adapters are trained, with a window of its own; `None` if all weights are trained.
    ///
    /// # Errors
    /// - `Setting`: the adapters are out of range.
    /// - `Config`: there are no weights that adapters could be trained on.
    /// - `Internal`: what is kept is no model.
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

    /// What `model` builds on and does not train, if it is adapters: of a folder the weights themselves, of a run that
    /// goes on what it says of them.
    ///
    /// # Errors
    /// `Init`: the folder's parameters cannot be read or held.
    pub(crate) fn basis(&self, config: &ServeConfig, model: &Model) -> Result<Basis, ServerError> {
        let Some(decoder) = decoder(model)?.filter(|decoder| decoder.lora.is_some()) else {
            return Ok(Basis::default());
        };
        match self {
            Self::Folder(folder) => {
                let path = config.init.as_deref().unwrap_or(Path::new(""));
                let theta = folder.params().map_err(unusable(path))?;
                let weights = FrozenWeights::quantised(&decoder, &theta, config.lora.frozen);
                let weights = weights.map_err(|error| no_model(&error))?;
                let said = Frozen::of(weights.form(), weights.bytes());
                Ok(Basis { said: Some(said), weights: Some(Arc::new(weights)) })
            }
            Self::Kept(manifest) => Ok(Basis { said: manifest.spec.frozen.clone(), weights: None }),
            Self::Seed | Self::Own(_) => Ok(Basis::default()),
        }
    }

    /// The name of the folder or the file, if it is one.
    pub(crate) fn folder(&self) -> Option<String> {
        match self {
            Self::Seed => None,
            Self::Own(own) => Some(own.name.clone()),
            Self::Folder(folder) => Some(folder.name()),
            Self::Kept(manifest) => manifest.init.as_ref().map(|initial| initial.folder.clone()),
        }
    }

    /// The parameters that the run begins with.
    ///
    /// # Errors
    /// - `Init`: the folder's parameters cannot be read or held.
    /// - `DirCorrupt`: those that are kept are damaged.
    /// - `Internal`: `spec` is no model.
    /// - `Cancelled`.
    pub(crate) fn beginning(
        &self,
        store: &Store,
        spec: &RunSpec,
        layout: &Layout,
        cancellation: &Cancellation,
    ) -> Result<Beginning, ServerError> {
        if let Self::Kept(manifest) = self {
            return Ok(Beginning { theta: store.initial(manifest)?, initial: manifest.init.clone() });
        }
        let theta = self.all(spec, layout, cancellation)?;
        let initial = self.named(|| Initial::digest(&theta));
        Ok(Beginning { theta, initial })
    }

    /// Returns all parameters, flat. They are made or read in pieces.
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

    /// Those in these ranges of the flat vector, one after another, and nothing else of them is held.
    ///
    /// # Errors
    /// - `Init`: the folder's parameters cannot be read or held.
    /// - `Internal`: `spec` is no model, or the run goes on in a folder of its own.
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

    /// What a run remembers of the folder or the file that it begins with, if there is one, by the checksum of its
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

/// What `config` calls the architecture of a model of one's own.
///
/// # Errors
/// `Config`: it is called as the built-in decoder is, or too long.
fn architecture(config: &ServeConfig) -> Result<Architecture, ServerError> {
    let name = config.architecture.clone().unwrap_or_default();
    let settings = config.architecture_settings.clone().unwrap_or_default().into_bytes();
    let why = if name == DECODER {
        format!("--architecture {DECODER:?} is what the built-in decoder is called: give another name")
    } else if name.len() > ARCHITECTURE_NAME_BYTES_MAX as usize {
        format!("--architecture has {} bytes: give at most {ARCHITECTURE_NAME_BYTES_MAX}", name.len())
    } else if settings.len() > ARCHITECTURE_BYTES_MAX as usize {
        let (found, most) = (settings.len(), ARCHITECTURE_BYTES_MAX);
        format!(
            "--architecture-settings has {found} bytes: give at most {most}, and the rest to your learners"
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
            format!("it has {} bytes, at most {TEMPLATE_BYTES_MAX} are read", bytes.len())
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
