//! What is told of a run before it begins: whether it could, and the secrets that it will ask for.

use archipelago_cli::range as range_of;
use archipelago_core::diloco::syncer::Syncer;
use archipelago_core::model::{FrozenWeights, ModelError, layout};
use archipelago_core::wire::{FragmentId, Invite, RunId};

use super::{Plan, PlanFacts, Shared};
use crate::config::{self, ServeConfig};
use crate::errors::ServerError;
use crate::origin::Origin;
use crate::progress::Cancellation;
use crate::status::AdapterFacts;
use crate::store::{Store, fit};

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
    let new;
    let config = match config.cluster.role {
        Some(_) => {
            new = of_a_part(config);
            &new
        }
        None => config,
    };
    let plan = Plan::of(config, |dir| Ok(Store::look(dir)), &Cancellation::default())?;
    Shared::of(&plan).map_or(Ok(None), |shared| shared.first())?;
    Ok(plan.facts())
}

/// The number of the run that a process with these settings is part of, and its fragments; nothing is changed.
///
/// # Errors
/// Those of [`validate`]; `Config` if the process is a whole run.
pub(crate) fn membership(config: &ServeConfig) -> Result<(RunId, Vec<FragmentId>), ServerError> {
    let config = of_a_part(config);
    let plan = Plan::of(&config, |dir| Ok(Store::look(dir)), &Cancellation::default())?;
    let whole =
        || ServerError::Config { why: "give --role to be part of a run on several machines".to_owned() };
    let shared = Shared::of(&plan).ok_or_else(whole)?;
    Ok((shared.run, shared.fragments.ids().collect()))
}

/// The same settings for a part in a run, each start of which works in a folder that is new.
fn of_a_part(config: &ServeConfig) -> ServeConfig {
    ServeConfig { dir: config.dir.join("processes").join("none"), ..config.clone() }
}

/// What a process of several knows of its run before it hears of the others, where it leads rounds and faces nobody:
/// nothing of the model is made.
///
/// # Errors
/// Those of [`validate`], but that parameters are read once they are needed; `Config` if the process is a whole run.
pub(crate) fn to_lead(config: &ServeConfig) -> Result<Shared, ServerError> {
    let plan = Plan::of(config, Store::open, &Cancellation::default())?;
    config.log_effective();
    let whole = || ServerError::Config { why: "give --role owner to lead rounds alone".to_owned() };
    Shared::of(&plan).ok_or_else(whole)
}

/// What adapters the run of `config` trains, in words, as far as settings, its folder and the headers of `--init` tell;
/// `None` if it trains all weights.
///
/// # Errors
/// - `Setting`, `Config`, `Init`: there are no weights that such adapters could be trained on.
/// - `DirCorrupt`, `Disk`: the run's folder cannot be read.
pub fn adapters(config: &ServeConfig) -> Result<Option<String>, ServerError> {
    let there = Store::look(&config.dir).manifest()?;
    let Some(decoder) = Origin::of(config, there.as_ref())?.adapters(config)? else { return Ok(None) };
    let form = there.and_then(|there| there.spec.frozen).map_or(config.lora.frozen, |frozen| frozen.form);
    let no_model = |error: ModelError| ServerError::Config { why: error.to_string() };
    let params = layout(&decoder).map_err(no_model)?.len() as u64;
    let bytes = FrozenWeights::bytes_len(&decoder, form).map_err(no_model)?;
    Ok(AdapterFacts::of(&decoder, form, bytes).map(|facts| facts.describe(params)))
}

/// Refuses a stop that would end a resumed run at once, and warns of a stop that comes too late. A run that is
/// collecting its last updates has reached its stop already.
///
/// # Errors
/// `Setting`: the stop is passed already.
pub(super) fn check_stop(config: &ServeConfig, syncer: &Syncer) -> Result<(), ServerError> {
    let (stop, counted) = (config.stop_at_tokens, syncer.ledger().schedule_tokens());
    let status = syncer.status();
    if status.finished {
        tracing::warn!(
            "the run is complete at {counted} tokens and is shown, but takes in no learners, whatever its settings \
             say: `syncer-server fork` begins a new run that goes on from it"
        );
        return Ok(());
    }
    let holds = status.finishing || !(1..=counted).contains(&stop);
    let range = format!(
        "more than the {counted} tokens that are merged already, or 0 for no stop; this one would end the run now, \
         which `syncer-server finish` does"
    );
    Ok(range_of("stop-at-tokens", stop as f64, holds, &range)?)
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
