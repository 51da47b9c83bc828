//! The compared runs: attacks, shares of hostile learners, and ways of merging.

use archipelago_core::diloco::syncer::SyncerConfig;
use archipelago_core::diloco::{Influence, MergeRule};
use archipelago_sim::lab::Recipe;
use archipelago_sim::world::{Fault, Lie, LookSpec, Poison};
use clap::ValueEnum;
use serde::Serialize;

use super::PoisonArgs;
use crate::experiments::SimulateError;
use crate::experiments::training::{Experiment, set_width};

/// Identities that one hostile machine uses in a run, one after the other.
const IDENTITIES: u64 = 6;

/// Number of loss measurements for rollback in a run without hostile learners.
const LOOKS: u64 = 25;

/// Attacks of hostile learners.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attack {
    /// A scale in the update is not a number
    NotFinite,
    /// The update is 100 times as long
    #[value(name = "times-100")]
    #[serde(rename = "times-100")]
    Times100,
    /// The update is inverted, and as long as the syncer considers possible for its steps
    Edge,
    /// The update is inverted
    Flip,
    /// Noise as long as the update
    Noise,
    /// The fourth update of each fragment, again and again
    Stale,
    /// A copy of an honest learner's last update
    Copy,
    /// Noise as long as the update, declared with the largest possible number of tokens
    Tokens,
    /// One step in ten, and the update scaled to the length of an honest learner's
    Sandbag,
    /// The update leans half towards a direction that all hostile learners share
    Drift,
    /// One scale of each segment is so large that the update is as long as the syncer considers possible
    Scale,
    /// Like edge, by learners that leave while others with new identities start
    Identities,
}

impl Attack {
    /// Returns the name in tables and flags.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    fn poison(self) -> Poison {
        Poison::Lie(match self {
            Self::NotFinite => return Poison::NotFinite,
            Self::Times100 => Lie::Times(100),
            Self::Edge | Self::Identities => Lie::Reaches,
            Self::Flip => Lie::Times(-1),
            Self::Noise => Lie::Noise,
            Self::Stale => Lie::Stale,
            Self::Copy => Lie::Copies,
            Self::Tokens => Lie::Claims,
            Self::Sandbag => Lie::Sandbags,
            Self::Drift => Lie::Drifts,
            Self::Scale => Lie::Scales,
        })
    }
}

/// Merge rules, and their bounds.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// The weighted mean, without any bound
    Mean,
    /// Radial averaging as in the paper, without any bound
    Rda,
    /// Radial averaging with the syncer's default bounds, and none of its other defences
    Bounds,
    /// With bounds, and with rollback of updates that harmed the held-out loss
    Undo,
    /// With bounds, and with suspicion of learners that do not show that they train
    Checks,
    /// All defaults of a syncer: bounds, rollback and suspicion
    Ours,
}

impl Arm {
    /// Returns the name in tables and flags.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Rda => "rda",
            Self::Bounds => "bounds",
            Self::Undo => "undo",
            Self::Checks => "checks",
            Self::Ours => "ours",
        }
    }

    fn undoes(self) -> bool {
        matches!(self, Self::Undo | Self::Ours)
    }

    fn suspects(self) -> bool {
        matches!(self, Self::Checks | Self::Ours)
    }

    fn change(self, syncer: &mut SyncerConfig) {
        let free = Influence {
            share_ratio_max: 0.0,
            turns_max: 0.0,
            half_life_turns: 0.0,
            newcomers_share_max: 1.0,
        };
        let merge = match self {
            Self::Mean => MergeRule::Mean,
            Self::Rda => MergeRule::Radial,
            Self::Bounds | Self::Undo | Self::Checks | Self::Ours => return,
        };
        *syncer = SyncerConfig { merge, influence: free, norm_ratio_max: 0.0, ..*syncer };
    }
}

/// One cell of the table.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// `None` without hostile learners.
    pub(super) attack: Option<Attack>,
    /// Hostile learners, in percent.
    pub(super) percent: u32,
    pub(super) arm: Arm,
    /// Name of the experiment.
    pub(super) ours: String,
    /// Name of the baseline.
    pub(super) base: String,
}

/// Experiments and their cells.
pub(super) struct Plan<'a> {
    args: &'a PoisonArgs,
    /// Tokens trained by honest learners in each run.
    tokens: u64,
    pub(super) experiments: Vec<Experiment>,
    pub(super) cells: Vec<Cell>,
}

