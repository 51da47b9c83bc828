//! Conversion of settings to the core's configuration.

use archipelago_cli::range;
use archipelago_core::diloco::QuorumPolicy;
use archipelago_core::diloco::syncer::SyncerConfig;
use archipelago_core::model::{CONTEXT_MAX, Preset};
use archipelago_core::wire::{DataSpec, INVITE_BYTES_MAX, Model, RunSpec};

use super::ServeConfig;
use crate::errors::ServerError;
use crate::llama;

/// Longest schedule of the learning rate, in tokens. Only a typing error asks for a longer one.
const TOTAL_TOKENS_MAX: u64 = 1_000_000_000_000_000;

/// Returns the run description for learners, for this model and these shards.
///
/// # Errors
/// - `Preset`: there is no preset of that name.
/// - `Setting`: a setting is out of range.
pub fn run_spec(config: &ServeConfig, model: Model, data: DataSpec) -> Result<RunSpec, ServerError> {
    let preset = preset(config)?;
    let mut inner = preset.inner();
    let total = config.identity.total_tokens.unwrap_or(inner.total_tokens);
    let holds = (1..=TOTAL_TOKENS_MAX).contains(&total);
    range(
        "total-tokens",
        total as f64,
        holds,
        "1 to 1000T, the number of tokens that the run is planned for",
    )?;
    inner.batch = config.identity.batch.map_or(inner.batch, Into::into);
    inner.optimiser = config.identity.inner;
    inner.lr_max = config.identity.lr.unwrap_or(inner.lr_max);
    inner.lr_min_ratio = config.identity.lr_min_ratio.unwrap_or(inner.lr_min_ratio);
    if let Some(total_tokens) = config.identity.total_tokens {
        inner.total_tokens = total_tokens;
        // The warm-up keeps the preset's share of the run.
        inner.warmup_tokens =
            total_tokens / (preset.inner().total_tokens / preset.inner().warmup_tokens).max(1);
    }
    range("lr", inner.lr_max.into(), inner.lr_max.is_finite() && inner.lr_max > 0.0, "a number above 0")?;
    let ratio = inner.lr_min_ratio;
    range("lr-min-ratio", ratio.into(), (0.0..=1.0).contains(&ratio), "a number from 0 to 1")?;
    check_context(model.context)?;
    Ok(RunSpec {
        model,
        inner,
        exchange: config.identity.exchange.spec()?,
        data,
        seed: config.identity.seed,
        frozen: None,
    })
}

/// Checks the length of training windows in tokens.
///
/// # Errors
/// `Setting`: the windows are too long.
pub fn check_context(context: u32) -> Result<(), ServerError> {
    let fits = context <= CONTEXT_MAX;
    Ok(range("context", context.into(), fits, &format!("1 to {CONTEXT_MAX} tokens"))?)
}

/// Returns the syncer's configuration.
///
/// # Errors
/// `Setting`: a setting is out of range.
pub fn syncer_config(config: &ServeConfig) -> Result<SyncerConfig, ServerError> {
    let method = config.live.rounds.syncer(&config.agreed.outer)?;
    range("checks", config.checks, (0.0..=1.0).contains(&config.checks), "a number from 0 to 1")?;
    for (flag, value) in [
        ("learners-max", config.live.learners_max),
        ("learners-start", config.agreed.learners_start),
        ("cohort-max", config.live.cohort_max),
    ] {
        range(flag, value.into(), value > 0, "1 or more")?;
    }
    Ok(SyncerConfig {
        quorum: QuorumPolicy { updates_min: config.live.min_quorum, ..method.quorum },
        learners_start: config.agreed.learners_start,
        learners_max: config.live.learners_max,
        cohort_max: config.live.cohort_max,
        stop_tokens: config.live.stop_at_tokens,
        ..method
    })
}

/// Value of `--invite` that requests a generated invite.
pub const INVITE_AUTO: &str = "auto";

/// Value of `--invite` that requests a generated invite short enough to type.
pub const INVITE_SHORT: &str = "short";

