//! The operations of the model, forwards and backwards, for a few windows on one thread, and its forward passes alone.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use super::gradient::{Gradient, HEAD_ROWS, LayerBack, Turns, add_vector, store};
use super::kernels::{self, Direction, Rotary};
use super::linear::Frozen;
use super::matmul::{Mat, MatMut, Products, WriteMode};
use super::pool::ThreadPool;
use super::workspace::{Layer, Workspace};
use super::{THREADS_MAX, attention, describe};
use crate::engine::{EngineError, frozen_for};
use crate::model::{
    Dims, FrozenWeights, LayerSlots, LoraTarget, ModelError, ModelSpec, Slots, check_len, check_vocab,
    layout, windows,
};
use crate::token;

/// A model's sizes and tables. Each call receives the parameters.
pub struct Network {
    /// The sizes.
    pub dims: Dims,
    /// Ranges of the tensors.
    pub slots: Slots,
    /// Rotary positions.
    pub rotary: Rotary,
    /// Matrix products.
    pub products: Products,
    /// Frozen weights, if adapters are trained.
    pub frozen: Option<Frozen>,
}

impl Network {
    /// Creates the network of the model that `spec` describes, which [`crate::model::layout`] must accept, on the
    /// weights `frozen` if it has adapters.
    ///
    /// # Errors
    /// [`EngineError::Frozen`] and [`EngineError::FrozenUnfit`].
    pub fn new(
        spec: &ModelSpec,
        products: Products,
        frozen: Option<Arc<FrozenWeights>>,
    ) -> Result<Self, EngineError> {
        let dims = Dims::new(spec);
        let slots = Slots::new(&dims);
        let rotary = Rotary::new(dims.context, dims.head, dims.rope_theta);
        let frozen = frozen_for(spec, frozen)?.map(|weights| Frozen::new(weights, &slots));
        Ok(Self { dims, slots, rotary, products, frozen })
    }

    /// Returns the number of windows that each of `threads` threads takes at a time: enough tokens for the matrix
    /// products, and few enough that each thread gets some.
    pub fn windows_at_once(&self, batch: usize, threads: usize) -> usize {
        (ROWS / self.dims.context).min(batch / threads).max(1)
    }
}

/// Tokens that a thread takes at a time, unless a window is longer. At 256, the matrix products of the `small` preset
/// are faster than at 128, and as fast as at 512.
const ROWS: usize = 256;

/// Matrices that lie side by side. Their results are columns of the same rows.
const QKV: &[LoraTarget] = &[LoraTarget::Q, LoraTarget::K, LoraTarget::V];
const OUT: &[LoraTarget] = &[LoraTarget::O];
const GATE_UP: &[LoraTarget] = &[LoraTarget::Gate, LoraTarget::Up];
const DOWN: &[LoraTarget] = &[LoraTarget::Down];

/// One microbatch in progress.
pub struct MicrobatchPass<'a> {
    /// The model.
    pub network: &'a Network,
    /// The parameters, `[len]`.
    pub params: &'a [f32],
    /// Number of tokens before the one window, whose keys and values [`Workspace::kept`] holds; otherwise 0.
    pub past: usize,
    /// Tokens in each window, at most T including the past ones.
    pub len: usize,
    /// Rows: windows times `len`.
    pub rows: usize,
}

