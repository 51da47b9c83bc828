//! The gradient of a batch, or of a part of a batch, on several threads. They add to each tensor in a fixed order.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::experts::ExpertGradient;
use super::matmul::{Products, WriteMode};
use super::network::{MicrobatchPass, Network};
use super::pool::ThreadPool;
use super::workspace::{Buffer, Workspace};
use super::{THREADS_MAX, describe, kernels};
use crate::engine::{BATCH_MAX, EngineError};
use crate::model::{FrozenWeights, LayerSlots, ModelSpec, Slots, init, layout, windows};
use crate::token;

/// Differentiation of a model on the processor. Each of several workers that share a batch needs its own.
///
/// Each thread takes whole windows rather than rows of a matrix. It runs forwards and backwards on its own and adds to
/// the single gradient in turn. So more threads than windows do not help. A gradient has the same bits for any number
/// of threads that leaves each of them 256 tokens. Memory is 2 × 4 bytes for each parameter (parameters, gradient) plus
/// [`Self::activation_bytes`].
pub struct CpuGradient {
    pub(super) network: Network,
    pub(super) pool: ThreadPool,
    windows_max: u32,
    /// Windows that a thread takes at a time.
    at_once: usize,
    /// One workspace for each thread that can have windows.
    workspaces: Vec<Workspace>,
    pub(super) params: Buffer,
    pub(super) grad: Buffer,
    /// Gradient of the embedded tokens, `[B T, C]`.
    dx: Buffer,
    /// Tokens of the most recent windows that went through each expert, `[layers, E]`; empty in a dense model.
    seen: Vec<u64>,
}

/// Results of [`CpuGradient::differentiate`] besides the gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sums {
    /// Sum of the losses of the learnt tokens, in nats.
    pub loss: f64,
    /// Sum of the squares of the gradient.
    pub squares: f64,
}

impl CpuGradient {
    /// Creates an engine for up to `windows_max` windows at once. Parameters are [`init`] with seed 0 until they are
    /// overwritten.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `model` is invalid.
    /// - [`EngineError::Batch`]: `windows_max` is out of range.
    /// - [`EngineError::Thread`]: the system provides no more threads.
    /// - [`EngineError::Frozen`]: `model` has adapters, see [`CpuTrainer::on`](super::CpuTrainer::on).
    pub fn new(model: &ModelSpec, windows_max: u32, threads: NonZeroUsize) -> Result<Self, EngineError> {
        Self::with(model, windows_max, threads, Products::FASTEST, None)
    }

    pub(super) fn with(
        model: &ModelSpec,
        windows_max: u32,
        threads: NonZeroUsize,
        products: Products,
        frozen: Option<Arc<FrozenWeights>>,
    ) -> Result<Self, EngineError> {
        let len = layout(model)?.len();
        if windows_max == 0 || windows_max > BATCH_MAX {
            return Err(EngineError::Batch { batch: windows_max });
        }
        let (network, batch) = (Network::new(model, products, frozen)?, windows_max as usize);
        let pool = ThreadPool::new(threads.min(THREADS_MAX))?;
        let at_once = network.windows_at_once(batch, pool.threads());
        let useful = pool.threads().min(batch.div_ceil(at_once));
        let mut params = Buffer::zeros(len);
        params.copy_from_slice(&init(model, 0)?);
        Ok(Self {
            pool,
            windows_max,
            at_once,
            workspaces: (0..useful).map(|_| Workspace::new(&network.dims, at_once, true)).collect(),
            params,
            grad: Buffer::zeros(len),
            dx: Buffer::zeros(batch * network.dims.context * network.dims.width),
            seen: vec![0; network.dims.layers * network.dims.experts],
            network,
        })
    }

    /// Returns the parameters, `[len]`, to overwrite in part or whole.
    pub fn params_mut(&mut self) -> &mut [f32] {
        &mut self.params
    }

    /// Returns the gradient that [`Self::differentiate`] computed, `[len]`.
    #[must_use]
    pub fn grad(&self) -> &[f32] {
        &self.grad
    }

    /// Returns the number of tokens routed to each expert in the most recent windows, `[layers, E]`; empty in a dense
    /// model.
    #[must_use]
    pub fn seen(&self) -> &[u64] {
        &self.seen
    }

