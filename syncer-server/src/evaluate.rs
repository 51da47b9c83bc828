//! Held-out loss of Θ and a text sample, measured in the background at low duty.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use archipelago::diloco::Millis;
use archipelago::engine::cpu::CpuModel;
use archipelago::wire::ModelSpec;

use crate::actor::{ActorHandle, Subject};
use crate::clock::Clock;
use crate::corpus::Corpus;
use crate::errors::ServerError;
use crate::status::Evaluation;

/// Tokens of held-out text that one measurement looks at, about.
const EVAL_TOKENS: usize = 8_192;

/// Windows measured at once; bounds the memory of activations.
const WINDOWS_AT_ONCE: usize = 8;

/// Floating-point operations that a text sample may cost, about.
const SAMPLE_FLOPS: u64 = 40_000_000_000;

/// Tokens of a prompt and of a sample at least and at most.
const PROMPT_TOKENS: usize = 16;
const SAMPLE_TOKENS: (u64, u64) = (16, 160);

/// Share of one core's time that measuring may take.
const DUTY: f64 = 0.1;

/// Time between two text samples, which cost more than the loss.
const SAMPLE_EVERY: Duration = Duration::from_secs(30);

/// Measures parameters on a fixed part of the held-out text.
pub struct Evaluator {
    model: CpuModel,
    /// `[n, context + 1]`.
    windows: Vec<u32>,
    window: usize,
    prompt: Vec<u32>,
    sample_tokens: usize,
    seed: u64,
}

impl Evaluator {
    /// An evaluator of models like `spec` on the held-out text of `corpus`; `None` if that is shorter
    /// than one window.
    ///
    /// # Errors
    /// `Internal`: the engine cannot be built.
    pub fn new(
        spec: &ModelSpec,
        params: u64,
        corpus: &Corpus,
        seed: u64,
    ) -> Result<Option<Self>, ServerError> {
        let window = spec.context as usize + 1;
        let available = corpus.held_out.len() / window;
        let count = EVAL_TOKENS.div_ceil(window).min(available);
        if count == 0 {
            return Ok(None);
        }
        // Spread over the held-out text, always the same ones.
        let stride = available / count * window;
        let windows = (0..count).flat_map(|i| &corpus.held_out[i * stride..][..window]).copied().collect();
        let cost = 2 * params.max(1) * u64::from(spec.context);
        let (least, most) = SAMPLE_TOKENS;
        Ok(Some(Self {
            model: CpuModel::new(spec, NonZeroUsize::MIN).map_err(engine)?,
            windows,
            window,
            prompt: corpus.held_out[..PROMPT_TOKENS.min(corpus.held_out.len())].to_vec(),
            sample_tokens: (SAMPLE_FLOPS / cost).clamp(least, most) as usize,
            seed,
        }))
    }

    /// Mean loss of `theta`, in nats per token.
    ///
    /// # Errors
    /// `Internal`: the parameters do not fit the model.
    pub fn loss(&mut self, theta: &[f32]) -> Result<f32, ServerError> {
        let mut sum = 0.0;
        for batch in self.windows.chunks(WINDOWS_AT_ONCE * self.window) {
            let windows = (batch.len() / self.window) as f64;
            sum += f64::from(self.model.loss(theta, batch).map_err(engine)?) * windows;
        }
        Ok((sum / (self.windows.len() / self.window) as f64) as f32)
    }

    /// Tokens that `theta` writes after a fixed prompt, the prompt included.
    ///
    /// # Errors
    /// `Internal`: the parameters do not fit the model.
    pub fn sample(&mut self, theta: &[f32]) -> Result<Vec<u32>, ServerError> {
        let mut tokens = self.prompt.clone();
        let written = self.model.sample(theta, &self.prompt, self.sample_tokens, 0.8, self.seed);
        tokens.extend(written.map_err(engine)?);
        Ok(tokens)
    }
}

/// Measures whenever something new was merged, at most every `every` and at most a tenth of the time.
/// Ends with the actor.
pub async fn run(
    mut evaluator: Evaluator,
    actor: ActorHandle,
    corpus: Arc<Corpus>,
    every: Duration,
    clock: Clock,
) {
    let mut rounds_before = None;
    let mut sampled = None;
    loop {
        let Some(subject) = actor.subject().await else { return };
        let mut pause = every;
        if rounds_before != Some(subject.rounds) {
            rounds_before = Some(subject.rounds);
            let began = clock.now();
            let sample_due = sampled.is_none_or(|at| began.since(at) >= SAMPLE_EVERY.as_millis() as u64);
            sampled = if sample_due { Some(began) } else { sampled };
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
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = actor.closed() => return,
        }
    }
}

/// One measurement, and the text written if `sample` asks for it.
///
/// # Errors
/// As [`Evaluator::loss`].
pub fn measure(
    evaluator: &mut Evaluator,
    subject: &Subject,
    sample: bool,
) -> Result<(Evaluation, Option<Vec<u32>>), ServerError> {
    let theta = subject.theta();
    let loss = evaluator.loss(&theta)?;
    let Subject { tokens_merged, rounds, .. } = *subject;
    // Whoever takes it in knows the time.
    let evaluation = Evaluation { tokens_merged, rounds, loss, time_s: 0.0 };
    let written = if sample { Some(evaluator.sample(&theta)?) } else { None };
    Ok((evaluation, written))
}

fn idle_after(began: Millis, ended: Millis) -> Duration {
    Duration::from_millis((ended.since(began) as f64 * (1.0 / DUTY - 1.0)) as u64)
}

fn engine(error: archipelago::engine::EngineError) -> ServerError {
    ServerError::Internal { what: format!("the model cannot be evaluated: {error}") }
}