impl MicrobatchPass<'_> {
    pub(super) fn weight(&self, range: &std::ops::Range<usize>) -> &[f32] {
        &self.params[range.clone()]
    }

    pub(super) fn multiply(&self, out: MatMut<'_>, store: WriteMode, a: Mat<'_>, b: Mat<'_>) {
        self.network.products.multiply(out, store, 1.0, a, b);
    }

    /// Adds `dyᵀ x` to the gradient of a matrix, unless the matrix is frozen; turn 0 overwrites.
    pub(super) fn add_product(
        &self,
        turns: &Turns<'_>,
        turn: usize,
        dy: Mat<'_>,
        x: Mat<'_>,
        shape: (usize, usize),
    ) {
        if turns.is_empty() {
            return;
        }
        turns.take(turn, |dw| self.multiply(MatMut::new(dw, shape.0, shape.1), store(turn), dy.t(), x));
    }

    /// Runs embedded `inputs` through all layers and the last norm, into `normed`.
    pub fn forward(&self, inputs: impl Iterator<Item = u32>, work: &mut Workspace) {
        let Dims { width: c, eps, .. } = self.network.dims;
        let slots = &self.network.slots;
        let values = self.rows * c;
        let first = &mut work.layers[0];
        first.x.chunks_exact_mut(c).zip(inputs).for_each(|(x, token)| self.embed(token, x));
        let norm1 = self.vector(&slots.layers[0].norm1);
        kernels::norm(&first.x[..values], norm1, eps, &mut work.normed, &mut first.scales1[..self.rows]);
        for (i, slots) in slots.layers.iter().enumerate() {
            work.take_kept(i);
            self.layer(slots, i % work.layers.len(), work);
            work.take_kept(i);
            // The next norm adds the output of the feed-forward layer.
            let layers = work.layers.len();
            let middle = std::mem::take(&mut work.layers[i % layers].middle);
            let (norm, x, scales) = match self.network.slots.layers.get(i + 1) {
                Some(next) => {
                    let layer = &mut work.layers[(i + 1) % layers];
                    (&next.norm1, &mut layer.x, &mut layer.scales1)
                }
                None => (&self.network.slots.norm, &mut work.x, &mut work.scales),
            };
            let (norm, branch) = (self.vector(norm), &work.branch[..values]);
            kernels::add_norm(
                &middle[..values],
                branch,
                norm,
                eps,
                x,
                &mut work.normed,
                &mut scales[..self.rows],
            );
            work.layers[i % layers].middle = middle;
        }
    }

    /// Computes one layer from `normed` into `middle`, and leaves in `branch` the value to be added to it.
    fn layer(&self, slots: &LayerSlots, index: usize, work: &mut Workspace) {
        let dims = &self.network.dims;
        let (c, f, wide) = (dims.width, dims.ff, dims.qkv_width());
        let values = self.rows * c;
        let layer = &mut work.layers[index];
        let (past, seen) = (self.past, self.past + self.len);
        let qkv = &mut layer.qkv[past * wide..][..self.rows * wide];
        self.linear(&work.normed[..values], &slots.qkv, c, qkv);
        self.adapt(slots, QKV, &work.normed, qkv, wide, &mut layer.low);
        self.network.rotary.turn(qkv, wide, c + dims.kv_width, past..seen, Direction::Forward);
        let windows = layer.qkv[..(past + self.rows) * wide].chunks_exact(seen * wide);
        let windows = windows.zip(layer.attended.chunks_exact_mut(self.len * c));
        for ((qkv, y), lse) in windows.zip(layer.lse.chunks_exact_mut(self.len * dims.heads)) {
            attention::forward(dims, self.network.products, qkv, past, y, lse, &mut work.attention);
        }
        self.linear(&layer.attended[..values], &slots.out, c, &mut work.branch);
        self.adapt(slots, OUT, &layer.attended, &mut work.branch, c, &mut layer.low);
        kernels::add_norm(
            &layer.x[..values],
            &work.branch[..values],
            self.vector(&slots.norm2),
            dims.eps,
            &mut layer.middle,
            &mut work.normed,
            &mut layer.scales2[..self.rows],
        );
        if dims.experts > 0 {
            return self.mixture(slots, index, work);
        }
        let gate_up = &mut layer.gate_up[..self.rows * 2 * f];
        self.linear(&work.normed[..values], &slots.gate_up, c, gate_up);
        self.adapt(slots, GATE_UP, &work.normed, gate_up, 2 * f, &mut layer.low);
        kernels::swiglu(gate_up, &mut work.gated, f);
        self.linear(&work.gated[..self.rows * f], &slots.down, f, &mut work.branch);
        self.adapt(slots, DOWN, &work.gated, &mut work.branch, c, &mut layer.low);
    }

    /// Computes the logits of rows `first..first + rows` of `normed`, into `logits`.
    pub fn logits(&self, first: usize, rows: usize, work: &mut Workspace) {
        let Dims { width: c, vocab, .. } = self.network.dims;
        let logits = &mut work.logits[..rows * vocab];
        self.linear_of(rows, &work.normed[first * c..], &self.network.slots.head, c, logits);
    }

    /// Returns the sum of the losses of `targets`, `[rows]`, in nats, after [`Self::forward`].
    pub fn loss(&self, targets: &[u32], work: &mut Workspace) -> f64 {
        let vocab = self.network.dims.vocab;
        let mut loss = 0.0;
        for (i, targets) in targets.chunks(work.chunk).enumerate() {
            self.logits(i * work.chunk, targets.len(), work);
            let logits = &mut work.logits[..targets.len() * vocab];
            loss += kernels::cross_entropy(logits, targets, vocab, 1.0);
        }
        loss
    }

    /// Returns the same as [`Self::loss`]. Also computes the backward pass of the head, and leaves the gradient of the
    /// last norm's output in `branch`.
    ///
    /// `turn` is the turn of this microbatch, and `share` the weight of one token in the loss.
    pub fn loss_back(
        &self,
        targets: &[u32],
        share: f32,
        turn: usize,
        gradient: &Gradient<'_>,
        work: &mut Workspace,
    ) -> f64 {
        let Dims { width: c, vocab, .. } = self.network.dims;
        let head = &self.network.slots.head;
        // All microbatches but the last, which may be shorter, have as many chunks as the longest.
        let turns = (work.normed.len() / c).div_ceil(work.chunk);
        let mut loss = 0.0;
        for (i, targets) in targets.chunks(work.chunk).enumerate() {
            let (first, rows) = (i * work.chunk, targets.len());
            self.logits(first, rows, work);
            let logits = &mut work.logits[..rows * vocab];
            loss += kernels::cross_entropy(logits, targets, vocab, share);
            self.linear_back_of(rows, logits, head, c, &mut work.branch[first * c..]);
            let normed = Mat::new(&work.normed[first * c..], rows, c);
            for (part, turn_of_part) in gradient.head.iter().enumerate() {
                let start = part * HEAD_ROWS;
                let columns = HEAD_ROWS.min(vocab - start);
                let dlogits = Mat::strided(&work.logits[start..], rows, columns, vocab);
                self.add_product(turn_of_part, turn * turns + i, dlogits, normed, (columns, c));
            }
        }
        loss
    }

    /// Computes the backward pass from `branch` to the embedded tokens, and writes their gradient to `dx`, `[rows, C]`.
    pub fn backward(&self, turn: usize, gradient: &Gradient<'_>, dx: &mut [f32], work: &mut Workspace) {
        let values = self.rows * self.network.dims.width;
        let weight = self.vector(&self.network.slots.norm);
        dx.fill(0.0);
        work.dnorm.fill(0.0);
        let scales = &work.scales[..self.rows];
        kernels::norm_backward(
            &work.branch[..values],
            &work.x[..values],
            weight,
            scales,
            dx,
            &mut work.dnorm,
        );
        add_vector(&gradient.norm, turn, &work.dnorm);
        let layers = self.network.slots.layers.iter().zip(&gradient.layers);
        for (i, (slots, gradient)) in layers.enumerate().rev() {
            let at = LayerBack { slots, gradient, turn };
            let mut layer = std::mem::take(&mut work.layers[i]);
            self.feed_forward_back(&at, dx, &mut layer, work);
            self.attention_back(&at, dx, &layer, work);
            work.layers[i] = layer;
        }
    }

    fn feed_forward_back(
        &self,
        at: &LayerBack<'_, '_>,
        dx: &mut [f32],
        layer: &mut Layer,
        work: &mut Workspace,
    ) {
        let &LayerBack { slots, gradient, turn } = at;
        let Dims { width: c, ff: f, .. } = self.network.dims;
        let values = self.rows * c;
        if self.network.dims.experts > 0 {
            self.mixture_back(at, dx, layer, work);
        } else {
            let dgated = &mut work.gated[..self.rows * f];
            self.linear_back(dx, &slots.down, f, dgated);
            self.adapt_back(slots, DOWN, dx, c, dgated, &mut work.dlow);
            let gate_up = &mut layer.gate_up[..self.rows * 2 * f];
            kernels::swiglu_backward(gate_up, dgated, f);
            self.adapters_back(at, DOWN, dx, c, dgated, (&layer.low[..], &work.dlow[..]));
            let (gated, dgate_up) = (Mat::new(dgated, self.rows, f), Mat::new(gate_up, self.rows, 2 * f));
            self.add_product(&gradient.down, turn, Mat::new(dx, self.rows, c), gated, (c, f));

            let normed = &mut work.normed[..values];
            let (weight, scales) = (self.vector(&slots.norm2), &layer.scales2[..self.rows]);
            kernels::norm_again(&layer.middle[..values], weight, scales, normed);
            self.add_product(&gradient.gate_up, turn, dgate_up, Mat::new(normed, self.rows, c), (2 * f, c));
            self.linear_back(gate_up, &slots.gate_up, c, &mut work.branch);
            self.adapt_back(slots, GATE_UP, gate_up, 2 * f, &mut work.branch, &mut work.dlow);
            self.adapters_back(at, GATE_UP, gate_up, 2 * f, &work.normed, (&layer.low[..], &work.dlow[..]));
        }
        let (weight, scales) = (self.vector(&slots.norm2), &layer.scales2[..self.rows]);
        work.dnorm.fill(0.0);
        let (dy, x) = (&work.branch[..values], &layer.middle[..values]);
        kernels::norm_backward(dy, x, weight, scales, dx, &mut work.dnorm);
        add_vector(&gradient.norm2, turn, &work.dnorm);
    }

    fn attention_back(&self, at: &LayerBack<'_, '_>, dx: &mut [f32], layer: &Layer, work: &mut Workspace) {
        let &LayerBack { slots, gradient, turn } = at;
        let dims = &self.network.dims;
        let (c, wide, window) = (dims.width, dims.qkv_width(), self.len * dims.width);
        let values = self.rows * c;
        self.linear_back(dx, &slots.out, c, &mut work.branch);
        let attended = Mat::new(&layer.attended, self.rows, c);
        self.add_product(&gradient.out, turn, Mat::new(dx, self.rows, c), attended, (c, c));
        self.adapt_back(slots, OUT, dx, c, &mut work.branch, &mut work.dlow);
        self.adapters_back(at, OUT, dx, c, &layer.attended, (&layer.low[..], &work.dlow[..]));

        let dqkv = &mut work.dqkv[..self.rows * wide];
        for (i, dqkv) in dqkv.chunks_exact_mut(self.len * wide).enumerate() {
            let saved = attention::BackwardInputs {
                qkv: &layer.qkv[i * self.len * wide..][..self.len * wide],
                y: &layer.attended[i * window..][..window],
                dy: &work.branch[i * window..][..window],
                lse: &layer.lse[i * self.len * dims.heads..][..self.len * dims.heads],
            };
            attention::backward(dims, self.network.products, &saved, dqkv, &mut work.attention);
        }
        self.network.rotary.turn(dqkv, wide, c + dims.kv_width, 0..self.len, Direction::Backward);

        let (weight, scales) = (self.vector(&slots.norm1), &layer.scales1[..self.rows]);
        let normed = &mut work.normed[..values];
        kernels::norm_again(&layer.x[..values], weight, scales, normed);
        let rows = Mat::new(dqkv, self.rows, wide);
        self.add_product(&gradient.qkv, turn, rows, Mat::new(normed, self.rows, c), (wide, c));
        self.linear_back(dqkv, &slots.qkv, c, &mut work.branch);
        self.adapt_back(slots, QKV, dqkv, wide, &mut work.branch, &mut work.dlow);
        self.adapters_back(at, QKV, dqkv, wide, &work.normed, (&layer.low[..], &work.dlow[..]));
        work.dnorm.fill(0.0);
        let (dy, x) = (&work.branch[..values], &layer.x[..values]);
        kernels::norm_backward(dy, x, weight, scales, dx, &mut work.dnorm);
        add_vector(&gradient.norm1, turn, &work.dnorm);
    }
}

