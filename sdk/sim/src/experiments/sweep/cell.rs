//! All settings of one run except its seed.

use archipelago_cli::{from_toml, range, within};
use archipelago_sim::lab::Recipe;
use archipelago_sim::world::Fault;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::experiments::SimulateError;
use crate::experiments::engine::EngineArgs;
use crate::experiments::side::Side;
use crate::experiments::text::hex;
use crate::experiments::training::{LEARNERS_MAX, STEPS_MAX, TrainingArgs};

/// Settings of the whole table.
const OF_ALL: [&str; 6] = ["data", "text", "seeds", "jobs", "engine", "adapter"];
/// Settings of the whole table that the text and the seeds represent.
const OF_TEXT: [&str; 3] = ["data", "text", "seeds"];
/// Settings that do not affect training alone.
const OF_LEARNERS: [&str; 17] = [
    "extra",
    "sync-every",
    "fragments",
    "rounds-in-flight",
    "grace-ratio",
    "outer-lr",
    "outer-momentum",
    "momentum-warmup",
    "code",
    "block",
    "apply",
    "merge",
    "step-ms",
    "latency-ms",
    "latency-jitter-ms",
    "leave-every-ms",
    "away-ms",
];
/// Longest time between two kills, and until a restart, in milliseconds of virtual time.
const LEAVE_MS_MAX: f64 = 1e9;
/// Largest number of kills in a run.
const LEAVES_MAX: u64 = 50_000;

/// Settings of a run.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CellArgs {
    /// Training method
    #[arg(long, value_name = "SIDE", value_enum, default_value = "decoupled")]
    pub side: Side,
    /// M, the number of learners
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    pub learners: u32,
    /// Mean steps of a learner: a run ends when all learners together have trained on the tokens of that many steps
    /// each
    #[arg(long, value_name = "COUNT", default_value_t = 1_464)]
    pub steps: u64,
    /// Learners that join after half of the time that the first ones would take alone, and stay
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    // Omitted if zero, so that digests from before this setting existed stay valid.
    #[serde(serialize_with = "none_if_zero")]
    pub extra: u32,
    /// Time between two kills, of one learner after the other; 0 for none; a run that takes more than twice as long as
    /// one learner alone counts as failed (virtual milliseconds)
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub leave_every_ms: u64,
    /// Time until a killed learner restarts, with empty memory (virtual milliseconds)
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
    /// Returns these settings with some of them replaced.
    ///
    /// # Errors
    /// - `Refused`: an unknown setting, one of the whole table, or a malformed value.
    /// - `Setting`, `Preset`: a setting is out of range, or does not go with another.
    pub(super) fn with<'a>(
        &self,
        settings: impl IntoIterator<Item = &'a (String, String)>,
    ) -> Result<Self, SimulateError> {
        let mut named = self.named();
        for (name, value) in settings {
            if OF_ALL.contains(&&**name) {
                let why = format!("`{name}` is the same for all rows: give it as a flag");
                return Err(SimulateError::refused(why));
            }
            if named.insert(name.clone(), Value::String(value.clone())).is_none() {
                let why = format!(
                    "a row has no setting `{name}`: those are named like the flags that say how one run is made"
                );
                return Err(SimulateError::refused(why));
            }
        }
        named.retain(|name, value| !value.is_null() && !OF_ALL.contains(&&**name));
        let lines: String = named.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
        let mut cell: Self = from_toml(&lines, &OF_ALL).map_err(SimulateError::refused)?;
        cell.engine = self.engine.clone();
        let TrainingArgs { data, text, seeds, jobs, .. } = &self.training;
        (cell.training.data, cell.training.text) = (data.clone(), *text);
        (cell.training.seeds, cell.training.jobs) = (*seeds, *jobs);
        cell.check()?;
        cell.check_leaves()?;
        Ok(cell)
    }

    /// # Errors
    /// `Setting`, `Preset`: a setting is out of range.
    pub(super) fn check(&self) -> Result<(), SimulateError> {
        within("learners", self.learners.into(), 1.0..=LEARNERS_MAX)?;
        within("extra", self.extra.into(), 0.0..=LEARNERS_MAX - f64::from(self.learners))?;
        within("steps", self.steps as f64, 1.0..=STEPS_MAX)?;
        within("leave-every-ms", self.leave_every_ms as f64, 0.0..=LEAVE_MS_MAX)?;
        within("away-ms", self.away_ms as f64, 1.0..=LEAVE_MS_MAX)?;
        self.recipe().map(drop)
    }

    fn check_leaves(&self) -> Result<(), SimulateError> {
        let Self { leave_every_ms, away_ms, learners, .. } = *self;
        if leave_every_ms == 0 {
            return Ok(());
        }
        let goes = self.side == Side::Decoupled && learners > 1;
        range("leave-every-ms", leave_every_ms as f64, goes, "0, or two learners that are decoupled")?;
        // Faults take effect between the steps of a world.
        let step_ms = self.training.step_ms;
        let least = step_ms.max(self.longest_ms() / LEAVES_MAX + 1);
        within("leave-every-ms", leave_every_ms as f64, least as f64..=LEAVE_MS_MAX)?;
        // At least one learner is present at any time.
        let most = leave_every_ms * u64::from(learners - 1);
        Ok(within("away-ms", away_ms as f64, step_ms as f64..=most as f64)?)
    }

    /// Returns the time during which learners are killed, in milliseconds of virtual time: twice that of one learner
    /// alone.
    fn longest_ms(&self) -> u64 {
        2 * u64::from(self.learners) * self.steps * self.training.step_ms
    }

    /// Returns the tokens of all learners together.
    ///
    /// # Errors
    /// `Setting`, `Preset`: a setting is out of range.
    pub(super) fn tokens(&self) -> Result<u64, SimulateError> {
        Ok(self.steps * u64::from(self.learners) * self.training.step_tokens()?)
    }

    /// Returns the recipe of the run without kills.
    ///
    /// # Errors
    /// `Setting`, `Preset`: a setting is out of range.
    pub(super) fn recipe(&self) -> Result<Recipe, SimulateError> {
        let extra = if self.side == Side::Decoupled { self.extra } else { 0 };
        let mut recipe = self.training.recipe(self.learners + extra, self.tokens()?)?;
        recipe.syncer.learners_start = self.learners;
        for machine in &mut recipe.machines[self.learners as usize..] {
            machine.starts_ms = self.steps * self.training.step_ms / 2;
        }
        (recipe.is_told, recipe.lookahead) = (true, self.side.lookahead());
        Ok(recipe)
    }

    /// Returns the kills and restarts: one learner after the other. A run that takes longer than these counts as
    /// failed.
    pub(super) fn faults(&self) -> Vec<(u64, Fault)> {
        let last = self.longest_ms().checked_div(self.leave_every_ms).unwrap_or(0);
        let leave = |i: u64| {
            let (at_ms, machine) = (i * self.leave_every_ms, ((i - 1) % u64::from(self.learners)) as u32);
            [(at_ms, Fault::Kill(machine)), (at_ms + self.away_ms, Fault::Restart(machine))]
        };
        let mut faults: Vec<(u64, Fault)> = (1..=last).flat_map(leave).collect();
        // At equal times, a restart precedes a kill.
        faults.sort_by_key(|(at_ms, fault)| (*at_ms, matches!(fault, Fault::Kill(_))));
        faults
    }

    /// Returns the digest of all settings that distinguish runs with the same text and seed.
    pub(super) fn digest(&self) -> String {
        let mut named = self.named();
        let is_alone = self.side != Side::Decoupled;
        named.retain(|name, value| {
            let name = name.as_str();
            !(OF_TEXT.contains(&name) || value.is_null() || is_alone && OF_LEARNERS.contains(&name))
        });
        hex(&Sha256::digest(Value::Object(named).to_string())[..8])
    }

    fn named(&self) -> Map<String, Value> {
        match serde_json::to_value(self).expect("plain data") {
            Value::Object(named) => named,
            _ => unreachable!("settings have names"),
        }
    }
}

