//! From settings to what the core is told.

use archipelago::diloco::syncer::SyncerConfig;
use archipelago::diloco::{MergeRule, OuterSpec, QuorumPolicy};
use archipelago::model::Preset;
use archipelago::wire::{ApplyPolicy, Code, DataSpec, ExchangeSpec, INVITE_BYTES_MAX, RunSpec};

use super::ServeConfig;
use crate::errors::ServerError;

/// What learners are told of the run, for a vocabulary of `vocab` tokens and these shards.
///
/// # Errors
/// - `Preset`: there is none of that name.
/// - `Config`: a setting is out of range.
pub fn run_spec(config: &ServeConfig, vocab: u32, data: DataSpec) -> Result<RunSpec, ServerError> {
    let preset = preset(config)?;
    let mut inner = preset.inner();
    inner.batch = config.batch.map_or(inner.batch, Into::into);
    inner.lr_max = config.lr.unwrap_or(inner.lr_max);
    if let Some(total_tokens) = config.total_tokens {
        inner.total_tokens = total_tokens.max(1);
        // The preset's share of the run, whatever its length.
        inner.warmup_tokens =
            total_tokens / (preset.inner().total_tokens / preset.inner().warmup_tokens).max(1);
    }
    range("lr", inner.lr_max.into(), inner.lr_max.is_finite() && inner.lr_max > 0.0, "a number above 0")?;
    range("sync-every", config.sync_every.into(), config.sync_every > 0, "1 or more")?;
    range("fragments", config.fragments.into(), config.fragments > 0, "1 or more")?;
    let block = config.block;
    let block_holds = block.is_multiple_of(8) && (8..=1 << 16).contains(&block);
    range("block", block.into(), block_holds, "a multiple of 8 from 8 to 65536")?;
    let exchange = ExchangeSpec {
        fragments: config.fragments,
        sync_every: config.sync_every,
        block,
        code: code(&config.code)?,
        apply: apply(&config.apply)?,
    };
    Ok(RunSpec { model: preset.model(vocab), inner, exchange, data, seed: config.seed })
}

/// The syncer's own knobs.
///
/// # Errors
/// `Config`: a setting is out of range.
pub fn syncer_config(config: &ServeConfig) -> Result<SyncerConfig, ServerError> {
    let (lr, momentum) = (config.outer_lr, config.outer_momentum);
    range("outer-lr", lr.into(), lr.is_finite() && lr > 0.0, "a number above 0")?;
    range("outer-momentum", momentum.into(), (0.0..1.0).contains(&momentum), "a number from 0 to below 1")?;
    range(
        "grace-ratio",
        config.grace_ratio,
        (0.0..=1.0).contains(&config.grace_ratio),
        "a number from 0 to 1",
    )?;
    for (flag, value) in [
        ("rounds-in-flight", config.rounds_in_flight),
        ("learners-max", config.learners_max),
        ("learners-start", config.learners_start),
        ("cohort-max", config.cohort_max),
    ] {
        range(flag, value.into(), value > 0, "1 or more")?;
    }
    let merge = match config.merge.as_str() {
        "radial" => MergeRule::Radial,
        "mean" => MergeRule::Mean,
        other => return Err(choice("merge", other, "radial or mean")),
    };
    let quorum = QuorumPolicy {
        updates_min: config.min_quorum,
        grace_ratio: config.grace_ratio,
        rounds_in_flight: config.rounds_in_flight,
        ..QuorumPolicy::default()
    };
    Ok(SyncerConfig {
        quorum,
        outer: OuterSpec { lr, momentum },
        merge,
        learners_start: config.learners_start,
        learners_max: config.learners_max,
        cohort_max: config.cohort_max,
        stop_tokens: config.stop_at_tokens,
        ..SyncerConfig::default()
    })
}

/// The value of `--invite` that has one made.
pub const INVITE_AUTO: &str = "auto";

