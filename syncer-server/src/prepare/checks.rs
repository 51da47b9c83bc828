//! Checks of a run's settings and of this machine, before anything is created.

use std::num::NonZeroU16;

use archipelago_cli::{Bytes, available_bytes, range};
use archipelago_core::diloco::{Codec, Fragments, Layout};
use archipelago_core::wire::{Optimiser, RunSpec};

use super::internal;
use crate::config::{self, ClusterArgs, DataSource, Role, ServeConfig, preset, syncer_config};
use crate::errors::ServerError;
use crate::links::{allowed_origins, origin};
use crate::status::AlertTerms;
use crate::store::{fit, outside};
use crate::webhook;

/// Maximum number of copies of all parameters in memory: Θ, Θ̂ and momentum, two of them again in a snapshot in
/// progress, and Θ for a measurement.
const COPIES: u64 = 6;
/// Maximum number of copies in a cluster process that serves learners: Θ̂, and a copy for a measurement.
const COPIES_LED: u64 = 2;
/// Memory for an idle fragment that this process leads, in bytes per value: Θ, Θ̂ and momentum.
const LED_BYTES: u64 = 12;
/// Maximum memory for a fragment during a merge or a replay, in bytes per value (measured, docs/scale.md).
const AT_WORK_BYTES: u64 = 64;
/// Number of fragments that are loaded and replayed at once.
const FOLLOWED: u64 = 2;

/// Maximum size of an update message without its body, and of any short message, in bytes, with a margin.
const SHORT_BODY_BYTES_MAX: usize = 32 << 10;

/// Checks the settings and the folder, as far as this needs no data.
///
/// # Errors
/// - `Preset`, `Setting`, `Config`: a setting is wrong.
/// - `DirForeign`, `Disk`: the folder holds other files and no run, or cannot be read.
pub(super) fn settings(config: &ServeConfig) -> Result<(), ServerError> {
    preset(config)?;
    config::licence(config.licence.as_deref())?;
    syncer_config(config)?;
    config::invite(config)?;
    public_origin(config)?;
    alert_terms(config)?;
    config.alerts.webhook.as_deref().map_or(Ok(()), webhook::check)?;
    config::admin_token(config.start.admin_token.as_deref())?;
    allowed_origins(config)?;
    config.server.cluster.part()?;
    if config.lora.spec()?.is_some() && config.identity.inner == Optimiser::Muon {
        let why = "adapters are trained with adamw: leave --inner muon out, or train all weights without --lora-rank";
        return Err(ServerError::Config { why: why.to_owned() });
    }
    fit(&config.server.dir)?;
    outside(&config.server.dir, config.data.as_ref().and_then(DataSource::path))?;
    Ok(())
}

/// Refuses a run that would exhaust memory later. A process that leads rounds without `--lead-max` may lead any number
/// of fragments. For it, memory for one fragment during a merge is required.
pub(super) fn memory(cluster: &ClusterArgs, spec: &RunSpec, layout: &Layout) -> Result<(), ServerError> {
    let needed = needed_bytes(cluster.role, cluster.lead_max, spec, layout);
    match available_bytes() {
        Some(available) if needed > available => {
            Err(ServerError::Memory { needed: Bytes(needed), available: Bytes(available) })
        }
        _ => Ok(()),
    }
}

fn needed_bytes(role: Option<Role>, lead_max: Option<u16>, spec: &RunSpec, layout: &Layout) -> u64 {
    let frozen = spec.frozen.as_ref().map_or(0, |frozen| frozen.bytes);
    let faces = |copies: u64| copies * size_of::<f32>() as u64 * layout.len() as u64 + frozen;
    let Some(role) = role else { return faces(COPIES) };
    let count = NonZeroU16::new(spec.exchange.fragments).unwrap_or(NonZeroU16::MIN);
    let fragments = Fragments::plan(layout, count);
    let largest = fragments.ids().map(|fragment| fragments.len(fragment) as u64).max().unwrap_or(0);
    let at_rest = LED_BYTES * u64::from(lead_max.unwrap_or(0).min(fragments.count())) * largest;
    let led = if role.leads() { AT_WORK_BYTES * largest + at_rest } else { 0 };
    let faced = if role.faces() { FOLLOWED * AT_WORK_BYTES * largest + faces(COPIES_LED) } else { 0 };
    led + faced
}