/// Value of `--invite` that admits only learners with a personal invite.
pub const INVITE_PERSONAL: &str = "personal";

/// Checks the given invite, if any.
///
/// # Errors
/// `Config`: it is too short to be a secret, or cannot be part of a link.
pub fn invite(config: &ServeConfig) -> Result<(), ServerError> {
    let Some(invite) = config
        .invite
        .as_deref()
        .filter(|invite| ![INVITE_AUTO, INVITE_SHORT, INVITE_PERSONAL].contains(invite))
    else {
        return Ok(());
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match (8..=INVITE_BYTES_MAX as usize).contains(&invite.len()) && invite.chars().all(plain) {
        true => Ok(()),
        // The error does not repeat the given text, which may be a mistyped secret.
        false => {
            let why = format!(
                "--invite is not a valid invite: give 8 to {INVITE_BYTES_MAX} letters, digits, - and _, or \
                 {INVITE_AUTO}, {INVITE_SHORT} or {INVITE_PERSONAL}"
            );
            Err(ServerError::Config { why })
        }
    }
}

/// Smallest length of an owner's token in characters; a guessed token gives control of the run.
const ADMIN_TOKEN_CHARS_MIN: usize = 16;

/// Checks the given owner's token, if any.
///
/// # Errors
/// `Config`: it is too short to be a secret, or cannot be part of a header.
pub fn admin_token(given: Option<&str>) -> Result<(), ServerError> {
    let fits = |token: &str| {
        token.len() >= ADMIN_TOKEN_CHARS_MIN && token.bytes().all(|byte| byte.is_ascii_graphic())
    };
    match given.is_none_or(fits) {
        true => Ok(()),
        // The error does not repeat the given text, which may be a mistyped secret.
        false => Err(ServerError::Config {
            why: format!(
                "--admin-token is no secret: give {ADMIN_TOKEN_CHARS_MIN} or more characters of ASCII without spaces, \
                 or leave it out, and one is made"
            ),
        }),
    }
}

/// Checks the licence for the model card, if one is chosen.
///
/// # Errors
/// `Config`: it is not a valid name.
pub fn licence(chosen: Option<&str>) -> Result<(), ServerError> {
    match chosen.filter(|chosen| !llama::licence(chosen)) {
        None => Ok(()),
        Some(bad) => {
            let why = format!(
                "--licence {bad:?} is not a name of a licence: give one such as apache-2.0, cc-by-4.0 or other"
            );
            Err(ServerError::Config { why })
        }
    }
}

/// Largest size of a base model's name or path in bytes.
const BASE_BYTES_MAX: usize = 4_096;

/// Checks the base model of an export, if one is named.
///
/// # Errors
/// `Config`: it is neither a name nor a path.
pub fn base(named: Option<&str>) -> Result<(), ServerError> {
    let is_bad =
        |base: &&str| base.is_empty() || base.len() > BASE_BYTES_MAX || base.contains(char::is_control);
    match named.filter(is_bad) {
        None => Ok(()),
        Some(bad) => {
            let why = format!(
                "--base {bad:?} is not a model: give its name on the hub as user/model, or its folder"
            );
            Err(ServerError::Config { why })
        }
    }
}

/// Returns the requested preset.
///
/// # Errors
/// `Preset`: there is no preset of that name.
pub fn preset(config: &ServeConfig) -> Result<Preset, ServerError> {
    let unknown =
        |error: archipelago_core::model::UnknownPreset| ServerError::Preset { why: error.to_string() };
    config.identity.preset.parse().map_err(unknown)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use archipelago_core::model::{ExpertSpec, ModelSpec, Optimiser};

    use super::*;

    fn spec(change: impl FnOnce(&mut ServeConfig)) -> Result<RunSpec, ServerError> {
        let mut config = ServeConfig::default();
        change(&mut config);
        syncer_config(&config)?;
        licence(config.licence.as_deref())?;
        admin_token(config.start.admin_token.as_deref())?;
        invite(&config)?;
        let mut model = preset(&config)?.model(256);
        model.experts = config.experts.spec()?;
        model.context = config.identity.context.map_or(model.context, Into::into);
        run_spec(&config, model.into(), DataSpec { token_bytes: 2, masks: false, shards: vec![] })
    }

    #[test]
    fn refuses_what_is_out_of_range() {
        let check = |code, change: fn(&mut ServeConfig)| {
            let error = spec(change).unwrap_err();
            assert_eq!(error.exit_code(), code, "{error}");
        };
        check(8, |config| config.identity.preset = "huge".into());
        check(3, |config| config.identity.exchange.block = 12);
        check(3, |config| config.identity.lr = Some(f32::NAN));
        check(3, |config| config.identity.total_tokens = Some(0));
        check(3, |config| config.identity.total_tokens = Some(u64::MAX));
        check(3, |config| config.identity.lr_min_ratio = Some(1.5));
        check(3, |config| config.identity.lr_min_ratio = Some(f32::NAN));
        check(3, |config| config.experts.experts = 257);
        check(3, |config| (config.experts.experts, config.experts.experts_per_token) = (4, 5));
        check(3, |config| (config.experts.experts, config.experts.experts_per_token) = (4, 0));
        check(3, |config| (config.experts.experts, config.experts.router_aux_loss) = (4, f32::NAN));
        check(3, |config| config.agreed.outer.outer_momentum = 1.0);
        check(3, |config| config.agreed.outer.momentum_warmup = 1.1);
        check(3, |config| config.live.rounds.grace_ratio = -0.1);
        check(3, |config| config.identity.exchange.sync_every = 0);
        check(3, |config| config.live.cohort_max = 0);
        check(3, |config| config.identity.context = NonZeroU32::new(1 << 17));
        check(3, |config| config.licence = Some("mit\nlicense: none".into()));
        check(3, |config| config.invite = Some("brief".into()));
        check(3, |config| config.start.admin_token = Some("x".into()));
        check(3, |config| config.start.admin_token = Some("sixteen and more".into()));
        check(3, |config| config.invite = Some("with space".into()));
        assert!(spec(|config| config.invite = Some(INVITE_AUTO.into())).is_ok());
        assert!(spec(|config| config.invite = Some(INVITE_PERSONAL.into())).is_ok());
        assert!(spec(|config| config.invite = Some(INVITE_SHORT.into())).is_ok());
        assert!(spec(|config| config.invite = Some("open-sesame_1".into())).is_ok());
    }

    #[test]
    fn one_expert_is_a_dense_layer() {
        let model =
            |count| ModelSpec::of(&spec(|config| config.experts.experts = count).unwrap().model).unwrap();
        let experts = |count| model(count).experts;
        assert_eq!([experts(0), experts(1)], [None, None]);
        assert_eq!(experts(4), Some(ExpertSpec { count: 4, per_token: 2, aux_loss: 0.02 }));
    }

    #[test]
    fn the_inner_optimiser_is_adamw_or_the_owners() {
        let optimiser = |change: fn(&mut ServeConfig)| spec(change).unwrap().inner.optimiser;
        assert_eq!(optimiser(|_| ()), Optimiser::AdamW);
        assert_eq!(optimiser(|config| config.identity.inner = Optimiser::Muon), Optimiser::Muon);
    }

    #[test]
    fn warm_up_keeps_its_share() {
        let inner = spec(|config| config.identity.total_tokens = Some(400_000)).unwrap().inner;
        assert_eq!((inner.total_tokens, inner.warmup_tokens), (400_000, 20_000));
    }

    #[test]
    fn the_lowest_rate_is_the_presets_or_the_owners() {
        let ratio = |given| spec(|config| config.identity.lr_min_ratio = given).unwrap().inner.lr_min_ratio;
        assert_eq!([ratio(None), ratio(Some(0.02)), ratio(Some(0.0))], [0.1, 0.02, 0.0]);
    }
}