/// Checks the invite asked for, if one is.
///
/// # Errors
/// `Config`: it is too short to be a secret, or no link could carry it.
pub fn invite(config: &ServeConfig) -> Result<(), ServerError> {
    let Some(invite) = config.invite.as_deref().filter(|invite| *invite != INVITE_AUTO) else {
        return Ok(());
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match (8..=INVITE_BYTES_MAX as usize).contains(&invite.len()) && invite.chars().all(plain) {
        true => Ok(()),
        // What was given is not repeated: it may be a secret with a slip in it.
        false => {
            let why = format!(
                "--invite is no invite: give 8 to {INVITE_BYTES_MAX} letters, digits, - and _, or {INVITE_AUTO}"
            );
            Err(ServerError::Config { why })
        }
    }
}

/// The preset asked for.
///
/// # Errors
/// `Preset`: there is none of that name.
pub fn preset(config: &ServeConfig) -> Result<Preset, ServerError> {
    let unknown = |error: archipelago::model::UnknownPreset| ServerError::Preset { why: error.to_string() };
    config.preset.parse().map_err(unknown)
}

fn code(name: &str) -> Result<Code, ServerError> {
    match name {
        "int4" => Ok(Code::Int4),
        "e3m0" => Ok(Code::E3m0),
        "f32" => Ok(Code::F32),
        other => Err(choice("code", other, "int4, e3m0 or f32")),
    }
}

fn apply(name: &str) -> Result<ApplyPolicy, ServerError> {
    let blend = |share: &str| share.parse().ok().filter(|alpha| (0.0..=1.0).contains(alpha));
    match name {
        "keep" => Ok(ApplyPolicy::Keep { residue: false }),
        "keep-residue" => Ok(ApplyPolicy::Keep { residue: true }),
        "overwrite" => Ok(ApplyPolicy::Overwrite),
        other => match other.strip_prefix("blend=").and_then(blend) {
            Some(alpha) => Ok(ApplyPolicy::Blend { alpha }),
            None => {
                Err(choice("apply", other, "keep, keep-residue, overwrite or blend=SHARE, SHARE from 0 to 1"))
            }
        },
    }
}

fn range(flag: &str, value: f64, holds: bool, range: &str) -> Result<(), ServerError> {
    let why = || format!("--{flag} {value} is out of range: give {range}");
    if holds { Ok(()) } else { Err(ServerError::Config { why: why() }) }
}

fn choice(flag: &str, found: &str, choices: &str) -> ServerError {
    ServerError::Config { why: format!("--{flag} {found} does not exist: give {choices}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(change: impl FnOnce(&mut ServeConfig)) -> Result<RunSpec, ServerError> {
        let mut config = ServeConfig::default();
        change(&mut config);
        syncer_config(&config)?;
        invite(&config)?;
        run_spec(&config, 256, DataSpec { token_bytes: 2, shards: vec![] })
    }

    #[test]
    fn refuses_what_is_out_of_range() {
        let check = |code, change: fn(&mut ServeConfig)| {
            let error = spec(change).unwrap_err();
            assert_eq!(error.exit_code(), code, "{error}");
        };
        check(8, |config| config.preset = "huge".into());
        check(3, |config| config.code = "int3".into());
        check(3, |config| config.apply = "blend=2".into());
        check(3, |config| config.merge = "median".into());
        check(3, |config| config.block = 12);
        check(3, |config| config.lr = Some(f32::NAN));
        check(3, |config| config.outer_momentum = 1.0);
        check(3, |config| config.grace_ratio = -0.1);
        check(3, |config| config.sync_every = 0);
        check(3, |config| config.cohort_max = 0);
        check(3, |config| config.invite = Some("short".into()));
        check(3, |config| config.invite = Some("with space".into()));
        assert!(spec(|config| config.invite = Some(INVITE_AUTO.into())).is_ok());
        assert!(spec(|config| config.invite = Some("open-sesame_1".into())).is_ok());
    }

    #[test]
    fn warm_up_keeps_its_share() {
        let inner = spec(|config| config.total_tokens = Some(400_000)).unwrap().inner;
        assert_eq!((inner.total_tokens, inner.warmup_tokens), (400_000, 20_000));
        let blend = spec(|config| config.apply = "blend=0.5".into()).unwrap().exchange.apply;
        assert_eq!(blend, ApplyPolicy::Blend { alpha: 0.5 });
    }
}
