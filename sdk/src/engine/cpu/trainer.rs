use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Mutex;

use super::buffer::Buffer;
use super::kernels;
use super::network::{Gradient, Network, Pass};
use super::pool::Pool;
use super::workspace::Workspace;
use super::{THREADS_MAX, describe};
use crate::diloco::Layout;
use crate::engine::{BATCH_MAX, EngineError, Moments, StepStats, Trainer};
use crate::model::{
    Adjust, InnerSpec, ModelError, ModelSpec, check_inner, decayed_ranges, init, layout, windows,
};

/// Trains a model on the processor, on one or more threads.
///
/// Threads take windows, not rows of a matrix: each runs forwards and backwards on its own and adds to
/// the one gradient in turn. So more threads than windows in the batch do not help, and a step has the same
/// bits for any number of threads that leaves each of them 256 tokens. Memory is 4 × 4 bytes for each parameter (parameters, gradient, two
/// moments) and [`Self::activation_bytes`].
pub struct CpuTrainer {
    inner: InnerSpec,
    layout: Layout,
    network: Network,
    pool: Pool,
    /// Windows that a thread takes at a time.
    at_once: usize,
    /// One for each thread that can have windows.
    workspaces: Vec<Workspace>,
    params: Buffer,
    grad: Buffer,
    m: Buffer,
    v: Buffer,
    steps: u64,
    /// Gradient of the embedded tokens, `[B T, C]`.
    dx: Buffer,
    /// Pieces of the flat vector, each wholly decayed or not.
    pieces: Vec<(Range<usize>, bool)>,
}

/// Values in a piece of the passes over all parameters: in the cache, and many enough to balance.
const PIECE: usize = 1 << 15;

impl CpuTrainer {
    /// A trainer whose parameters are [`init`] with seed 0 until they are overwritten.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `model` is no model, or a number in `inner` is out of range.
    /// - [`EngineError::Batch`]: `inner.batch` is out of range.
    /// - [`EngineError::Thread`]: the system gives no more threads.
    pub fn new(model: &ModelSpec, inner: &InnerSpec, threads: NonZeroUsize) -> Result<Self, EngineError> {
        let layout = layout(model)?;
        check_inner(inner)?;
        if inner.batch == 0 || inner.batch > BATCH_MAX {
            return Err(EngineError::Batch { batch: inner.batch });
        }
        let (network, len, batch) = (Network::new(model), layout.len(), inner.batch as usize);
        let pool = Pool::new(threads.min(THREADS_MAX))?;
        let at_once = network.windows_at_once(batch, pool.threads());
        let useful = pool.threads().min(batch.div_ceil(at_once));
        let mut params = Buffer::zeros(len);
        params.copy_from_slice(&init(model, 0)?);
        Ok(Self {
            inner: *inner,
            pieces: pieces(&layout),
            layout,
            pool,
            at_once,
            workspaces: (0..useful).map(|_| Workspace::new(&network.dims, at_once, true)).collect(),
            params,
            grad: Buffer::zeros(len),
            m: Buffer::zeros(len),
            v: Buffer::zeros(len),
            steps: 0,
            dx: Buffer::zeros(batch * network.dims.context * network.dims.width),
            network,
        })
    }

    /// Goes on with `moments`, of any engine that trained the same model.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: they are of another model.
    pub fn resume(&mut self, moments: &Moments) -> Result<(), EngineError> {
        let expected = self.layout.len();
        for found in [moments.m.len(), moments.v.len()] {
            if found != expected {
                return Err(ModelError::Params { found, expected }.into());
            }
        }
        self.m.copy_from_slice(&moments.m);
        self.v.copy_from_slice(&moments.v);
        self.steps = moments.steps;
        Ok(())
    }

    /// Bytes held beside parameters, gradient and moments.
    #[must_use]
    pub fn activation_bytes(&self) -> usize {
        let own = self.dx.bytes() + self.network.rotary.bytes();
        own + self.workspaces.iter().map(Workspace::bytes).sum::<usize>()
    }

    /// Mean loss of `tokens`, `[batch, context + 1]`, in nats per token, and its gradient, `[len]`,
    /// before clipping. Takes no step.
    ///
    /// # Errors
    /// - [`EngineError::Model`], [`EngineError::Windows`]: `tokens` has another shape, or a token is
    ///   outside the vocabulary.
    pub fn loss_and_grad(&mut self, tokens: &[u32]) -> Result<(f32, &[f32]), EngineError> {
        let (loss, _) = self.differentiate(tokens)?;
        Ok((loss as f32, &self.grad))
    }

    /// Fills `grad`; returns the mean loss and the sum of the gradient's squares.
    fn differentiate(&mut self, tokens: &[u32]) -> Result<(f64, f64), EngineError> {
        let (found, batch) = (windows(tokens, &self.network.dims)?, self.inner.batch as usize);
        if found != batch {
            return Err(EngineError::Windows { found, batch });
        }
        let loss = self.run_windows(tokens);
        Ok((loss, self.finish_gradient(tokens)))
    }