/// Forward passes of a model on the processor: held-out loss and logits. [`super::Writer`] generates text.
pub struct CpuModel {
    network: Network,
    pool: ThreadPool,
    /// One workspace for each thread.
    workspaces: Vec<Workspace>,
}

impl CpuModel {
    /// Creates a model of this shape. Each call receives the parameters.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `spec` is invalid.
    /// - [`EngineError::Thread`]: the system provides no more threads.
    /// - [`EngineError::Frozen`]: `spec` has adapters, see [`Self::on`].
    pub fn new(spec: &ModelSpec, threads: NonZeroUsize) -> Result<Self, EngineError> {
        Self::with(spec, threads, Products::FASTEST, None)
    }

    /// Does the same as [`Self::new`], on the weights `frozen` if `spec` has adapters. Only the adapters are parameters
    /// then.
    ///
    /// # Errors
    /// Those of [`Self::new`], and [`EngineError::FrozenUnfit`]: the weights belong to another model.
    pub fn on(
        frozen: Option<Arc<FrozenWeights>>,
        spec: &ModelSpec,
        threads: NonZeroUsize,
    ) -> Result<Self, EngineError> {
        Self::with(spec, threads, Products::FASTEST, frozen)
    }

    /// Does the same as [`Self::new`] on one thread, with the same bits on every machine: see
    /// [`super::CpuTrainer::fixed`].
    ///
    /// # Errors
    /// Those of [`Self::new`].
    pub fn fixed(spec: &ModelSpec) -> Result<Self, EngineError> {
        Self::with(spec, NonZeroUsize::MIN, Products::FIXED, None)
    }

