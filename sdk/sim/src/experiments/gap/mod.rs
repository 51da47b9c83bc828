//! `simulate gap`: the loss of learners together, compared with data-parallel training, each at its best settings.
//!
//! The documents of a text are divided into parts. Rates and warm-ups are chosen by the loss on one part, with as many
//! runs for either side. The chosen settings are trained again with other seeds, and reported on another part. Runs are
//! cached as they end, so that a table may take several sittings.

mod course;
mod keep;
mod key;
mod plan;
mod tell;

use archipelago_cli::{tokens, within};
use serde::Serialize;

use super::engine::EngineArgs;
use super::findings::twice;
use super::kept::Kept;
use super::sitting::{Sitting, SittingArgs};
use super::text::Text;
use super::training::{LEARNERS_MAX, TrainingArgs};
use super::{CommonArgs, Report};
use crate::experiments::SimulateError;
pub use course::Course;
use plan::Plan;

/// The cached runs.
type Runs = Kept<keep::Made>;

/// Largest number of tokens of all learners together.
const TOKENS_MAX: f64 = 1e12;

/// Settings of `simulate gap`.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct GapArgs {
    /// M, the numbers of learners
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    pub learners: Vec<u32>,
    /// Tokens of all learners together
    #[arg(long, value_name = "COUNT", default_value_t = 3_000_000, value_parser = tokens::<u64>)]
    pub tokens: u64,
    /// Inner learning rates to choose from, as multiples of --lr
    #[arg(long, value_name = "FACTORS", value_delimiter = ',', default_values_t = [0.25, 0.5, 1.0, 2.0])]
    pub lr_factors: Vec<f64>,
    /// Warm-ups to choose from, as multiples of --warmup
    #[arg(long, value_name = "FACTORS", value_delimiter = ',', default_values_t = [1.0, 4.0])]
    pub warmup_factors: Vec<f64>,
    /// Runs of each of these, with seeds from --seed on; the chosen one is run with --seeds other seeds
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    pub choosing_seeds: u32,
    /// Share of the run over which parameters are averaged, for a second measurement next to the last parameters (0 to
    /// 1)
    #[arg(long, value_name = "SHARE", default_value_t = 0.03)]
    pub average: f64,
    /// Loss measurements during a run; they change no loss, but cached runs with another number do not count
    #[arg(long, value_name = "COUNT", default_value_t = 12)]
    pub samples: u32,
    #[command(flatten)]
    #[serde(skip)]
    pub sitting: SittingArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub training: TrainingArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Executes all runs that are not cached yet, and compares the losses.
///
/// # Errors
/// - `Setting`, `Preset`: a setting is out of range.
/// - `Refused`: a run is impossible, or the text is too short.
/// - `Disk`: a text or a file cannot be read or written.
pub fn run(args: &GapArgs, progress: &mut dyn FnMut(&str)) -> Result<Report, SimulateError> {
    check(args)?;
    let text = Text::read(&args.training)?;
    let mut kept = Runs::open(args.sitting.keep.as_deref())?;
    let plan = Plan::new(args, &text, args.engine.trainers(progress)?);
    let mut sitting = Sitting::new(&args.training, &args.engine, &args.sitting, progress)?;
    let mut left = sitting.make(&text.corpus, plan.choosing()?, &mut kept)?;
    left += sitting.make(&text.corpus, plan.telling(&kept)?, &mut kept)?;
    Ok(tell::report(args, &text, &plan, &kept, left))
}

