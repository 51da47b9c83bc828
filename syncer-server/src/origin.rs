//! What a run begins with: the shape and the seed of a preset, or the model of a folder.

use std::path::PathBuf;

use archipelago::model::{self, ModelSpec};
use archipelago::wire::RunSpec;

use crate::config::{ServeConfig, preset};
use crate::errors::ServerError;
use crate::llama::{Folder, LlamaError};
use crate::store::{Initial, Manifest, Store};

/// The first parameters of a run.
pub(crate) struct Beginning {
    /// Flat, `[len]`.
    pub(crate) theta: Vec<f32>,
    /// What the run remembers of the folder that they are from, if they are from one.
    pub(crate) initial: Option<Initial>,
}

/// Where the parameters of a run come from.
pub(crate) enum Origin {
    /// From a preset and a seed.
    Seed,
    /// From a folder that the settings name.
    Folder(Folder),
    /// From a folder that the settings do not name any more: the run's own folder keeps what it needs of it.
    Kept(Box<Manifest>),
}

impl Origin {
    /// The origin that `config` asks for, in a folder that holds the run `there`, if any.
    ///
    /// # Errors
    /// `Init`: the folder holds no model that a run can begin from.
    pub(crate) fn of(config: &ServeConfig, there: Option<&Manifest>) -> Result<Self, ServerError> {
        match (&config.init, there) {
            (Some(path), _) => {
                Folder::open(path, config.context.map(Into::into)).map(Self::Folder).map_err(unusable(config))
            }
            (None, Some(manifest)) if manifest.init.is_some() => Ok(Self::Kept(Box::new(manifest.clone()))),
            (None, _) => Ok(Self::Seed),
        }
    }

    /// The tokenizer that belongs to the model, if one does.
    pub(crate) fn tokenizer(&self, store: &Store) -> Option<PathBuf> {
        match self {
            Self::Seed => None,
            Self::Folder(folder) => Some(folder.tokenizer()),
            Self::Kept(_) => Some(store.tokenizer_path()),
        }
    }

    /// The shape of the model, for a tokenizer with `tokens` tokens.
    ///
    /// # Errors
    /// - `Init`: the model has fewer tokens.
    /// - `Preset`: there is none of that name.
    pub(crate) fn model(&self, config: &ServeConfig, tokens: u32) -> Result<ModelSpec, ServerError> {
        let mut model = match self {
            Self::Seed => preset(config)?.model(tokens),
            Self::Folder(folder) => {
                folder.check_vocab(tokens).map_err(unusable(config))?;
                *folder.model()
            }
            Self::Kept(manifest) => manifest.spec.model,
        };
        model.context = config.context.map_or(model.context, Into::into);
        Ok(model)
    }

    /// The name of the folder, if it is one.
    pub(crate) fn folder(&self) -> Option<String> {
        match self {
            Self::Seed => None,
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
    pub(crate) fn beginning(
        &self,
        config: &ServeConfig,
        store: &Store,
        spec: &RunSpec,
    ) -> Result<Beginning, ServerError> {
        match self {
            Self::Seed => model::init(&spec.model, spec.seed)
                .map(|theta| Beginning { theta, initial: None })
                .map_err(|error| ServerError::Internal { what: error.to_string() }),
            Self::Folder(folder) => {
                let theta = folder.params().map_err(unusable(config))?;
                let initial = Some(Initial::of(folder.name(), folder.special().clone(), &theta));
                Ok(Beginning { theta, initial })
            }
            Self::Kept(manifest) => {
                Ok(Beginning { theta: store.initial(manifest)?, initial: manifest.init.clone() })
            }
        }
    }
}

fn unusable(config: &ServeConfig) -> impl Fn(LlamaError) -> ServerError {
    let dir = config.init.clone().unwrap_or_default();
    move |why| ServerError::Init { dir: dir.clone(), why }
}
