//! All settings of one run except its seed.

use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::LazyLock;

use archipelago_cli::{SettingError, defaults, from_toml, one_of, range, tokens, within};
use archipelago_core::diloco::WeightBounds;
use archipelago_core::wire::Code;
use archipelago_sim::world::Fault;
use clap::ValueEnum;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::attacks::{Attack, AttackSettings};
use crate::SimulateError;
use crate::engine::EngineArgs;
use crate::lab::{Budget, Corpus, JoinerStart, LabError, Lookahead, Recipe, TrainingResult};
use crate::text::hex;
use crate::training::{LEARNERS_MAX, STEPS_MAX, TrainingArgs, set_width, size};

/// Names of the settings that belong to the whole table.
const OF_ALL: [&str; 6] = ["data", "text", "seeds", "jobs", "engine", "adapter"];
/// Names of the table's settings that digests omit, because a run's key has the digest of its text and its seed.
const OF_TEXT: [&str; 3] = ["data", "text", "seeds"];
/// Names of the settings that do not affect a single trainer.
const OF_LEARNERS: [&str; 16] = [
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
/// More settings that do not affect a single trainer. Digests omit them at their defaults, so that runs cached before
/// they existed stay valid.
const ADDED_OF_LEARNERS: [&str; 23] = [
    "extra",
    "trial-code",
    "step-jitter",
    "link-kbit",
    "text-at-hand",
    "equal-time",
    "start-learners",
    "far-ms",
    "cut-from-steps",
    "cut-steps",
    "lease-ms",
    "rule",
    "turns-max",
    "half-life-turns",
    "joining",
    "ramp-steps",
    "batches",
    "cohort-max",
    "attack",
    "hostile",
    "arm",
    "norm-ratio-max",
    "cosines",
];
/// Settings of all sides that digests omit at their defaults, so that runs cached before they existed stay valid.
const ADDED: [&str; 5] = ["tokens", "width", "samples", "average", "inner"];
/// All settings at their defaults.
static DEFAULTS: LazyLock<Map<String, Value>> = LazyLock::new(|| defaults::<RunSettings>(&[]).named());
/// Codes for comparison, including those with too few bits for a run.
const TRIAL_CODES: [Code; 5] = [Code::F32, Code::Int4, Code::E3m0, Code::Int2, Code::Int1];
/// Maximum of each of these settings, in milliseconds of virtual time: the time between two kills, the time until a
/// restart, the length of a lease, and the latency of the last learner.
const MS_MAX: f64 = 1e9;
/// Largest number of kills in a run.
const LEAVES_MAX: u64 = 50_000;
/// Largest number of tokens of all learners together.
const TOKENS_MAX: f64 = 1e12;
/// Lookahead with its authors' settings for AdamW.
const LOOKAHEAD: Lookahead = Lookahead { steps: 6, share: 0.5 };

/// Kind of trainer.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// M learners under a syncer
    Decoupled,
    /// M learners that step together and are merged as a whole, in 32 bits and without delay
    Lockstep,
    /// One trainer with a batch as large as those of M learners
    DataParallel,
    /// One trainer with a batch as large as those of M learners, and with Lookahead
    Lookahead,
}

impl Side {
    fn is_single(self) -> bool {
        matches!(self, Self::DataParallel | Self::Lookahead)
    }
}

/// Rule for the weights of long and old updates. In short runs all learners are newcomers, so all rules but the default
/// omit the bound on newcomers.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The syncer's default
    Default,
    /// Neither --turns-max nor --half-life-turns
    None,
    /// Only --turns-max
    Cap,
    /// Only --half-life-turns
    Decay,
    /// Neither of them, and no bound on the share of one learner
    NoBound,
}

/// Initial state of joiners.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Joiners {
    /// Moments of zero
    Zero,
    /// Moments of zero and a rate that rises over --ramp-steps
    Ramp,
    /// The moments of the first learner
    Donor,
}