    fn with(
        spec: &ModelSpec,
        threads: NonZeroUsize,
        products: Products,
        frozen: Option<Arc<FrozenWeights>>,
    ) -> Result<Self, EngineError> {
        layout(spec)?;
        let network = Network::new(spec, products, frozen)?;
        let pool = ThreadPool::new(threads.min(THREADS_MAX))?;
        let workspace = |_| Workspace::new(&network.dims, network.windows_at_once(usize::MAX, 1), false);
        Ok(Self { workspaces: (0..pool.threads()).map(workspace).collect(), network, pool })
    }

    /// Returns a description of the hardware in use, for people: "cpu avx512 2 threads".
    #[must_use]
    pub fn describe(&self) -> String {
        describe(&self.pool)
    }

    /// Returns the mean loss of the learnt tokens among `tokens`, `[n, context + 1]`, in nats per token. It is 0 if no
    /// token is learnt, and not finite if the model is not.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `params` or `tokens` does not fit the model.
    pub fn loss(&mut self, params: &[f32], tokens: &[u32]) -> Result<f32, EngineError> {
        let network = &self.network;
        check_len(params.len(), &network.slots)?;
        let len = network.dims.context;
        windows(tokens, &network.dims)?;
        let count = token::target_count(tokens, len).max(1);
        let batches = tokens.chunks(network.windows_at_once(usize::MAX, 1) * (len + 1));
        let mut losses = vec![0.0; batches.len()];
        let queue = Mutex::new(batches.zip(&mut losses));
        let next = || queue.lock().expect("no thread panics with the lock").next();
        self.pool.each(&mut self.workspaces, |work| {
            while let Some((tokens, loss)) = next() {
                let rows = tokens.len() / (len + 1) * len;
                let windows = tokens.chunks_exact(len + 1);
                let pass = MicrobatchPass { network, params, past: 0, len, rows };
                let inputs = windows.clone().flat_map(|window| &window[..len]);
                pass.forward(inputs.map(|&token| token::id(token)), work);
                let targets: Vec<u32> = windows.flat_map(|window| &window[1..]).copied().collect();
                *loss = pass.loss(&targets, work);
            }
        });
        Ok((losses.iter().sum::<f64>() / count as f64) as f32)
    }