/// Returns the maximum size of a message body from an honest learner, in bytes.
pub(super) fn body_bytes_max(spec: &RunSpec, layout: &Layout) -> Result<u32, ServerError> {
    let codec = Codec::new(&spec.exchange).map_err(internal)?;
    let count = NonZeroU16::new(spec.exchange.fragments).unwrap_or(NonZeroU16::MIN);
    let fragments = Fragments::plan(layout, count);
    let body = |p| codec.body_bytes(fragments.segments(p).unwrap_or_default());
    let largest = fragments.ids().map(body).max().unwrap_or(0) + SHORT_BODY_BYTES_MAX;
    let most = archipelago_core::wire::BODY_BYTES_MAX;
    match u32::try_from(largest).ok().filter(|largest| *largest <= most) {
        Some(largest) => Ok(largest),
        None => {
            let why = format!(
                "a fragment takes {largest} bytes on the wire, at most {most} fit: raise --fragments"
            );
            Err(ServerError::Config { why })
        }
    }
}

/// Checks the public link, if the owner gave one.
fn public_origin(config: &ServeConfig) -> Result<(), ServerError> {
    config.server.public_url.as_deref().map_or(Ok(()), |link| origin(link).map(drop))
}

/// Returns the thresholds of alerts. The age for snapshot alerts is at least two snapshot intervals.
///
/// # Errors
/// `Setting`: a setting is out of range.
pub(crate) fn alert_terms(config: &ServeConfig) -> Result<AlertTerms, ServerError> {
    let alerts = &config.alerts;
    let ratio = alerts.alert_loss;
    let holds = ratio == 0.0 || (ratio.is_finite() && ratio > 1.0);
    range("alert-loss", ratio, holds, "a number above 1, or 0 to turn it off")?;
    let snapshot_age_ms = match alerts.alert_snapshot.ms() {
        0 => 0,
        age_ms => age_ms.max(config.snapshot_every.ms().saturating_mul(2)),
    };
    Ok(AlertTerms { no_learner_ms: alerts.alert_no_learner.ms(), loss_ratio: ratio, snapshot_age_ms })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::run_spec;
    use archipelago_core::model::Preset;
    use archipelago_core::wire::DataSpec;

    #[test]
    fn adapters_are_refused_with_muon() {
        let config = ServeConfig::default().with(|it| {
            it.identity.inner = Optimiser::Muon;
            it.lora.lora_rank = 8;
        });
        let error = settings(&config).unwrap_err();
        assert_eq!(error.exit_code(), 3, "{error}");
        assert!(error.to_string().contains("leave --inner muon out"), "{error}");
    }

    /// Goal: a process that leads rounds needs memory for a fragment, and one that serves learners needs memory for Θ̂.
    #[test]
    fn each_role_takes_what_it_takes() {
        let config = ServeConfig::default().with(|it| it.identity.preset = "medium".into());
        let data = DataSpec { token_bytes: 2, masks: false, shards: Vec::new() };
        let spec = run_spec(&config, Preset::Medium.model(256).into(), data).unwrap();
        let layout = Layout::of(&spec.model).unwrap();
        let of = |role| needed_bytes(role, None, &spec, &layout) / 1_000_000;
        assert_eq!(of(None), 257, "24 bytes for each of 10.7 million parameters");
        assert_eq!(of(Some(Role::Owner)), 88, "64 bytes for each of an eighth of them");
        assert_eq!(of(Some(Role::Gateway)), 261, "twice that, and 8 for all");
        let exact = |role| needed_bytes(Some(role), None, &spec, &layout);
        assert_eq!(exact(Role::All), exact(Role::Owner) + exact(Role::Gateway));
        let leads = |most| needed_bytes(Some(Role::Owner), Some(most), &spec, &layout) / 1_000_000;
        assert_eq!((leads(4), leads(8), leads(100)), (154, 220, 220), "12 bytes for each that it may lead");
    }
}