/// Batch sizes that are assigned to the learners in turn, such as `1+8+32`; empty for the run's batch size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batches(Vec<NonZeroU32>);

impl FromStr for Batches {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let counts = text.split('+').filter(|_| !text.is_empty());
        Ok(Self(counts.map(str::parse).collect::<Result<_, _>>()?))
    }
}

impl Serialize for Batches {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let counts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        to.serialize_str(&counts.join("+"))
    }
}

/// Settings of a run.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunSettings {
    /// Kind of trainer
    #[arg(long, value_name = "SIDE", value_enum, default_value = "decoupled")]
    pub side: Side,
    /// M, the number of learners
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    pub learners: u32,
    /// Mean steps of a learner; a run ends when all learners together have trained that many tokens
    #[arg(long, value_name = "COUNT", default_value_t = 1_464)]
    pub steps: u64,
    /// Tokens of all learners together, in place of those of --steps
    #[arg(long, value_name = "COUNT", value_parser = tokens::<u64>)]
    pub tokens: Option<u64>,
    /// End the run after the time that its steps take without any waiting, however much was trained
    #[arg(long)]
    pub equal_time: bool,
    /// Learners that join after half of the time that the first ones take without them, and stay
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub extra: u32,
    /// Time between two kills, each of the next learner in turn; 0 for no kills; a run fails if it takes over twice as
    /// long as one learner alone (virtual milliseconds)
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub leave_every_ms: u64,
    /// Time from a kill to the restart of the learner, with nothing in memory (virtual milliseconds)
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    pub away_ms: u64,
    /// Width of the model (a multiple of 8), in place of that of --preset
    #[arg(long, value_name = "COUNT")]
    pub width: Option<u32>,
    /// Code of transferred values, in place of --code: also int2 and int1, for comparison
    #[arg(long, value_name = "CODE", value_parser = one_of(&TRIAL_CODES, Code::name))]
    pub trial_code: Option<Code>,
    /// Random variation of the time of each step, up or down, as a share of that time (0 to 1)
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub step_jitter: f64,
    /// Link of each learner, each way (kbit/s) [default: no limit]
    #[arg(long, value_name = "KBIT")]
    pub link_kbit: Option<u64>,
    /// Every learner has the text from the beginning, and does not fetch it
    #[arg(long)]
    pub text_at_hand: bool,
    /// Share of the run over which the parameters are averaged; the average is measured next to the last parameters (0
    /// to 1)
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub average: f64,
    /// Number of loss measurements during the run; they affect no loss, but runs cached with another number are not
    /// reused
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub samples: u32,
    #[command(flatten)]
    #[serde(flatten)]
    pub unequal: UnequalSettings,
    #[command(flatten)]
    #[serde(flatten)]
    pub attacks: AttackSettings,
    #[command(flatten)]
    #[serde(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub training: TrainingArgs,
}

/// Settings of unequal learners, and of the syncer's treatment of them.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = "Unequal learners")]
pub struct UnequalSettings {
    /// Number of learners for which the run waits before it starts [default: all that are present from the beginning]
    #[arg(long, value_name = "COUNT")]
    pub start_learners: Option<u32>,
    /// Latency of the last learner instead of --latency-ms (virtual milliseconds); 0 for no difference
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub far_ms: u64,
    /// Number of steps after which the link of the last learner is cut
    #[arg(long, value_name = "COUNT", default_value_t = 120)]
    pub cut_from_steps: u64,
    /// Number of steps for which this link is cut, while the learner trains on; 0 for no cut
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub cut_steps: u64,
    /// Shortest lease of text (virtual milliseconds) [default: the syncer's]
    #[arg(long, value_name = "MS")]
    pub lease_ms: Option<u64>,
    /// Rule for the weights of long and old updates
    #[arg(long, value_name = "RULE", value_enum, default_value = "default")]
    pub rule: Rule,
    /// Multiple of H beyond which steps have no weight, for the rule cap
    #[arg(long, value_name = "TURNS", default_value_t = 2.0)]
    pub turns_max: f64,
    /// Number of newer versions after which the weight of an update is halved, for the rule decay
    #[arg(long, value_name = "VERSIONS", default_value_t = 4.0)]
    pub half_life_turns: f64,
    /// Initial state of joiners
    #[arg(long, value_name = "STATE", value_enum, default_value = "zero")]
    pub joining: Joiners,
    /// Number of steps over which the learning rate of a joiner rises
    #[arg(long, value_name = "COUNT", default_value_t = 96)]
    pub ramp_steps: u32,
    /// Batch sizes assigned to the learners in turn, such as 1+8+32, in place of --batch; step times are proportional
    #[arg(long, value_name = "WINDOWS", default_value = "")]
    pub batches: Batches,
    /// Maximum number of learners that a round asks [default: the syncer's]
    #[arg(long, value_name = "COUNT")]
    pub cohort_max: Option<u32>,
}