impl<'a> Plan<'a> {
    /// # Errors
    /// `Setting`, `Preset`: a setting is out of range.
    pub(super) fn new(args: &'a PoisonArgs) -> Result<Self, SimulateError> {
        let tokens =
            args.training.step_tokens()?.saturating_mul(args.steps).saturating_mul(args.learners.into());
        let mut plan = Self { args, tokens, experiments: vec![], cells: vec![] };
        let arms = &args.arms;
        for &arm in arms {
            let ours = plan.clean(arm, args.learners)?;
            // The cost of the bounds without hostile learners.
            let base = plan.clean(Arm::Ours, args.learners)?;
            plan.cells.push(Cell { attack: None, percent: 0, arm, ours, base });
        }
        for attack in chosen(&args.attacks) {
            for &percent in &args.hostile {
                for &arm in arms {
                    let hostile = hostile(args.learners, percent);
                    let base = plan.clean(arm, args.learners - hostile)?;
                    let ours = plan.attacked(attack, percent, arm)?;
                    plan.cells.push(Cell { attack: Some(attack), percent, arm, ours, base });
                }
            }
        }
        Ok(plan)
    }

    /// Adds a run of `honest` honest learners alone. Returns its name.
    fn clean(&mut self, arm: Arm, honest: u32) -> Result<String, SimulateError> {
        let name = clean(arm, honest);
        let mut recipe = self.recipe(arm, honest)?;
        recipe.cosines = arm == Arm::Ours && honest == self.args.learners;
        self.experiments.push(Experiment { name: name.clone(), recipe, alone_tokens: None });
        Ok(name)
    }

    fn attacked(&mut self, attack: Attack, percent: u32, arm: Arm) -> Result<String, SimulateError> {
        let hostile = hostile(self.args.learners, percent);
        let honest = self.args.learners - hostile;
        let mut recipe = self.recipe(arm, self.args.learners)?;
        if attack == Attack::Identities {
            succeed(&mut recipe, honest, self.length_ms(honest) / IDENTITIES);
        }
        let poisoned = (honest..recipe.learners()).map(|i| (0, Fault::Poison(i, Some(attack.poison()))));
        recipe.faults.splice(0..0, poisoned);
        let name = format!("{}, {percent} %, {}", attack.name(), arm.name());
        self.experiments.push(Experiment { name: name.clone(), recipe, alone_tokens: None });
        Ok(name)
    }

    /// Returns the time that honest learners need for their tokens.
    fn length_ms(&self, honest: u32) -> u64 {
        let steps = self.args.steps * u64::from(self.args.learners) / u64::from(honest);
        steps * self.args.training.step_ms
    }

    fn recipe(&self, arm: Arm, learners: u32) -> Result<Recipe, SimulateError> {
        let (args, mut recipe) = (self.args, self.args.training.recipe(learners, self.tokens)?);
        set_width(&mut recipe, args.width);
        // The comparison is about updates, not about the transfer of the text.
        recipe.text_at_hand = true;
        for machine in &mut recipe.machines {
            machine.jitter = args.step_jitter;
        }
        recipe.syncer.norm_ratio_max = args.norm_ratio_max;
        arm.change(&mut recipe.syncer);
        recipe.exams = arm.suspects();
        let step_ms = args.training.step_ms;
        recipe.undo = arm
            .undoes()
            .then(|| LookSpec { every_ms: (args.steps * step_ms / LOOKS).max(1), trial_ms: step_ms });
        Ok(recipe)
    }
}

/// Makes each machine from `honest` on leave after `span_ms`, and be replaced by one with a new identity; repeatedly.
fn succeed(recipe: &mut Recipe, honest: u32, span_ms: u64) {
    let span_ms = span_ms.max(1);
    let first = recipe.learners();
    for generation in 1..IDENTITIES {
        for slot in 0..first - honest {
            let mut machine = recipe.machines[(honest + slot) as usize];
            machine.starts_ms = generation * span_ms;
            recipe.machines.push(machine);
        }
        for slot in 0..first - honest {
            let before = match generation {
                1 => honest + slot,
                _ => first + (generation as u32 - 2) * (first - honest) + slot,
            };
            recipe.faults.push((generation * span_ms, Fault::Leave(before)));
        }
    }
}

/// Returns the name of the run of `honest` honest learners alone.
pub(super) fn clean(arm: Arm, honest: u32) -> String {
    format!("{honest} honest alone, {}", arm.name())
}

/// Returns the number of hostile ones among `learners`.
pub(super) fn hostile(learners: u32, percent: u32) -> u32 {
    (f64::from(learners) * f64::from(percent) / 100.0).round() as u32
}

/// Returns `given`, or all variants if it is empty.
fn chosen<T: ValueEnum>(given: &[T]) -> Vec<T> {
    if given.is_empty() { T::value_variants().to_vec() } else { given.to_vec() }
}
