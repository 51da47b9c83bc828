//! Held-out loss of Θ and a text sample, measured in the background at low duty.

mod loss;
mod prompt;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use archipelago_core::diloco::Millis;
use archipelago_core::wire::ModelSpec;
use archipelago_runtime::engine::cpu::Writer;

use crate::actor::{ActorHandle, Subject};
use crate::clock::Clock;
use crate::corpus::Corpus;
use crate::errors::ServerError;
use crate::status::Evaluation;
use crate::store::HeldOut;

pub use loss::LossMeter;

/// Bytes of parameters that a text sample may read, about: each token reads all of them.
const SAMPLE_BYTES: u64 = 8_000_000_000;

/// Tokens of a sample at least and at most.
const SAMPLE_TOKENS: (u64, u64) = (16, 160);

/// Share of one core's time that measuring may take.
const DUTY: f64 = 0.1;

/// Time between two text samples, which cost more than the loss.
const SAMPLE_EVERY: Duration = Duration::from_secs(30);

/// Measures parameters on a fixed part of the held-out text.
pub struct Evaluator {
    spec: ModelSpec,
    meter: LossMeter,
    prompt: Vec<u32>,
    sample_tokens: usize,
    seed: u64,
}

impl Evaluator {
    /// An evaluator of models like `spec` on `held_out`, which fits them, of the text of `corpus`.
    ///
    /// # Errors
    /// `Internal`: the engine cannot be built.
    pub fn new(
        spec: &ModelSpec,
        params: u64,
        held_out: HeldOut,
        corpus: &Corpus,
        seed: u64,
    ) -> Result<Self, ServerError> {
        let cost = size_of::<f32>() as u64 * params.max(1);
        let (least, most) = SAMPLE_TOKENS;
        Ok(Self {
            spec: *spec,
            meter: LossMeter::new(spec, held_out, NonZeroUsize::MIN)?,
            prompt: prompt::of(&corpus.held_out, |tokens| corpus.vocabulary.decode(tokens)).to_vec(),
            sample_tokens: (SAMPLE_BYTES / cost).clamp(least, most) as usize,
            seed,
        })
    }

    /// Tokens that `theta` writes after a fixed prompt, the prompt included.
    ///
    /// # Errors
    /// `Internal`: the parameters do not fit the model.
    pub fn sample(&mut self, theta: &[f32]) -> Result<Vec<u32>, ServerError> {
        let mut writer = Writer::new(&self.spec, theta).map_err(engine)?;
        writer.begin(&self.prompt, 0.8, self.seed).map_err(engine)?;
        let mut tokens = self.prompt.clone();
        tokens.extend(writer.take(self.sample_tokens));
        Ok(tokens)
    }
}

/// Measures whenever something new was merged, at most every `every` and at most a tenth of the time. `written` says
/// how many tokens were merged into what wrote the newest text. Ends with the actor, or once a complete run is measured
/// and has written its last text.
pub async fn run(
    mut evaluator: Evaluator,
    actor: ActorHandle,
    corpus: Arc<Corpus>,
    every: Duration,
    clock: Clock,
    mut written: Option<u64>,
) {
    let mut over = actor.over_watch();
    let mut rounds_before = None;
    let mut sampled = None;
    loop {
        let Some(subject) = actor.subject().await else { return };
        let mut pause = every;
        let Subject { is_final, tokens_merged, rounds, .. } = subject;
        let is_new = if is_final { written != Some(tokens_merged) } else { rounds_before != Some(rounds) };
        if is_new {
            rounds_before = Some(rounds);
            let began = clock.now();
            let is_long_ago = |at| began.since(at) >= SAMPLE_EVERY.as_millis() as u64;
            let sample_due = is_final || sampled.is_none_or(is_long_ago);
            if sample_due {
                (sampled, written) = (Some(began), Some(tokens_merged));
            }
            let measured = tokio::task::spawn_blocking(move || {
                let result = measure(&mut evaluator, &subject, sample_due);
                (evaluator, result)
            });
            let Ok((back, result)) = measured.await else {
                tracing::error!("measuring the held-out loss panicked; it is not measured any more");
                return;
            };
            evaluator = back;
            match result {
                Ok((evaluation, sample)) => {
                    let sample = sample.map(|tokens| corpus.vocabulary.decode(&tokens));
                    actor.evaluated(evaluation, sample).await;
                }
                Err(error) => tracing::warn!(%error, "held-out loss not measured"),
            }
            pause = pause.max(idle_after(began, clock.now()));
        }
        if is_final {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // Its last parameters are worth a look at once.
            _ = over.wait_for(|over| *over) => {}
            () = actor.closed() => return,
        }
    }
}

/// One measurement, and the text written if `sample` asks for it.
///
/// # Errors
/// As [`LossMeter::loss`].
pub fn measure(
    evaluator: &mut Evaluator,
    subject: &Subject,
    sample: bool,
) -> Result<(Evaluation, Option<Vec<u32>>), ServerError> {
    let theta = subject.theta();
    let loss = evaluator.meter.loss(&theta)?;
    let Subject { tokens_merged, rounds, .. } = *subject;
    // Whoever takes it in knows the time.
    let evaluation = Evaluation { tokens_merged, rounds, loss, time_s: 0.0 };
    let written = if sample { Some(evaluator.sample(&theta)?) } else { None };
    Ok((evaluation, written))
}

fn idle_after(began: Millis, ended: Millis) -> Duration {
    Duration::from_millis((ended.since(began) as f64 * (1.0 / DUTY - 1.0)) as u64)
}

fn engine(error: archipelago_runtime::engine::EngineError) -> ServerError {
    ServerError::Internal { what: format!("the model cannot be evaluated: {error}") }
}
