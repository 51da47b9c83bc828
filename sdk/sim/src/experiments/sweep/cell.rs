//! All settings of one run but its seed.

use archipelago_cli::{from_toml, within};
use archipelago_sim::lab::Recipe;
use archipelago_sim::world::Fault;
use serde::Serialize;
use serde_json::Value;

use crate::experiments::SimulateError;
use crate::experiments::engine::EngineArgs;
use crate::experiments::gap::{LOOKAHEAD, Side};
use crate::experiments::training::{LEARNERS_MAX, STEPS_MAX, TrainingArgs};

/// Settings that are those of the whole table.
const OF_ALL: [&str; 4] = ["data", "text", "seeds", "jobs"];
/// Longest time between two that leave, in milliseconds of virtual time.
const LEAVE_MS_MAX: f64 = 1e9;

/// Settings of a run.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CellArgs {
    /// Who trains
    #[arg(long, value_name = "SIDE", value_enum, default_value = "decoupled")]
    pub side: Side,
    /// M, the number of learners
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    pub learners: u32,
    /// Steps of each learner
    #[arg(long, value_name = "COUNT", default_value_t = 1_464)]
    pub steps: u64,
    /// Time from one kill to the next, of one learner after the other; 0 for none (virtual milliseconds)
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub leave_every_ms: u64,
    /// Time after which another learner takes its place (virtual milliseconds)
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    pub away_ms: u64,
    #[command(flatten)]
    #[serde(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub training: TrainingArgs,
}

impl CellArgs {
    /// These, with others in the place of some.
    ///
    /// # Errors
    /// - `Refused`: there is no such setting, it is one of the whole table, or its value is malformed.
    /// - `Setting`, `Preset`: one is out of range.
    pub(super) fn with<'a>(
        &self,
        settings: impl IntoIterator<Item = &'a (String, String)>,
    ) -> Result<Self, SimulateError> {
        let mut all = serde_json::to_value(self).expect("plain data");
        let named = all.as_object_mut().expect("settings have names");
        for name in OF_ALL {
            named.remove(name);
        }
        named.retain(|_, value| !value.is_null());
        for (name, value) in settings {
            if OF_ALL.contains(&&**name) {
                let why = format!("`{name}` is the same for all rows: give it as a flag");
                return Err(SimulateError::refused(why));
            }
            named.insert(name.clone(), Value::String(value.clone()));
        }
        let lines: String = named.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
        let mut cell: Self = from_toml(&lines, &OF_ALL).map_err(SimulateError::refused)?;
        let TrainingArgs { data, text, seeds, jobs, .. } = &self.training;
        (cell.training.data, cell.training.text) = (data.clone(), *text);
        (cell.training.seeds, cell.training.jobs) = (*seeds, *jobs);
        cell.check()?;
        Ok(cell)
    }

    /// # Errors
    /// `Setting`, `Preset`: a setting is out of range.
    pub(super) fn check(&self) -> Result<(), SimulateError> {
        within("learners", self.learners.into(), 1.0..=LEARNERS_MAX)?;
        within("steps", self.steps as f64, 1.0..=STEPS_MAX)?;
        within("leave-every-ms", self.leave_every_ms as f64, 0.0..=LEAVE_MS_MAX)?;
        if self.leave_every_ms > 0 {
            // Somebody always stays.
            let most = self.leave_every_ms * u64::from(self.learners.saturating_sub(1));
            within("away-ms", self.away_ms as f64, 1.0..=most as f64)?;
        }
        self.recipe()?;
        Ok(())
    }

    /// Tokens of all learners together.
    ///
    /// # Errors
    /// `Setting`, `Preset`: a setting is out of range.
    pub(super) fn tokens(&self) -> Result<u64, SimulateError> {
        Ok(self.steps * u64::from(self.learners) * self.training.step_tokens()?)
    }

    /// The run that these settings make.
    ///
    /// # Errors
    /// `Setting`, `Preset`: a setting is out of range.
    pub(super) fn recipe(&self) -> Result<Recipe, SimulateError> {
        let mut recipe = self.training.recipe(self.learners, self.tokens()?)?;
        recipe.is_told = true;
        recipe.lookahead = (self.side == Side::Lookahead).then_some(LOOKAHEAD);
        recipe.faults = self.faults();
        Ok(recipe)
    }

    /// One learner after the other is killed, and started again, for twice as long as a run without that lasts.
    fn faults(&self) -> Vec<(u64, Fault)> {
        if self.leave_every_ms == 0 {
            return Vec::new();
        }
        let last = 2 * self.steps * self.training.step_ms / self.leave_every_ms;
        let leave = |i: u64| {
            let (at_ms, machine) = (i * self.leave_every_ms, ((i - 1) % u64::from(self.learners)) as u32);
            [(at_ms, Fault::Kill(machine)), (at_ms + self.away_ms, Fault::Restart(machine))]
        };
        let mut faults: Vec<(u64, Fault)> = (1..=last).flat_map(leave).collect();
        faults.sort_by_key(|(at_ms, _)| *at_ms);
        faults
    }
}

/// What makes these settings others, by name.
pub(super) fn digested(cell: &CellArgs) -> Value {
    let mut settings = serde_json::to_value(cell).expect("plain data");
    let named = settings.as_object_mut().expect("settings have names");
    named.retain(|name, value| !OF_ALL.contains(&name.as_str()) && !value.is_null());
    settings
}