impl UnequalSettings {
    fn check(&self, learners: u32) -> Result<(), SimulateError> {
        within("start-learners", self.start_learners.unwrap_or(1).into(), 1.0..=learners.into())?;
        within("far-ms", self.far_ms as f64, 0.0..=MS_MAX)?;
        within("cut-from-steps", self.cut_from_steps as f64, 1.0..=STEPS_MAX)?;
        within("cut-steps", self.cut_steps as f64, 0.0..=STEPS_MAX)?;
        within("lease-ms", self.lease_ms.unwrap_or(1) as f64, 1.0..=MS_MAX)?;
        for (flag, turns) in [("turns-max", self.turns_max), ("half-life-turns", self.half_life_turns)] {
            within(flag, turns, 1e-3..=1e6)?;
        }
        within("ramp-steps", self.ramp_steps.into(), 1.0..=STEPS_MAX)?;
        for &batch in &self.batches.0 {
            within("batches", u32::from(batch).into(), 1.0..=512.0)?;
        }
        Ok(within("cohort-max", self.cohort_max.unwrap_or(1).into(), 1.0..=LEARNERS_MAX)?)
    }

    fn influence(&self) -> Option<WeightBounds> {
        let none = WeightBounds {
            turns_max: 0.0,
            half_life_turns: 0.0,
            newcomers_share_max: 1.0,
            ..WeightBounds::default()
        };
        match self.rule {
            Rule::Default => None,
            Rule::None => Some(none),
            Rule::Cap => Some(WeightBounds { turns_max: self.turns_max, ..none }),
            Rule::Decay => Some(WeightBounds { half_life_turns: self.half_life_turns, ..none }),
            Rule::NoBound => Some(WeightBounds { share_ratio_max: 0.0, ..none }),
        }
    }

    /// Adds these settings to `recipe`, in which a step takes `step_ms`.
    fn change(&self, recipe: &mut Recipe, step_ms: u64) {
        if let Some(learners) = self.start_learners {
            recipe.syncer.learners_start = learners;
        }
        if let Some(ms) = self.lease_ms {
            recipe.syncer.lease_ms = recipe.syncer.lease_ms.max(ms);
            recipe.syncer.lease_idle_ms_max = recipe.syncer.lease_idle_ms_max.max(ms);
        }
        recipe.syncer.influence = self.influence().unwrap_or(recipe.syncer.influence);
        recipe.syncer.cohort_max = self.cohort_max.unwrap_or(recipe.syncer.cohort_max);
        recipe.joining = match self.joining {
            Joiners::Zero => JoinerStart::Zero,
            Joiners::Ramp => JoinerStart::Ramp { steps: self.ramp_steps },
            Joiners::Donor => JoinerStart::Donor,
        };
        let last = recipe.learners() - 1;
        if self.far_ms > 0 {
            recipe.machines[last as usize].link.latency_ms = self.far_ms;
        }
        if self.cut_steps > 0 {
            let (from, until) = (self.cut_from_steps, self.cut_from_steps + self.cut_steps);
            recipe
                .faults
                .extend([(from * step_ms, Fault::Partition(last)), (until * step_ms, Fault::Heal(last))]);
        }
        let run_batch = u64::from(recipe.inner.batch);
        for (machine, &batch) in recipe.machines.iter_mut().zip(self.batches.0.iter().cycle()) {
            machine.batch = Some(batch);
            machine.step_ms = (machine.step_ms * u64::from(u32::from(batch))).div_ceil(run_batch).max(1);
        }
    }
}