fn none_if_zero<S: Serializer>(count: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    (*count > 0).then_some(count).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use archipelago_cli::defaults;

    fn cell(flags: &str) -> CellArgs {
        defaults(&flags.split_whitespace().collect::<Vec<_>>())
    }

    /// Goal: cached runs stay valid, and no run is taken for another one.
    #[test]
    fn runs_are_told_apart_by_all_that_matters_to_them() {
        // Digests in the lines of `tests/evidence/sweep`.
        assert_eq!(cell("").digest(), "91f453144fed5fae");
        assert_eq!(cell("--steps 366 --side data-parallel").digest(), "6aa2243a60ddbbb9");
        let alone = "--side data-parallel";
        let others = [
            "",
            "--steps 1465",
            "--learners 8",
            "--lr 0.008",
            "--sync-every 12",
            "--outer-momentum 0.6",
            "--latency-ms 1000",
            "--extra 2",
            "--leave-every-ms 60000",
            "--preset small",
            "--engine gpu",
            alone,
            "--side lookahead",
        ];
        let mut found = others.map(|flags| cell(flags).digest()).to_vec();
        found.sort();
        found.dedup();
        assert_eq!(found.len(), others.len());
        for same in ["--sync-every 12", "--latency-ms 1000", "--away-ms 5", "--extra 2"] {
            assert_eq!(cell(&format!("{alone} {same}")).digest(), cell(alone).digest(), "{same}");
        }
    }

    /// Goal: a default without a flag does not change for cached runs.
    #[test]
    fn what_has_no_flag_is_what_it_was() {
        // Digests in the lines of `tests/evidence/sweep`.
        let pinned = ["25c801a50239fc91", "f5553b16e567392c", "dd7fe2337b0ea567"];
        let found = ["", "--preset small", "--side lookahead"].map(|flags| {
            let Recipe { model, inner, exchange, syncer, machines, lookahead, .. } =
                cell(flags).recipe().unwrap();
            let all = format!("{:?}", (model, inner, exchange, syncer, &machines[0], lookahead));
            hex(&Sha256::digest(all)[..8])
        });
        assert_eq!(found, pinned, "runs that were kept are of other settings");
    }

    /// Goal: at any time in a run at least one learner is present, and kills continue for as long as the run may last.
    #[test]
    fn somebody_is_there_until_the_end() {
        for (learners, away_ms) in [(2, 1_000), (4, 3_000), (4, 500), (3, 2_000)] {
            let cell =
                cell(&format!("--learners {learners} --steps 100 --leave-every-ms 1000 --away-ms {away_ms}"));
            cell.check_leaves().unwrap();
            let faults = cell.faults();
            let mut there = vec![true; learners];
            for (_, fault) in &faults {
                match fault {
                    Fault::Kill(machine) => there[*machine as usize] = false,
                    Fault::Restart(machine) => there[*machine as usize] = true,
                    other => panic!("{other:?}"),
                }
                assert!(there.contains(&true), "{learners} learners, away for {away_ms} ms");
            }
            assert!(faults[faults.len() - 1].0 >= 100 * 100 * learners as u64, "{learners}, {away_ms}");
        }
        assert!(cell("").faults().is_empty());
    }
}
