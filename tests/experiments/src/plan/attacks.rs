//! Hostile learners of a run, and the syncer's defences.

use archipelago_cli::{SettingError, range, within};
use archipelago_core::diloco::syncer::SyncerConfig;
use archipelago_core::diloco::{MergeRule, WeightBounds};
use archipelago_sim::world::{self, Fault, MonitorSpec, Poison};
use clap::ValueEnum;
use serde::Serialize;

use crate::lab::Recipe;

/// Number of identities that one hostile machine uses in a run, one after the other.
const IDENTITIES: u64 = 6;
/// Number of loss checks for rollback in a run without hostile learners.
const LOSS_CHECKS: u64 = 25;

/// Behaviour of hostile learners.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attack {
    /// No attack: the hostile learners are absent
    #[default]
    None,
    /// Sends an update with a scale that is not a number
    NotFinite,
    /// Sends its update 100 times as long
    #[value(name = "times-100")]
    #[serde(rename = "times-100")]
    Times100,
    /// Inverts its update, and makes it as long as the syncer accepts for its steps
    Edge,
    /// Inverts its update
    Flip,
    /// Sends noise as long as its update
    Noise,
    /// Replays the learner's fourth update of each fragment
    Stale,
    /// Sends the last update of an honest learner
    Copy,
    /// Sends noise as long as its update, and claims the maximum of tokens
    Tokens,
    /// Takes one step in ten, and sends an update as long as that of an honest learner
    Sandbag,
    /// Turns its update halfway to a direction that all hostile learners share
    Drift,
    /// Raises one scale of each segment until the update is as long as the syncer accepts
    Scale,
    /// As edge, and each learner is replaced by one with a new identity from time to time
    Identities,
}

impl Attack {
    fn poison(self) -> Option<Poison> {
        Some(Poison::Lie(match self {
            Self::None => return None,
            Self::NotFinite => return Some(Poison::NotFinite),
            Self::Times100 => world::Attack::Times(100),
            Self::Edge | Self::Identities => world::Attack::Reaches,
            Self::Flip => world::Attack::Times(-1),
            Self::Noise => world::Attack::Noise,
            Self::Stale => world::Attack::Stale,
            Self::Copy => world::Attack::Copies,
            Self::Tokens => world::Attack::Claims,
            Self::Sandbag => world::Attack::Sandbags,
            Self::Drift => world::Attack::Drifts,
            Self::Scale => world::Attack::Scales,
        }))
    }
}

/// How updates are merged, and what bounds them.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// The weighted mean, without any bound
    Mean,
    /// Radial averaging as the paper has it, without any bound
    Rda,
    /// The syncer's default bounds, without rollback and loss checks
    #[default]
    Bounds,
    /// The default bounds, and rollback of harm to the held-out loss
    Undo,
    /// The default bounds, and loss checks, which suspect learners that do not train
    Checks,
    /// The syncer's defaults: bounds, rollback and loss checks
    Ours,
}

/// Settings of hostile learners, and of the syncer's defences.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = "Hostile learners")]
pub struct AttackSettings {
    /// Behaviour of the hostile learners; with none they are absent, and the honest ones train alone
    #[arg(long, value_name = "ATTACK", value_enum, default_value_t)]
    pub attack: Attack,
    /// Share of the learners that is hostile, in percent (0 to 90)
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    pub hostile: u32,
    /// How updates are merged, and what bounds them
    #[arg(long, value_name = "ARM", value_enum, default_value_t)]
    pub arm: Arm,
    /// Longest update on each segment, as a multiple of the usual length, in arms with bounds; 0 for no bound [default:
    /// the syncer's]
    #[arg(long, value_name = "RATIO")]
    pub norm_ratio_max: Option<f64>,
    /// Compares the directions of honest updates in runs without an attack; does not affect the runs
    #[arg(long)]
    pub cosines: bool,
}

impl AttackSettings {
    /// Returns the number of hostile ones among `learners`.
    pub fn hostile_of(&self, learners: u32) -> u32 {
        (f64::from(learners) * f64::from(self.hostile) / 100.0).round() as u32
    }

    /// Returns the machines of a run of `learners`.
    pub fn machines_of(&self, learners: u32) -> u32 {
        if self.attack == Attack::None { learners - self.hostile_of(learners) } else { learners }
    }

    /// Checks these settings for a run of `learners`.
    ///
    /// # Errors
    /// [`SettingError`]: a setting is out of range.
    pub fn check(&self, learners: u32) -> Result<(), SettingError> {
        let is_attacked = self.attack != Attack::None;
        if self.hostile > 0 || is_attacked {
            let count = self.hostile_of(learners);
            let holds = (1..=90).contains(&self.hostile) && (1..learners).contains(&count);
            let range_words = "1 to 90 percent that are at least one learner and not all";
            range("hostile", self.hostile.into(), holds, range_words)?;
        }
        within("norm-ratio-max", self.norm_ratio_max.unwrap_or(1.0), 0.0..=1e3)
    }

    /// Adds these settings to a recipe of `learners` learners. An honest learner would take about `steps` steps of
    /// `step_ms` milliseconds if all were honest.
    pub fn change(&self, recipe: &mut Recipe, learners: u32, steps: u64, step_ms: u64) {
        if let Some(ratio) = self.norm_ratio_max {
            recipe.syncer.norm_ratio_max = ratio;
        }
        self.arm.change(&mut recipe.syncer);
        recipe.loss_checks = matches!(self.arm, Arm::Checks | Arm::Ours);
        recipe.undo = matches!(self.arm, Arm::Undo | Arm::Ours)
            .then(|| MonitorSpec { every_ms: (steps * step_ms / LOSS_CHECKS).max(1), trial_ms: step_ms });
        recipe.cosines = self.cosines && self.attack == Attack::None;
        let Some(poison) = self.attack.poison() else { return };
        let honest = learners - self.hostile_of(learners);
        if self.attack == Attack::Identities {
            let length_ms = steps * u64::from(learners) / u64::from(honest) * step_ms;
            replace_hostile(recipe, honest, length_ms / IDENTITIES);
        }
        let poisoned = (honest..recipe.learners()).map(|i| (0, Fault::Poison(i, Some(poison))));
        recipe.faults.splice(0..0, poisoned);
    }
}

impl Arm {
    fn change(self, syncer: &mut SyncerConfig) {
        let merge = match self {
            Self::Mean => MergeRule::Mean,
            Self::Rda => MergeRule::Radial,
            Self::Bounds | Self::Undo | Self::Checks | Self::Ours => return,
        };
        let influence = WeightBounds {
            share_ratio_max: 0.0,
            turns_max: 0.0,
            half_life_turns: 0.0,
            newcomers_share_max: 1.0,
        };
        *syncer = SyncerConfig { merge, influence, norm_ratio_max: 0.0, ..*syncer };
    }
}

/// Makes each machine from `honest` on leave after `span_ms` and be replaced by one with a new identity, repeatedly.
fn replace_hostile(recipe: &mut Recipe, honest: u32, span_ms: u64) {
    let span_ms = span_ms.max(1);
    let first = recipe.learners();
    let count = first - honest;
    for generation in 1..IDENTITIES {
        for slot in 0..count {
            let mut machine = recipe.machines[(honest + slot) as usize];
            machine.starts_ms = generation * span_ms;
            recipe.machines.push(machine);
        }
        for slot in 0..count {
            let before = match generation {
                1 => honest + slot,
                _ => first + (generation as u32 - 2) * count + slot,
            };
            recipe.faults.push((generation * span_ms, Fault::Leave(before)));
        }
    }
}
