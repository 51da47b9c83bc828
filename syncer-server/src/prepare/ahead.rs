//! Checks and facts of a run before it starts, and the secrets that it requires.

use archipelago_cli::range as range_of;
use archipelago_core::diloco::syncer::Syncer;
use archipelago_core::model::{FrozenWeights, ModelError, layout};
use archipelago_core::wire::{FragmentId, Invite, RunId};

use super::{Plan, PlanFacts, Shared};
use crate::config::{self, Role, ServeConfig};
use crate::errors::ServerError;
use crate::initial_model::Origin;
use crate::listener;
use crate::progress::Cancellation;
use crate::status::AdapterFacts;
use crate::store::{Store, fit};

/// Checks settings, data and the run's folder. Changes nothing.
///
/// # Errors
/// - `Preset`, `Setting`, `Config`, `Address`, `Certificate`: a setting is wrong.
/// - `Init`: the run cannot start from the given folder.
/// - `DataUnreadable`, `DataEmpty`, `DataBinary`, `DataMixed`, `DataLine`, `Tokenizer`: the data or the tokenizer
///   cannot be used.
/// - `DataTooSmall`, `DataTooFew`, `Memory`: the data or this machine is too small for the run.
/// - `DirCorrupt`, `Disk`, `OtherRun`: the folder cannot be read, or holds another run.
pub fn validate(config: &ServeConfig) -> Result<PlanFacts, ServerError> {
    let new;
    let config = match config.server.cluster.role {
        Some(_) => {
            new = of_a_part(config);
            &new
        }
        None => config,
    };
    // A process that only leads rounds does not listen.
    if config.server.cluster.role.is_none_or(Role::faces) {
        listener::check(config)?;
    }
    let plan = Plan::of(config, |dir| Ok(Store::open_read_only(dir)), &Cancellation::default())?;
    Shared::of(&plan).map_or(Ok(None), |shared| shared.first())?;
    Ok(plan.facts())
}

/// Returns the id and the fragments of the run that a cluster process with these settings belongs to. Changes nothing.
///
/// # Errors
/// Those of [`validate`]. `Config` also if the settings are those of a whole run.
pub(crate) fn membership(config: &ServeConfig) -> Result<(RunId, Vec<FragmentId>), ServerError> {
    let config = of_a_part(config);
    let plan = Plan::of(&config, |dir| Ok(Store::open_read_only(dir)), &Cancellation::default())?;
    let whole =
        || ServerError::Config { why: "give --role to take part in a run on several machines".to_owned() };
    let shared = Shared::of(&plan).ok_or_else(whole)?;
    Ok((shared.run, shared.fragments.ids().collect()))
}

/// Returns the same settings with an unused folder, because each start of a cluster process uses a new folder.
fn of_a_part(config: &ServeConfig) -> ServeConfig {
    config.clone().with(|it| it.server.dir = config.server.dir.join("processes").join("none"))
}

/// Prepares a cluster process that leads rounds and serves no learners, before it contacts other processes. Creates no
/// parameters of the model.
///
/// # Errors
/// Those of [`validate`], except that parameters are read only when needed. `Config` also if the settings are those of
/// a whole run.
pub(crate) fn to_lead(config: &ServeConfig) -> Result<Shared, ServerError> {
    let plan = Plan::of(config, Store::open, &Cancellation::default())?;
    config.log_effective();
    let whole = || ServerError::Config {
        why: "give --role owner to lead rounds without serving learners".to_owned(),
    };
    Shared::of(&plan).ok_or_else(whole)
}

/// Describes the adapters that a run with `config` trains, as far as settings, its folder and the headers of `--init`
/// determine them. Returns `None` if the run trains all weights.
///
/// # Errors
/// - `Setting`, `Config`, `Init`: there are no weights on which such adapters could be trained.
/// - `DirCorrupt`, `Disk`: the run's folder cannot be read.
pub fn adapters(config: &ServeConfig) -> Result<Option<String>, ServerError> {
    let there = Store::open_read_only(&config.server.dir).manifest()?;
    let Some(decoder) = Origin::of(config, there.as_ref())?.adapters(config)? else { return Ok(None) };
    let form = there.and_then(|there| there.spec.frozen).map_or(config.lora.frozen, |frozen| frozen.form);
    let no_model = |error: ModelError| ServerError::Config { why: error.to_string() };
    let params = layout(&decoder).map_err(no_model)?.len() as u64;
    let bytes = FrozenWeights::bytes_len(&decoder, form).map_err(no_model)?;
    Ok(AdapterFacts::of(&decoder, form, bytes).map(|facts| facts.describe(params)))
}

/// Refuses a stop that would end a resumed run immediately. Warns if the run is complete. A run that is finishing has
/// already reached its stop, so any stop is accepted.
///
/// # Errors
/// `Setting`: the run has already passed the stop.
pub(super) fn check_stop(config: &ServeConfig, syncer: &Syncer) -> Result<(), ServerError> {
    let (stop, counted) = (config.live.stop_at_tokens, syncer.ledger().schedule_tokens());
    let status = syncer.status();
    if status.finished {
        tracing::warn!(
            "the run is complete at {counted} tokens: its pages are served, but it admits no learners, whatever its \
             settings: `syncer-server fork` begins a new run that continues it"
        );
        return Ok(());
    }
    let holds = status.finishing || !(1..=counted).contains(&stop);
    let range = format!(
        "more than the {counted} tokens that are merged already, or 0 for no stop; this value would end the run now, \
         which `syncer-server finish` does"
    );
    Ok(range_of("stop-at-tokens", stop as f64, holds, &range)?)
}

/// Returns the common invite of the run, if any. Creates one if `config` asks for it.
///
/// # Errors
/// - `Config`: the given invite is invalid.
/// - `DirForeign`: the folder holds other files and no run.
/// - `Disk`, `System`: the invite cannot be created or stored.
pub fn invite(config: &ServeConfig) -> Result<Option<Invite>, ServerError> {
    config::invite(config)?;
    fit(&config.server.dir)?;
    Store::open_read_only(&config.server.dir).invite(config.invite.as_deref())
}

/// Returns the owner's token of the run. Creates one if none exists.
///
/// # Errors
/// - `Config`: the given token is too short.
/// - `DirForeign`: the folder holds other files and no run.
/// - `Disk`, `System`: the token cannot be created or stored.
pub fn owner_token(config: &ServeConfig) -> Result<String, ServerError> {
    config::admin_token(config.start.admin_token.as_deref())?;
    fit(&config.server.dir)?;
    Store::open_read_only(&config.server.dir).admin_token(config.start.admin_token.as_deref())
}