    /// Returns the logits `[t, V]` after each of the `t` tokens of one sequence, on one thread.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `params` or `tokens` does not fit the model.
    pub fn logits(&mut self, params: &[f32], tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
        self.run(params, tokens)?;
        let vocab = self.network.dims.vocab;
        let (pass, work) = self.after(params, tokens.len());
        let mut logits = Vec::with_capacity(tokens.len() * vocab);
        for first in (0..tokens.len()).step_by(work.chunk) {
            let rows = work.chunk.min(tokens.len() - first);
            pass.logits(first, rows, work);
            logits.extend_from_slice(&work.logits[..rows * vocab]);
        }
        Ok(logits)
    }

    /// Runs one sequence up to the last norm, in the first workspace.
    fn run(&mut self, params: &[f32], tokens: &[u32]) -> Result<(), EngineError> {
        let dims = &self.network.dims;
        check_len(params.len(), &self.network.slots)?;
        check_vocab(tokens, dims)?;
        if tokens.is_empty() || tokens.len() > dims.context {
            return Err(ModelError::Sequence { found: tokens.len(), context: dims.context }.into());
        }
        let pass =
            MicrobatchPass { network: &self.network, params, past: 0, len: tokens.len(), rows: tokens.len() };
        pass.forward(tokens.iter().copied(), &mut self.workspaces[0]);
        Ok(())
    }

    /// Returns the pass and the workspace with the results of [`Self::run`].
    fn after<'a>(&'a mut self, params: &'a [f32], len: usize) -> (MicrobatchPass<'a>, &'a mut Workspace) {
        (MicrobatchPass { network: &self.network, params, past: 0, len, rows: len }, &mut self.workspaces[0])
    }
}
