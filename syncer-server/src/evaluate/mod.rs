//! Held-out loss of Θ and text samples, measured in the background at a low duty cycle.

mod attribution;
mod loss;
mod prompt;
mod prove;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use archipelago_core::diloco::{Millis, Version};
use archipelago_core::model::{FrozenWeights, ModelSpec};
use archipelago_runtime::engine::cpu::Writer;

use crate::actor::{ActorHandle, EvalSnapshot, HarmVerdict};
use crate::clock::Clock;
use crate::corpus::Corpus;
use crate::errors::ServerError;
use crate::status::Evaluation;
use crate::store::HeldOut;

pub use attribution::HarmDetector;
pub use loss::{JUDGED_WINDOWS_MIN, LossMeter};
pub use prove::{Prover, prove};

/// Approximate bytes of parameters that one text sample may read; each token reads all parameters.
const SAMPLE_BYTES: u64 = 8_000_000_000;

/// Minimum and maximum number of tokens in a sample.
const SAMPLE_TOKENS: (u64, u64) = (16, 160);

/// Fraction of one core's time for loss measurements; samples may take as much again.
const DUTY: f64 = 0.1;

/// Shortest time between two text samples, in milliseconds; they cost more than the loss.
const SAMPLE_EVERY_MS: u64 = 30_000;

/// Measures parameters on a fixed part of the held-out text, and generates text samples.
pub struct Evaluator {
    spec: ModelSpec,
    /// The frozen weights, if the run trains adapters.
    frozen: Option<Arc<FrozenWeights>>,
    meter: LossMeter,
    prompt: Vec<u32>,
    sample_tokens: usize,
    /// Stop tokens, which end a sample early.
    stops: Vec<u32>,
    seed: u64,
    /// Judge of the losses; `None` if the run has no rollback.
    judge: Option<HarmDetector>,
}

impl Evaluator {
    /// Creates an evaluator of models like `spec` with `params` parameters in all. `frozen` are their frozen weights,
    /// if the run trains adapters. The windows in `held_out` must fit the model. The prompt and the stop tokens come
    /// from `corpus`.
    ///
    /// # Errors
    /// `Internal`: the engine cannot be built.
    pub fn new(
        spec: &ModelSpec,
        frozen: Option<Arc<FrozenWeights>>,
        params: u64,
        held_out: HeldOut,
        corpus: &Corpus,
        seed: u64,
    ) -> Result<Self, ServerError> {
        let cost = size_of::<f32>() as u64 * params.max(1);
        let (least, most) = SAMPLE_TOKENS;
        Ok(Self {
            spec: *spec,
            meter: LossMeter::new(spec, frozen.clone(), held_out, NonZeroUsize::MIN)?,
            frozen,
            prompt: prompt::of(&corpus.held_out, |tokens| corpus.vocabulary.decode(tokens)),
            sample_tokens: (SAMPLE_BYTES / cost).clamp(least, most) as usize,
            stops: corpus.stops.tokens.clone(),
            seed,
            judge: None,
        })
    }

    /// Attaches `judge`, which checks each loss for harm. If there are too few held-out windows, no judge is attached:
    /// memorised training text would then raise their loss like harmful updates.
    #[must_use]
    pub fn with_judge(self, judge: HarmDetector) -> Self {
        if !self.meter.can_detect_harm() {
            tracing::warn!(
                "rollback is off: the held-out part of the text is shorter than {JUDGED_WINDOWS_MIN} windows, too \
                 short to judge updates; give a longer text or --held-out"
            );
            return self;
        }
        Self { judge: Some(judge), ..self }
    }

    /// Returns a fixed prompt and the tokens that the model with `theta` generates after it, up to a stop token.
    ///
    /// # Errors
    /// `Internal`: the parameters do not fit the model.
    pub fn sample(&mut self, theta: &[f32]) -> Result<Vec<u32>, ServerError> {
        let mut writer = Writer::on(self.frozen.clone(), &self.spec, theta).map_err(engine)?;
        writer.begin(&self.prompt, 0.8, self.seed).map_err(engine)?;
        let mut tokens = self.prompt.clone();
        tokens.extend(writer.take(self.sample_tokens).take_while(|token| !self.stops.contains(token)));
        Ok(tokens)
    }
}

/// Measures after each new merge, at most once in `every` and for at most a tenth of the time; text samples have
/// another tenth. `written` is the number of merged tokens at the newest text sample. Ends with the actor, or once a
/// complete run is measured and has its last text sample.
pub async fn run(
    mut evaluator: Evaluator,
    actor: ActorHandle,
    corpus: Arc<Corpus>,
    every: Duration,
    clock: Clock,
    mut written: Option<u64>,
) {
    let mut over = actor.over_watch();
    let mut before: Option<Vec<Version>> = None;
    let mut due = Due::default();
    loop {
        let Some(subject) = actor.subject().await else { return };
        let mut pause = every;
        let EvalSnapshot { is_final, tokens_merged, .. } = subject;
        // A rollback creates new versions without a merge.
        let versions: Vec<Version> = subject.states.iter().map(|state| state.version).collect();
        let is_new =
            if is_final { written != Some(tokens_merged) } else { before.as_ref() != Some(&versions) };
        if is_new {
            before = Some(versions);
            let began = clock.now();
            let sample_due = is_final || due.sample <= began;
            let measuring = tokio::task::spawn_blocking(move || {
                let result = evaluate(&mut evaluator, &subject, sample_due, &clock);
                (evaluator, result)
            });
            let Ok((back, result)) = measuring.await else {
                tracing::error!("measuring the held-out loss panicked; it is no longer measured");
                return;
            };
            evaluator = back;
            let ended = clock.now();
            let measured = result.as_ref().map_or(ended, |found| found.measured);
            due = due.after(every, began, measured, sample_due.then_some(ended));
            written = newest_text(written, &result);
            match result {
                Ok(EvaluationResult { evaluation, sample, judgement, .. }) => {
                    if let Some(judgement) = judgement {
                        actor.report_judgement(judgement).await;
                    }
                    let sample = sample.map(|tokens| corpus.vocabulary.decode(&tokens));
                    actor.evaluated(evaluation, sample).await;
                }
                Err(error) => tracing::warn!(%error, "held-out loss not measured"),
            }
            pause = Duration::from_millis(due.loss.since(clock.now()));
        }
        if is_final {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // The last parameters are measured at once.
            _ = over.wait_for(|over| *over) => {}
            () = actor.closed() => return,
        }
    }
}