    /// Returns the bytes held in addition to parameters and gradient.
    #[must_use]
    pub fn activation_bytes(&self) -> usize {
        let own = self.dx.bytes() + self.network.rotary.bytes();
        own + self.workspaces.iter().map(Workspace::bytes).sum::<usize>()
    }

    /// Returns a description of the hardware in use, for people: "cpu avx512 2 threads".
    #[must_use]
    pub fn describe(&self) -> String {
        describe(&self.pool)
    }

    /// Computes the gradient of the losses of the learnt tokens among `tokens`, `[n, context + 1]`, each with weight `1
    /// / count`. If these windows are part of a batch and `count` is the number of all its learnt tokens, the gradients
    /// of the parts add up to the gradient of the mean loss. If `count` is 0, no token is learnt and the gradient is 0.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `tokens` has another shape, or a token is outside the vocabulary.
    /// - [`EngineError::Windows`]: there are more windows than the engine was built for.
    pub fn differentiate(&mut self, tokens: &[u32], count: u64) -> Result<Sums, EngineError> {
        let (found, batch) = (windows(tokens, &self.network.dims)?, self.windows_max as usize);
        if found > batch {
            return Err(EngineError::Windows { found, batch });
        }
        let loss = self.run_windows(tokens, (1.0 / count.max(1) as f64) as f32);
        Ok(Sums { loss, squares: self.add_embedded(tokens) })
    }

    /// Overwrites the gradient, `[len]`.
    pub(in crate::engine) fn set_grad(&mut self, grad: &[f32]) {
        self.grad.copy_from_slice(grad);
    }

    /// Adds the gradients of other parts of the batch, `[len]` each, in the given order; returns the sum of squares.
    pub(in crate::engine) fn add(&mut self, parts: &[&[f32]]) -> f64 {
        let mut squares = vec![0.0; self.grad.len().div_ceil(PIECE)];
        let mut jobs: Vec<_> = self.grad.chunks_mut(PIECE).zip(&mut squares).enumerate().collect();
        self.pool.each(&mut jobs, |(i, (grad, square))| {
            let start = *i * PIECE;
            for part in parts {
                kernels::add(grad, &part[start..start + grad.len()]);
            }
            **square = kernels::squares(grad);
        });
        squares.iter().sum()
    }

    /// Runs forwards and backwards. The gradient of the embedded tokens stays in `dx`. Returns the sum of the losses.
    fn run_windows(&mut self, tokens: &[u32], share: f32) -> f64 {
        let (network, params) = (&self.network, &*self.params);
        let (len, c) = (network.dims.context, network.dims.width);
        let at_once = self.at_once;
        let gradient = Gradient::new(&network.slots, c, &mut self.grad);
        let batches = tokens.chunks(at_once * (len + 1));
        let mut losses = vec![0.0; batches.len()];
        let jobs = batches.zip(self.dx.chunks_mut(at_once * len * c)).zip(&mut losses).enumerate();
        let aux = network.dims.aux_loss * share / network.dims.layers as f32;
        let seen = Mutex::new(std::mem::take(&mut self.seen));
        seen.lock().expect("nobody has it yet").fill(0);
        // Microbatches are handed out in order, so each waits only for running ones.
        let queue = Mutex::new(jobs);
        let next = || queue.lock().expect("no thread panics with the lock").next();
        self.pool.each(&mut self.workspaces, |work| {
            while let Some((turn, ((tokens, dx), loss))) = next() {
                let rows = tokens.len() / (len + 1) * len;
                let pass = MicrobatchPass { network, params, past: 0, len, rows };
                let windows = tokens.chunks_exact(len + 1);
                let inputs = windows.clone().flat_map(|window| &window[..len]);
                pass.forward(inputs.map(|&token| token::id(token)), work);
                work.add_expert_counts(&mut seen.lock().expect("no thread panics with the lock"));
                work.mixing.balance.clear();
                let target_count = windows.clone().map(|window| token::target_count(window, len) as f32);
                work.mixing.balance.extend(target_count.map(|target_count| aux * target_count));
                let mut targets = std::mem::take(&mut work.targets);
                targets.clear();
                targets.extend(windows.flat_map(|window| &window[1..]));
                *loss = pass.loss_back(&targets, share, turn, &gradient, work);
                work.targets = targets;
                pass.backward(turn, &gradient, dx, work);
            }
        });
        self.seen = seen.into_inner().expect("no thread panics with the lock");
        losses.iter().sum()
    }