    /// Forwards and backwards; the embedded tokens' share stays in `dx`. Returns the mean loss.
    fn run_windows(&mut self, tokens: &[u32]) -> f64 {
        let (network, params) = (&self.network, &*self.params);
        let (len, c) = (network.dims.context, network.dims.width);
        let at_once = self.at_once;
        let count = self.inner.batch as usize * len;
        let share = (1.0 / count as f64) as f32;
        let gradient = Gradient::new(network, &mut self.grad);
        let batches = tokens.chunks(at_once * (len + 1));
        let mut losses = vec![0.0; batches.len()];
        let jobs = batches.zip(self.dx.chunks_mut(at_once * len * c)).zip(&mut losses).enumerate();
        // Microbatches are handed out in order, so each waits only for ones that are running.
        let queue = Mutex::new(jobs);
        let next = || queue.lock().expect("no thread panics with the lock").next();
        self.pool.each(&mut self.workspaces, |work| {
            while let Some((turn, ((tokens, dx), loss))) = next() {
                let rows = tokens.len() / (len + 1) * len;
                let pass = Pass { network, params, len, rows };
                let windows = tokens.chunks_exact(len + 1);
                pass.forward(windows.clone().flat_map(|window| &window[..len]).copied(), work);
                let mut targets = std::mem::take(&mut work.targets);
                targets.clear();
                targets.extend(windows.flat_map(|window| &window[1..]));
                *loss = pass.loss_back(&targets, share, turn, &gradient, work);
                work.targets = targets;
                pass.backward(turn, &gradient, dx, work);
            }
        });
        losses.iter().sum::<f64>() / count as f64
    }

    /// Adds the embedded tokens' share, in the order of the tokens; returns the sum of squares.
    fn finish_gradient(&mut self, tokens: &[u32]) -> f64 {
        let (embed, c, len) =
            (self.network.slots.embed.end, self.network.dims.width, self.network.dims.context);
        let mut squares = vec![0.0; self.grad.len().div_ceil(PIECE)];
        let dx = &*self.dx;
        let mut jobs: Vec<_> = self.grad.chunks_mut(PIECE).zip(&mut squares).enumerate().collect();
        self.pool.each(&mut jobs, |(i, (grad, square))| {
            let start = *i * PIECE;
            if start < embed {
                let inputs = tokens.chunks_exact(len + 1).flat_map(|window| &window[..len]);
                for (&token, dx) in inputs.zip(dx.chunks_exact(c)) {
                    add_row(grad, start, token as usize * c, dx);
                }
            }
            **square = kernels::squares(grad);
        });
        squares.iter().sum()
    }

    fn adjust(&mut self, numbers: &Adjust) {
        let (mut params, mut grad) = (&mut *self.params, &*self.grad);
        let (mut m, mut v) = (&mut *self.m, &mut *self.v);
        let mut jobs: Vec<_> = Vec::with_capacity(self.pieces.len());
        for (range, decayed) in &self.pieces {
            let numbers = Adjust { keep: if *decayed { numbers.keep } else { 1.0 }, ..*numbers };
            let own = (
                params.split_off_mut(..range.len()),
                grad.split_off(..range.len()),
                m.split_off_mut(..range.len()),
                v.split_off_mut(..range.len()),
            );
            let (Some(params), Some(grad), Some(m), Some(v)) = own else {
                unreachable!("the pieces cover the flat vector once")
            };
            jobs.push((params, grad, m, v, numbers));
        }
        self.pool
            .each(&mut jobs, |(params, grad, m, v, numbers)| kernels::adamw(params, grad, m, v, numbers));
    }
}

impl Trainer for CpuTrainer {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn params(&self) -> &[f32] {
        &self.params
    }

    fn params_mut(&mut self) -> &mut [f32] {
        &mut self.params
    }

    fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        if !(lr.is_finite() && lr >= 0.0) {
            return Err(EngineError::Rate { lr });
        }
        let (loss, squares) = self.differentiate(tokens)?;
        let (loss, grad_norm) = (loss as f32, squares.sqrt() as f32);
        if !(loss.is_finite() && grad_norm.is_finite()) {
            return Err(EngineError::NotFinite { loss, grad_norm });
        }
        self.steps += 1;
        self.adjust(&Adjust::new(&self.inner, self.steps, lr, grad_norm));
        let tokens = u64::from(self.inner.batch) * self.network.dims.context as u64;
        Ok(StepStats { loss, grad_norm, tokens })
    }

    fn describe(&self) -> String {
        describe(&self.pool)
    }
}

/// Cuts the runs of decayed and other parameters into pieces of [`PIECE`].
fn pieces(layout: &Layout) -> Vec<(Range<usize>, bool)> {
    let cut = |(range, decayed): (Range<usize>, bool)| {
        let end = range.end;
        range.step_by(PIECE).map(move |start| (start..end.min(start + PIECE), decayed))
    };
    decayed_ranges(layout).into_iter().flat_map(cut).collect()
}

/// Adds `row`, which starts at `at` in the flat vector, to the part of it that begins at `start`.
fn add_row(part: &mut [f32], start: usize, at: usize, row: &[f32]) {
    let (from, to) = (at.max(start), (at + row.len()).min(start + part.len()));
    if from < to {
        kernels::add(&mut part[from - start..to - start], &row[from - at..to - at]);
    }
}