/// The result of one measurement.
struct EvaluationResult {
    evaluation: Evaluation,
    /// Time at which the loss was measured.
    measured: Millis,
    /// The text sample, if one was requested.
    sample: Option<Vec<u32>>,
    /// The result of the check for harm, if the run has rollback.
    judgement: Option<HarmVerdict>,
}

/// Returns the number of merged tokens at the newest text sample: the one of `result`, or else `before`. A failed
/// evaluation has no text.
fn newest_text(before: Option<u64>, result: &Result<EvaluationResult, ServerError>) -> Option<u64> {
    match result {
        Ok(EvaluationResult { evaluation, sample: Some(_), .. }) => Some(evaluation.tokens_merged),
        _ => before,
    }
}

/// Measures the held-out loss, checks it for harm, and generates a text sample if `sample` is true.
///
/// # Errors
/// Those of [`LossMeter::loss`] and [`Evaluator::sample`].
fn evaluate(
    evaluator: &mut Evaluator,
    subject: &EvalSnapshot,
    sample: bool,
    clock: &Clock,
) -> Result<EvaluationResult, ServerError> {
    let theta = subject.theta();
    let loss = evaluator.meter.loss(&theta)?;
    let measured = clock.now();
    let EvalSnapshot { tokens_merged, rounds, .. } = *subject;
    // The actor sets the time.
    let evaluation = Evaluation { tokens_merged, rounds, loss, ..Evaluation::default() };
    let Evaluator { judge, meter, .. } = evaluator;
    let judge = judge.as_mut().filter(|_| !subject.is_final);
    let judgement = judge.map(|judge| judge.judge(loss, subject, meter)).transpose();
    // Without the tape, no learner can be blamed, and the run continues.
    let judgement = judgement.unwrap_or_else(|error| {
        tracing::error!(%error, "the held-out loss rose, and its cause cannot be determined");
        None
    });
    let sample = if sample { Some(evaluator.sample(&theta)?) } else { None };
    Ok(EvaluationResult { evaluation, measured, sample, judgement })
}

/// Due times of the next loss and the next sample. Each has its own idle time, so that a long sample does not delay
/// the next loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Due {
    loss: Millis,
    sample: Millis,
}

impl Due {
    /// Returns the due times after a loss measurement from `began` to `measured`. If a sample followed, it ended at
    /// `written`.
    fn after(self, every: Duration, began: Millis, measured: Millis, written: Option<Millis>) -> Self {
        let every_ms = u64::try_from(every.as_millis()).unwrap_or(u64::MAX);
        let sample = |written: Millis| {
            written.after(idle_ms(DUTY, measured, written)).max(began.after(SAMPLE_EVERY_MS))
        };
        Self {
            loss: measured.after(every_ms.max(idle_ms(DUTY, began, measured))),
            sample: written.map_or(self.sample, sample),
        }
    }
}

/// Returns the idle time in milliseconds after work from `began` to `ended`. `share` is the fraction of the time that
/// the work may take, above 0 and at most 1.
fn idle_ms(share: f64, began: Millis, ended: Millis) -> u64 {
    (ended.since(began) as f64 * (1.0 / share - 1.0)) as u64
}

fn engine(error: archipelago_runtime::engine::EngineError) -> ServerError {
    ServerError::Internal { what: format!("the model cannot be evaluated: {error}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(1);

    #[test]
    fn sample_delays_no_loss() {
        let (began, measured) = (Millis(1_000), Millis(1_500));
        let alone = Due::default().after(EVERY, began, measured, None);
        assert_eq!(alone, Due { loss: Millis(1_500 + 4_500), sample: Millis(0) });
        let slow = Due::default().after(EVERY, began, measured, Some(Millis(21_500)));
        assert_eq!(slow, Due { loss: alone.loss, sample: Millis(21_500 + 180_000) });
        // A loss in between does not delay the sample either.
        assert_eq!(slow.after(EVERY, Millis(21_500), Millis(21_501), None).sample, slow.sample);
    }

    /// Goal: the text at the end of a run is written although an earlier attempt at the same parameters failed.
    #[test]
    fn a_failed_evaluation_claims_no_text() {
        let found = |sample: Option<Vec<u32>>| {
            let evaluation = Evaluation { tokens_merged: 9, ..Evaluation::default() };
            Ok(EvaluationResult { evaluation, measured: Millis(0), sample, judgement: None })
        };
        let failed = Err(ServerError::Internal { what: "it failed".to_owned() });
        assert_eq!(newest_text(Some(5), &failed), Some(5));
        assert_eq!(newest_text(None, &found(None)), None);
        assert_eq!(newest_text(None, &found(Some(Vec::new()))), Some(9));
    }

    #[test]
    fn quick_measurements_wait_for_the_interval() {
        let quick = Due::default().after(EVERY, Millis(1_000), Millis(1_001), Some(Millis(1_002)));
        assert_eq!(quick, Due { loss: Millis(2_001), sample: Millis(1_000 + SAMPLE_EVERY_MS) });
    }
}
