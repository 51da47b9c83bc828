//! Settings of the method itself: a run on a server has them, and so has its simulation.

use archipelago::diloco::syncer::SyncerConfig;
use archipelago::diloco::{MergeRule, OuterSpec, QuorumPolicy};
use archipelago::wire::{ApplyPolicy, Code, ExchangeSpec};
use serde::{Serialize, Serializer};

use super::range::{choice, range, within};
use crate::errors::ServerError;

/// How learners exchange parameters, and how the syncer merges them.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct MethodArgs {
    /// H, steps between two exchanges of the same fragment
    #[arg(
        long,
        env = "ARCHIPELAGO_SYNC_EVERY",
        value_name = "STEPS",
        default_value_t = 24,
        help_heading = "Exchange"
    )]
    pub sync_every: u32,
    /// P, parts that the parameters are exchanged in
    #[arg(
        long,
        env = "ARCHIPELAGO_FRAGMENTS",
        value_name = "COUNT",
        default_value_t = 8,
        help_heading = "Exchange"
    )]
    pub fragments: u16,
    /// τ, rounds in flight at once
    #[arg(
        long,
        env = "ARCHIPELAGO_ROUNDS_IN_FLIGHT",
        value_name = "COUNT",
        default_value_t = 2,
        help_heading = "Exchange"
    )]
    pub rounds_in_flight: u32,
    /// γ, share of the slack spent on waiting for stragglers (0 to 1)
    #[arg(
        long,
        env = "ARCHIPELAGO_GRACE_RATIO",
        value_name = "SHARE",
        default_value_t = QuorumPolicy::default().grace_ratio,
        help_heading = "Exchange"
    )]
    pub grace_ratio: f64,
    /// Outer learning rate
    #[arg(
        long,
        env = "ARCHIPELAGO_OUTER_LR",
        value_name = "RATE",
        default_value_t = OuterSpec::default().lr,
        help_heading = "Exchange"
    )]
    #[serde(serialize_with = "as_written")]
    pub outer_lr: f32,
    /// Outer Nesterov momentum (0 to below 1)
    #[arg(
        long,
        env = "ARCHIPELAGO_OUTER_MOMENTUM",
        value_name = "SHARE",
        default_value_t = OuterSpec::default().momentum,
        help_heading = "Exchange"
    )]
    #[serde(serialize_with = "as_written")]
    pub outer_momentum: f32,
    /// Share of the run over which the outer momentum rises from 0 (0 to 1)
    #[arg(
        long,
        env = "ARCHIPELAGO_MOMENTUM_WARMUP",
        value_name = "SHARE",
        default_value_t = SyncerConfig::default().momentum_warmup_ratio,
        help_heading = "Exchange"
    )]
    pub momentum_warmup: f64,
    /// How values travel: int4, e3m0 or f32
    #[arg(
        long,
        env = "ARCHIPELAGO_CODE",
        value_name = "CODE",
        default_value = "int4",
        help_heading = "Exchange"
    )]
    pub code: String,
    /// Values that share one scale (a multiple of 8)
    #[arg(
        long,
        env = "ARCHIPELAGO_BLOCK",
        value_name = "VALUES",
        default_value_t = 256,
        help_heading = "Exchange"
    )]
    pub block: u32,
    /// What a learner does with a merged fragment: keep, keep-residue, overwrite or blend=SHARE
    #[arg(
        long,
        env = "ARCHIPELAGO_APPLY",
        value_name = "POLICY",
        default_value = "keep-residue",
        help_heading = "Exchange"
    )]
    pub apply: String,
    /// How updates are merged: radial or mean
    #[arg(
        long,
        env = "ARCHIPELAGO_MERGE",
        value_name = "RULE",
        default_value = "radial",
        help_heading = "Exchange"
    )]
    pub merge: String,
}

impl MethodArgs {
    /// What learners are told of the exchange.
    ///
    /// # Errors
    /// `Config`: a setting is out of range.
    pub fn exchange(&self) -> Result<ExchangeSpec, ServerError> {
        let Self { sync_every, fragments, block, .. } = *self;
        within("sync-every", sync_every.into(), 1.0..=1e6)?;
        within("fragments", fragments.into(), 1.0..=4_096.0)?;
        let block_holds = block.is_multiple_of(8) && (8..=1 << 16).contains(&block);
        range("block", block.into(), block_holds, "a multiple of 8 from 8 to 65536")?;
        Ok(ExchangeSpec { fragments, sync_every, block, code: code(&self.code)?, apply: apply(&self.apply)? })
    }

    /// The syncer's knobs: these, and the defaults of all others.
    ///
    /// # Errors
    /// `Config`: a setting is out of range.
    pub fn syncer(&self) -> Result<SyncerConfig, ServerError> {
        let (lr, momentum, warmup) = (self.outer_lr, self.outer_momentum, self.momentum_warmup);
        within("outer-lr", lr.into(), 1e-6..=1e3)?;
        let holds = (0.0..1.0).contains(&momentum);
        range("outer-momentum", momentum.into(), holds, "a number from 0 to below 1")?;
        within("momentum-warmup", warmup, 0.0..=1.0)?;
        let (rounds_in_flight, grace_ratio) = (self.rounds_in_flight, self.grace_ratio);
        within("rounds-in-flight", rounds_in_flight.into(), 1.0..=1_000.0)?;
        within("grace-ratio", grace_ratio, 0.0..=1.0)?;
        Ok(SyncerConfig {
            quorum: QuorumPolicy { rounds_in_flight, grace_ratio, ..QuorumPolicy::default() },
            outer: OuterSpec { lr, momentum },
            momentum_warmup_ratio: warmup,
            merge: merge(&self.merge)?,
            ..SyncerConfig::default()
        })
    }
}

/// Writes a number as its shortest decimal, which a flag would be.
///
/// # Errors
/// Those of `to`.
pub fn as_written<S: Serializer>(value: &f32, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(value.to_string().parse().expect("a number is written as one"))
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

fn merge(name: &str) -> Result<MergeRule, ServerError> {
    match name {
        "radial" => Ok(MergeRule::Radial),
        "mean" => Ok(MergeRule::Mean),
        other => Err(choice("merge", other, "radial or mean")),
    }
}