impl RunSettings {
    /// Returns these settings with some of them replaced.
    ///
    /// # Errors
    /// - `Refused`: a setting is unknown, applies to the whole table, or has a malformed value.
    /// - `Setting`, `Preset`: a setting is out of range, or does not go with another.
    pub fn with<'a>(
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
        let mut cell: Self = from_toml(&lines, &OF_ALL.map(String::from)).map_err(SimulateError::refused)?;
        cell.engine = self.engine.clone();
        let TrainingArgs { data, text, seeds, jobs, .. } = &self.training;
        (cell.training.data, cell.training.text) = (data.clone(), *text);
        (cell.training.seeds, cell.training.jobs) = (*seeds, *jobs);
        cell.check()?;
        cell.check_leaves()?;
        Ok(cell)
    }

    /// Checks all settings.
    ///
    /// # Errors
    /// `Setting`, `Preset`: a setting is out of range.
    pub fn check(&self) -> Result<(), SimulateError> {
        within("learners", self.learners.into(), 1.0..=LEARNERS_MAX)?;
        within("extra", self.extra.into(), 0.0..=LEARNERS_MAX - f64::from(self.learners))?;
        within("steps", self.steps as f64, 1.0..=STEPS_MAX)?;
        within("leave-every-ms", self.leave_every_ms as f64, 0.0..=MS_MAX)?;
        within("away-ms", self.away_ms as f64, 1.0..=MS_MAX)?;
        self.width.map_or(Ok(()), |width| size("width", width))?;
        within("step-jitter", self.step_jitter, 0.0..=1.0)?;
        within("link-kbit", self.link_kbit.unwrap_or(1) as f64, 1.0..=1e9)?;
        within("average", self.average, 0.0..=1.0)?;
        within("samples", self.samples.into(), 0.0..=1e3)?;
        if let Some(tokens) = self.tokens {
            // At least one step of each learner.
            let least = self.training.step_tokens()? * u64::from(self.learners);
            within("tokens", tokens as f64, least as f64..=TOKENS_MAX)?;
        }
        self.unequal.check(self.learners)?;
        self.attacks.check(self.learners)?;
        let is_attacked = self.attacks.attack != Attack::None;
        let goes = self.extra == 0 && self.side == Side::Decoupled;
        range(
            "hostile",
            self.attacks.hostile.into(),
            goes || !is_attacked,
            "0, or decoupled learners without --extra",
        )?;
        self.recipe().map(drop)
    }

    fn check_leaves(&self) -> Result<(), SettingError> {
        let Self { leave_every_ms, away_ms, learners, .. } = *self;
        if leave_every_ms == 0 {
            return Ok(());
        }
        let goes = self.side == Side::Decoupled && learners > 1;
        range("leave-every-ms", leave_every_ms as f64, goes, "0, or two learners that are decoupled")?;
        // Faults take effect between the steps of a world.
        let step_ms = self.training.step_ms;
        let least = step_ms.max(self.longest_ms() / LEAVES_MAX + 1);
        within("leave-every-ms", leave_every_ms as f64, least as f64..=MS_MAX)?;
        // At least one learner is present at any time.
        let most = leave_every_ms * u64::from(learners - 1);
        within("away-ms", away_ms as f64, step_ms as f64..=most as f64)
    }

    /// Returns the time during which learners are killed: twice the time of one learner alone, in milliseconds of
    /// virtual time.
    fn longest_ms(&self) -> u64 {
        2 * u64::from(self.learners) * self.steps * self.training.step_ms
    }

    /// Returns true if the last learner differs from the others in its link, or learners have different batches.
    pub fn is_unequal(&self) -> bool {
        let UnequalSettings { far_ms, cut_steps, batches, .. } = &self.unequal;
        *far_ms > 0 || *cut_steps > 0 || !batches.0.is_empty()
    }

    /// Returns the tokens of all learners together.
    ///
    /// # Errors
    /// `Setting`, `Preset`: a setting is out of range.
    pub fn tokens(&self) -> Result<u64, SimulateError> {
        let of_steps =
            || Ok::<_, SimulateError>(self.steps * u64::from(self.learners) * self.training.step_tokens()?);
        self.tokens.map_or_else(of_steps, Ok)
    }

    /// Returns the mean steps of a learner.
    ///
    /// # Errors
    /// `Setting`, `Preset`: a setting is out of range.
    pub fn mean_steps(&self) -> Result<u64, SimulateError> {
        Ok(self.tokens()? / (self.training.step_tokens()? * u64::from(self.learners)))
    }

    /// Returns the recipe of the run.
    ///
    /// # Errors
    /// `Setting`, `Preset`: a setting is out of range.
    pub fn recipe(&self) -> Result<Recipe, SimulateError> {
        let (step_ms, tokens) = (self.training.step_ms, self.tokens()?);
        let (machines, extra) = match self.side {
            Side::Decoupled => (self.attacks.machines_of(self.learners), self.extra),
            _ => (self.learners, 0),
        };
        let mut recipe = self.training.recipe(machines + extra, tokens)?;
        if let Some(width) = self.width {
            set_width(&mut recipe, width);
        }
        recipe.lookahead = (self.side == Side::Lookahead).then_some(LOOKAHEAD);
        recipe.samples = self.samples.min(u32::try_from(self.mean_steps()?).unwrap_or(u32::MAX));
        recipe.average = self.average;
        recipe.text_at_hand = self.text_at_hand;
        recipe.exchange.code = self.trial_code.unwrap_or(recipe.exchange.code);
        recipe.syncer.learners_start = machines;
        for machine in &mut recipe.machines {
            machine.jitter = self.step_jitter;
            machine.link.bytes_per_s = self.link_kbit.map(|kbit| kbit * 1_000 / 8);
        }
        for machine in &mut recipe.machines[machines as usize..] {
            machine.starts_ms = self.steps * step_ms / 2;
        }
        if self.equal_time {
            let step_tokens = self.training.step_tokens()? * u64::from(self.learners);
            recipe.budget = Budget::Ms(tokens * step_ms / step_tokens);
        }
        recipe.faults = self.kills();
        self.unequal.change(&mut recipe, step_ms);
        self.attacks.change(&mut recipe, self.learners, self.steps, step_ms);
        Ok(recipe)
    }

    /// Trains by `recipe`, made from these settings for one seed.
    ///
    /// # Errors
    /// Those of the lab, and of [`crate::lab::Trainers::check`].
    pub fn train(&self, recipe: &Recipe, corpus: &Corpus, tokens: u64) -> Result<TrainingResult, LabError> {
        let found = match self.side {
            Side::Decoupled => recipe.train(corpus),
            Side::Lockstep => recipe.train_in_lockstep(corpus, tokens),
            Side::DataParallel | Side::Lookahead => recipe.train_baseline(corpus, tokens),
        };
        recipe.trainers.as_ref().map_or(Ok(()), |trainers| trainers.check())?;
        found
    }

    /// Returns the kills and restarts, of one learner after the other. A run that takes longer than these counts as
    /// failed.
    pub fn kills(&self) -> Vec<(u64, Fault)> {
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
    pub fn digest(&self) -> String {
        let is_single = self.side.is_single();
        let mut named = self.named();
        named.retain(|name, value| {
            let name = name.as_str();
            let is_added = ADDED_OF_LEARNERS.contains(&name);
            let is_of_learners = is_added || OF_LEARNERS.contains(&name);
            let is_default = (is_added || ADDED.contains(&name)) && DEFAULTS.get(name) == Some(&*value);
            !(OF_TEXT.contains(&name) || value.is_null() || is_single && is_of_learners || is_default)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(flags: &str) -> RunSettings {
        defaults(&flags.split_whitespace().collect::<Vec<_>>())
    }

    /// Goal: cached runs stay valid, and no run is mistaken for another one.
    #[test]
    fn digests_distinguish_all_settings_that_affect_a_run() {
        // Digests in the lines of `tests/evidence/sweep`.
        assert_eq!(cell("").digest(), "91f453144fed5fae");
        assert_eq!(cell("--steps 366 --side data-parallel").digest(), "6aa2243a60ddbbb9");
        let alone = "--side data-parallel";
        let others = [
            "",
            "--steps 1465",
            "--learners 8",
            "--lr 0.008",
            "--inner muon",
            "--sync-every 12",
            "--outer-momentum 0.6",
            "--latency-ms 1000",
            "--extra 2",
            "--leave-every-ms 60000",
            "--preset small",
            "--engine gpu",
            "--tokens 2998272",
            "--attack edge --hostile 25",
            "--arm ours",
            "--batches 1+8",
            "--trial-code int2",
            "--samples 3",
            alone,
            "--side lookahead",
        ];
        let mut found = others.map(|flags| cell(flags).digest()).to_vec();
        found.sort();
        found.dedup();
        assert_eq!(found.len(), others.len());
        for same in ["--sync-every 12", "--latency-ms 1000", "--away-ms 5", "--extra 2", "--rule cap"] {
            assert_eq!(cell(&format!("{alone} {same}")).digest(), cell(alone).digest(), "{same}");
        }
    }

    /// Goal: a default without a flag does not change for cached runs.
    #[test]
    fn defaults_without_a_flag_keep_their_digests() {
        // Digests in the lines of `tests/evidence/sweep`.
        let pinned = ["25c801a50239fc91", "f5553b16e567392c", "dd7fe2337b0ea567"];
        let found = ["", "--preset small", "--side lookahead"].map(|flags| {
            let Recipe { model, inner, exchange, syncer, machines, lookahead, .. } =
                cell(flags).recipe().unwrap();
            let all = format!("{:?}", (model, inner, exchange, syncer, &machines[0], lookahead));
            // A field that is newer than the digests, of which any other value would show, and a type that has another
            // name since.
            let all = all.replace(", optimiser: AdamW", "").replace("WeightBounds", "Influence");
            hex(&Sha256::digest(all)[..8])
        });
        assert_eq!(found, pinned, "runs that were kept are of other settings");
    }

    /// Goal: at any time in a run at least one learner is present, and kills continue for as long as the run may last.
    #[test]
    fn a_learner_is_present_at_any_time() {
        for (learners, away_ms) in [(2, 1_000), (4, 3_000), (4, 500), (3, 2_000)] {
            let cell =
                cell(&format!("--learners {learners} --steps 100 --leave-every-ms 1000 --away-ms {away_ms}"));
            cell.check_leaves().unwrap();
            let faults = cell.kills();
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
        assert!(cell("").kills().is_empty());
    }

    /// Goal: the baseline of an attack has the honest learners of the attacked run, and its tokens.
    #[test]
    fn hostile_learners_come_on_top_of_honest_ones() {
        let run = |flags: &str| cell(&format!("--learners 10 --hostile 20 {flags}")).recipe().unwrap();
        let (attacked, clean) = (run("--attack edge"), run(""));
        assert_eq!((attacked.learners(), clean.learners(), clean.syncer.learners_start), (10, 8, 8));
        assert_eq!((attacked.budget, attacked.inner), (clean.budget, clean.inner));
        assert_eq!((7..10).map(|i| attacked.is_hostile(i)).collect::<Vec<_>>(), [false, true, true]);
        assert_eq!(run("--attack identities").learners(), 10 + 5 * 2);
    }
}
