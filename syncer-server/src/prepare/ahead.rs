//! What is told of a run before it begins: whether it could, and the secrets that it will ask for.

use archipelago_core::wire::Invite;

use super::Plan;
use crate::config::{self, ServeConfig};
use crate::errors::ServerError;
use crate::store::{Store, fit};

/// What `validate` tells of a run.
#[derive(Clone, Copy, Debug)]
pub struct PlanFacts {
    /// Parameters of the model.
    pub params: u64,
    /// Tokens to train on.
    pub tokens: u64,
    /// Tokens held out.
    pub held_out: u64,
    /// Whether the folder holds this run already.
    pub resumes: bool,
}

/// Checks settings, data and the run's folder, and changes nothing.
///
/// # Errors
/// - `Preset`, `Setting`, `Config`: a setting is wrong.
/// - `Init`: the run cannot begin with the folder that is asked for.
/// - `DataUnreadable`, `DataEmpty`, `DataBinary`, `DataMixed`, `DataLine`, `Tokenizer`: the data or the tokenizer
///   cannot be used.
/// - `DataTooSmall`, `DataTooFew`, `Memory`: the data or this machine is too small for the run.
/// - `DirCorrupt`, `Disk`, `OtherRun`: the folder cannot be read, or holds another run.
pub fn validate(config: &ServeConfig) -> Result<PlanFacts, ServerError> {
    Plan::of(config, |dir| Ok(Store::look(dir))).map(|plan| plan.facts())
}

/// What learners of the run must show, if anything; it is made now if `config` asks for that.
///
/// # Errors
/// - `Config`: the invite asked for is none.
/// - `DirForeign`: the run's folder holds no run, but something else.
/// - `Disk`, `System`: it cannot be made or kept.
pub fn invite(config: &ServeConfig) -> Result<Option<Invite>, ServerError> {
    config::invite(config)?;
    fit(&config.dir)?;
    Store::look(&config.dir).invite(config.invite.as_deref())
}

/// What the owner of the run shows; it is made now if there is none.
///
/// # Errors
/// - `Config`: the token that is given is too short.
/// - `DirForeign`: the run's folder holds no run, but something else.
/// - `Disk`, `System`: it cannot be made or kept.
pub fn owner_token(config: &ServeConfig) -> Result<String, ServerError> {
    config::admin_token(config.admin_token.as_deref())?;
    fit(&config.dir)?;
    Store::look(&config.dir).admin_token(config.admin_token.as_deref())
}