    /// Adds the gradient of the embedded tokens, in token order, unless the embedding is frozen; returns the sum of
    /// squares.
    fn add_embedded(&mut self, tokens: &[u32]) -> f64 {
        let Network { slots, dims, .. } = &self.network;
        let (c, len) = (dims.width, dims.context);
        let embed = if slots.has_adapters() { 0 } else { slots.embed.end };
        let mut squares = vec![0.0; self.grad.len().div_ceil(PIECE)];
        let dx = &*self.dx;
        let mut jobs: Vec<_> = self.grad.chunks_mut(PIECE).zip(&mut squares).enumerate().collect();
        self.pool.each(&mut jobs, |(i, (grad, square))| {
            let start = *i * PIECE;
            if start < embed {
                let inputs = tokens.chunks_exact(len + 1).flat_map(|window| &window[..len]);
                for (&token, dx) in inputs.zip(dx.chunks_exact(c)) {
                    add_row(grad, start, token::id(token) as usize * c, dx);
                }
            }
            **square = kernels::squares(grad);
        });
        squares.iter().sum()
    }
}

/// Values in a piece of the passes over all parameters: small enough for the cache, with enough pieces to balance.
pub(super) const PIECE: usize = 1 << 15;

/// Adds `row`, which starts at `at` in the flat vector, to its overlap with the part that begins at `start`.
fn add_row(part: &mut [f32], start: usize, at: usize, row: &[f32]) {
    let (from, to) = (at.max(start), (at + row.len()).min(start + part.len()));
    if from < to {
        kernels::add(&mut part[from - start..to - start], &row[from - at..to - at]);
    }
}

/// Rows of the output head whose gradient forms one turn, so that a large vocabulary does not delay other threads.
pub(super) const HEAD_ROWS: usize = 4096;

/// The gradient, split by tensor, to which threads add in turn.
pub struct Gradient<'a> {
    pub(super) layers: Vec<LayerGradient<'a>>,
    pub(super) norm: Turns<'a>,
    pub(super) head: Vec<Turns<'a>>,
}

/// The gradient of one layer.
pub(super) struct LayerGradient<'a> {
    pub(super) norm1: Turns<'a>,
    pub(super) qkv: Turns<'a>,
    pub(super) out: Turns<'a>,
    pub(super) norm2: Turns<'a>,
    pub(super) gate_up: Turns<'a>,
    pub(super) down: Turns<'a>,
    pub(super) router: Turns<'a>,
    pub(super) experts: Vec<ExpertGradient<'a>>,
    pub(super) adapters: Vec<AdapterGradient<'a>>,
}

/// The gradient of one adapter.
pub(super) struct AdapterGradient<'a> {
    pub(super) a: Turns<'a>,
    pub(super) b: Turns<'a>,
}

impl<'a> Gradient<'a> {
    /// Splits the flat gradient, `[len]`, into its tensors. Frozen tensors have an empty slice. Initial values do not
    /// matter, because turn 0 overwrites them. An embedding that is not also the head is zeroed, because no turn writes
    /// it.
    pub fn new(slots: &Slots, width: usize, flat: &'a mut [f32]) -> Self {
        let mut rest = flat;
        let mut take = |len: usize| {
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(len);
            rest = tail;
            head
        };
        let is_frozen = slots.has_adapters();
        let len = |range: &Range<usize>| if is_frozen { 0 } else { range.len() };
        let adapters: Vec<Vec<AdapterGradient<'a>>> =
            slots.layers.iter().map(|layer| Self::adapters(layer, &mut take)).collect();
        let embed = take(len(&slots.embed));
        let mut turns = |range: &Range<usize>| Turns::new(take(len(range)));
        let layers = slots.layers.iter().zip(adapters).map(|(slots, adapters)| LayerGradient {
            norm1: turns(&slots.norm1),
            qkv: turns(&slots.qkv),
            out: turns(&slots.out),
            norm2: turns(&slots.norm2),
            gate_up: turns(&slots.gate_up),
            down: turns(&slots.down),
            router: turns(&slots.router),
            experts: Self::experts(slots, &mut turns),
            adapters,
        });
        let (layers, norm) = (layers.collect(), turns(&slots.norm));
        let head = if slots.is_tied() {
            embed
        } else {
            embed.fill(0.0);
            take(len(&slots.head))
        };
        let head = head.chunks_mut(HEAD_ROWS * width).map(Turns::new).collect();
        Self { layers, norm, head }
    }