fn check(args: &GapArgs) -> Result<(), SimulateError> {
    let learners: Vec<f64> = args.learners.iter().copied().map(f64::from).collect();
    for (flag, numbers) in
        [("learners", &learners), ("lr-factors", &args.lr_factors), ("warmup-factors", &args.warmup_factors)]
    {
        if twice(numbers).is_some() {
            return Err(SimulateError::refused(format!("--{flag} names a number twice: give each once")));
        }
    }
    for &learners in &args.learners {
        within("learners", learners.into(), 1.0..=LEARNERS_MAX)?;
        // At least one step of each learner.
        let least = args.training.step_tokens()? * u64::from(learners);
        within("tokens", args.tokens as f64, least as f64..=TOKENS_MAX)?;
    }
    for factor in &args.lr_factors {
        within("lr-factors", *factor, 1e-6..=1e6)?;
        within("lr", f64::from(args.training.lr) * factor, 1e-9..=1e3)?;
    }
    for factor in &args.warmup_factors {
        within("warmup-factors", *factor, 0.0..=1e6)?;
        within("warmup", args.training.warmup * factor, 0.0..=1.0)?;
    }
    within("choosing-seeds", args.choosing_seeds.into(), 1.0..=1e3)?;
    within("average", args.average, 1e-6..=1.0)?;
    Ok(within("samples", args.samples.into(), 0.0..=1e3)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use archipelago_cli::defaults;

    fn args(flags: &str) -> GapArgs {
        let few = "--learners 2 --tokens 2048 --batch 1 --lr-factors 0.001,1,2e5 --warmup-factors 1 --choosing-seeds 1";
        defaults(&format!("{few} --seeds 2 --samples 2 {flags}").split_whitespace().collect::<Vec<_>>())
    }

    /// Goal: cached runs are not repeated, diverged runs are not chosen, and each side is reported with fresh seeds.
    #[test]
    fn a_table_takes_several_sittings() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.jsonl");
        let text = folder.path().join("text.txt");
        std::fs::write(&text, "A line that is easy to learn by heart.\n".repeat(4_000)).unwrap();
        let keep = format!("--data {} --keep {}", text.display(), path.display());
        let sit = |flags: &str| {
            let mut lines = Vec::new();
            let report =
                run(&args(&format!("{keep} {flags}")), &mut |line| lines.push(line.to_owned())).unwrap();
            (report, lines)
        };
        let (report, lines) = sit("--minutes 0");
        assert!(report.cases.is_empty() && report.plots.is_empty() && lines.is_empty(), "{lines:?}");
        assert!(
            report.notes.iter().any(|note| note.starts_with("Runs that are to be made yet: 9.")),
            "{:?}",
            report.notes
        );

        let (report, lines) = sit("");
        assert_eq!(lines.len(), 3 * 3 + 3 * 2, "{lines:#?}");
        assert_eq!(report.cases.len(), 4, "{report:#?}");
        assert!(report.cases.iter().all(|case| case.ours.abs() < 100.0), "{:#?}", report.cases);
        let note = report.cases[0].note.as_deref().unwrap();
        assert!(note.contains("(rate 0.004, warm-up 0.05)") && note.matches(" · ").count() == 1, "{note}");
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches("\"failed\"").count(), 3, "{text}");
        assert_eq!(text.matches("\"is_told\":true").count(), 6, "{text}");

        let (again, lines) = sit("");
        assert_eq!((again.cases, lines), (report.cases, Vec::<String>::new()));
        // Another setting leads to other runs.
        let (other, _) = sit("--sync-every 12 --minutes 0");
        assert!(
            other.notes.iter().any(|note| note.starts_with("Runs that are to be made yet: 9.")),
            "{other:#?}"
        );
        // After a diverged run, the other seeds must not be reported alone.
        let blown = |line: &str| {
            let mut run: serde_json::Value = serde_json::from_str(line).unwrap();
            if run["is_told"] == true && run["side"] == "decoupled" {
                (run["failed"], run["test"]) = ("it blew up".into(), serde_json::json!([null, null]));
            }
            run.to_string() + "\n"
        };
        std::fs::write(&path, text.lines().map(blown).collect::<String>()).unwrap();
        let (report, _) = sit("");
        let told = report.notes.iter().filter(|note| note.ends_with("led to no loss."));
        assert!(report.cases.is_empty() && told.count() == 4, "{report:#?}");
        let cut: String = text.lines().take(14).map(|line| line.to_owned() + "\n").collect();
        std::fs::write(&path, cut).unwrap();
        assert_eq!(sit("").1.len(), 1);
    }
}