    fn adapters(
        slots: &LayerSlots,
        mut take: impl FnMut(usize) -> &'a mut [f32],
    ) -> Vec<AdapterGradient<'a>> {
        let mut turns = |range: &Range<usize>| Turns::new(take(range.len()));
        let each = slots.adapters.iter();
        each.map(|adapter| AdapterGradient { a: turns(&adapter.a), b: turns(&adapter.b) }).collect()
    }
}

/// A layer in the backward pass: the ranges of its weights, the slices of their gradients, and the current turn.
pub(super) struct LayerBack<'a, 'g> {
    pub(super) slots: &'a LayerSlots,
    pub(super) gradient: &'a LayerGradient<'g>,
    pub(super) turn: usize,
}

/// Adds to the gradient of a vector, unless the vector is frozen; turn 0 overwrites.
pub(super) fn add_vector(turns: &Turns<'_>, turn: usize, dw: &[f32]) {
    if turns.is_empty() {
        return;
    }
    turns.take(turn, |sum| if turn == 0 { sum.copy_from_slice(dw) } else { kernels::add(sum, dw) });
}

/// Returns how turn `turn` treats existing values.
pub(super) fn store(turn: usize) -> WriteMode {
    if turn == 0 { WriteMode::Set } else { WriteMode::Add }
}

/// A slice to which several threads add in a fixed order.
///
/// Gradients of many microbatches go into one buffer instead of one per thread. Microbatch `i + 1` adds only after `i`
/// has, so the sum has the same bits regardless of the number of threads and their timing. Threads wait once, at the
/// first tensor; from then on they follow each other at a distance.
pub struct Turns<'a> {
    next: AtomicUsize,
    slice: Mutex<&'a mut [f32]>,
    is_empty: bool,
}

/// Number of polls before a waiting thread yields to another thread.
const SPINS: u32 = 1_000;
/// The value of `next` after a panic, when no further turn will come.
const BROKEN: usize = usize::MAX;

impl<'a> Turns<'a> {
    /// Creates turns on `slice`, starting with turn 0.
    pub fn new(slice: &'a mut [f32]) -> Self {
        Self { next: AtomicUsize::new(0), is_empty: slice.is_empty(), slice: Mutex::new(slice) }
    }

    /// Returns true if there is nothing to add to, because the tensor is frozen.
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Waits for turn `turn`, then does `work` on the slice. Each turn is taken once. Every earlier turn must be taken
    /// by a thread that does not wait for this one.
    pub fn take(&self, turn: usize, work: impl FnOnce(&mut [f32])) {
        let mut spins = 0;
        loop {
            match self.next.load(Ordering::Acquire) {
                next if next == turn => break,
                BROKEN => panic!("another thread panicked at its turn"),
                _ if spins < SPINS => std::hint::spin_loop(),
                _ => std::thread::yield_now(),
            }
            spins += 1;
        }
        let mut pass = TurnGuard { next: &self.next, to: BROKEN };
        work(&mut self.slice.lock().expect("a panic breaks the turns first"));
        pass.to = turn + 1;
    }
}

/// Guard that passes the turn on when it is dropped, and therefore also on a panic.
struct TurnGuard<'a> {
    next: &'a AtomicUsize,
    to: usize,
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        self.next.store(self.to, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_order() {
        let mut values = vec![0.0; 3];
        let turns = Turns::new(&mut values);
        std::thread::scope(|scope| {
            for turn in (0..8_u8).rev() {
                let turns = &turns;
                scope.spawn(move || {
                    turns.take(usize::from(turn), |slice| slice[1] = slice[1] * 2.0 + f32::from(turn));
                });
            }
        });
        assert_eq!(values, [0.0, (0..8_u8).fold(0.0, |sum, turn| sum * 2.0 + f32::from(turn)), 0.0]);
    }

    #[test]
    fn a_panic_frees_those_who_wait() {
        let mut values = vec![0.0];
        let turns = Turns::new(&mut values);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| turns.take(1, |_| ()));
            let failing = scope.spawn(|| turns.take(0, |_| panic!("on purpose")));
            assert!(failing.join().is_err());
            assert!(waiting.join().is_err());
        });
    }
}
