//! The model with AdamW or Muon on the processor: the [`Trainer`] that native learners and browsers without a GPU use.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use super::gradient::{CpuGradient, PIECE, Sums};
use super::kernels;
use super::matmul::Products;
use super::muon::{MatrixStep, MuonScratch};
use super::workspace::Buffer;
use crate::diloco::Layout;
use crate::engine::{EngineError, OptimiserState, StepStats, Trainer};
use crate::model::{
    Adjust, FrozenWeights, InnerSpec, ModelError, ModelSpec, MuonAdjust, MuonMatrix, Optimiser, adamw_ranges,
    check_inner, layout, muon_matrices, second_moments, windows,
};
use crate::token;

/// Trainer of a model on the processor, on one or more threads, with a [`CpuGradient`]. Memory is 4 × 4 bytes for each
/// parameter (parameters, gradient, two moments) plus [`CpuGradient::activation_bytes`]. With Muon, matrices have one
/// moment. If adapters are trained, only they are the parameters, and all of them are trained with AdamW. The frozen
/// weights stay in their given form of one or two bytes each.
pub struct CpuTrainer {
    inner: InnerSpec,
    layout: Layout,
    gradient: CpuGradient,
    products: Products,
    /// First moments, or momentum of matrices with Muon, `[len]`.
    m: Buffer,
    /// Second moments of the parameters that AdamW trains.
    v: Buffer,
    steps: u64,
    /// Loss of the newest step with learnt tokens, in nats per token; 0 before the first.
    loss: f32,
    /// Tokens that went through each expert since the last report, `[layers, E]`.
    seen: Vec<u64>,
    /// Parts of the flat vector, in order.
    parts: Vec<Part>,
    muon: MuonScratch,
}

/// Part of the flat vector that is updated at once.
enum Part {
    /// Values that AdamW trains, either all decayed or none.
    Piece { range: Range<usize>, decayed: bool },
    /// Matrix that Muon trains.
    Matrix(MuonMatrix),
}

impl CpuTrainer {
    /// Creates a trainer whose parameters are [`crate::model::init`] with seed 0 until they are overwritten.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `model` is invalid, or a number in `inner` is out of range.
    /// - [`EngineError::Batch`]: `inner.batch` is out of range.
    /// - [`EngineError::Thread`]: the system provides no more threads.
    /// - [`EngineError::Frozen`]: `model` has adapters, see [`Self::on`].
    pub fn new(model: &ModelSpec, inner: &InnerSpec, threads: NonZeroUsize) -> Result<Self, EngineError> {
        Self::with(model, inner, threads, Products::FASTEST, None)
    }

    /// Does the same as [`Self::new`], on the weights `frozen` if `model` has adapters; otherwise they are ignored.
    ///
    /// # Errors
    /// Those of [`Self::new`], and [`EngineError::FrozenUnfit`]: the weights belong to another model.
    pub fn on(
        frozen: Option<Arc<FrozenWeights>>,
        model: &ModelSpec,
        inner: &InnerSpec,
        threads: NonZeroUsize,
    ) -> Result<Self, EngineError> {
        Self::with(model, inner, threads, Products::FASTEST, frozen)
    }

    /// Creates a trainer on one thread whose steps have the same bits on every machine and in browsers. It uses sums in
    /// a fixed order, no fused multiply-add and no mathematical function of the platform. Simulations need this,
    /// because one seed must lead to one history. (A module compiled for `relaxed-simd` is an exception, because the
    /// browser decides about its multiply-adds.)
    ///
    /// # Errors
    /// Those of [`Self::new`].
    pub fn fixed(model: &ModelSpec, inner: &InnerSpec) -> Result<Self, EngineError> {
        Self::fixed_on(None, model, inner)
    }

    /// Does the same as [`Self::fixed`], on the weights `frozen` if `model` has adapters.
    ///
    /// # Errors
    /// Those of [`Self::on`].
    pub fn fixed_on(
        frozen: Option<Arc<FrozenWeights>>,
        model: &ModelSpec,
        inner: &InnerSpec,
    ) -> Result<Self, EngineError> {
        Self::with(model, inner, NonZeroUsize::MIN, Products::FIXED, frozen)
    }

    fn with(
        model: &ModelSpec,
        inner: &InnerSpec,
        threads: NonZeroUsize,
        products: Products,
        frozen: Option<Arc<FrozenWeights>>,
    ) -> Result<Self, EngineError> {
        let layout = layout(model)?;
        check_inner(inner)?;
        let gradient = CpuGradient::with(model, inner.batch, threads, products, frozen)?;
        Ok(Self {
            inner: *inner,
            parts: parts(&layout, inner.optimiser),
            v: Buffer::zeros(second_moments(&layout, inner.optimiser)),
            m: Buffer::zeros(layout.len()),
            muon: MuonScratch::default(),
            products,
            layout,
            gradient,
            steps: 0,
            loss: 0.0,
            seen: Vec::new(),
        })
    }

    /// Returns true if `moments` belong to this model and this optimiser.
    #[must_use]
    pub fn fits(&self, moments: &OptimiserState) -> bool {
        moments.pair(self.m.len(), self.v.len()).is_some()
    }

    /// Resumes with `moments` from any engine that trained the same model with the same optimiser.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: they belong to another model or another optimiser.
    pub fn resume(&mut self, moments: &OptimiserState) -> Result<(), EngineError> {
        let expected = self.layout.len();
        let found = moments.vectors.iter().map(Vec::len).find(|&len| len != expected).unwrap_or(0);
        let pair = moments.pair(self.m.len(), self.v.len());
        let [m, v] = pair.ok_or(ModelError::Params { found, expected })?;
        self.m.copy_from_slice(m);
        self.v.copy_from_slice(v);
        self.steps = moments.steps;
        Ok(())
    }

    /// Returns the bytes held in addition to parameters, gradient and moments.
    #[must_use]
    pub fn activation_bytes(&self) -> usize {
        self.gradient.activation_bytes()
    }

    /// Returns the mean loss of the learnt tokens among `tokens`, `[batch, context + 1]`, in nats per token, and its
    /// gradient, `[len]`, before clipping. Both are 0 if no token is learnt. Takes no step.
    ///
    /// # Errors
    /// - [`EngineError::Model`], [`EngineError::Windows`]: `tokens` has another shape, or a token is
    ///   outside the vocabulary.
    pub fn loss_and_grad(&mut self, tokens: &[u32]) -> Result<(f32, &[f32]), EngineError> {
        self.check(tokens, 0.0)?;
        let target_count = self.target_count(tokens);
        let sums = self.gradient.differentiate(tokens, target_count)?;
        Ok(((sums.loss / target_count.max(1) as f64) as f32, self.gradient.grad()))
    }

    /// # Errors Those of [`Trainer::step`], except those that only training can detect.
    pub(in crate::engine) fn check(&self, tokens: &[u32], lr: f32) -> Result<(), EngineError> {
        if !(lr.is_finite() && lr >= 0.0) {
            return Err(EngineError::Rate { lr });
        }
        let (found, batch) = (windows(tokens, &self.gradient.network.dims)?, self.batch());
        if found == batch { Ok(()) } else { Err(EngineError::Windows { found, batch }) }
    }

    /// Returns the number of windows in a batch.
    pub(in crate::engine) fn batch(&self) -> usize {
        self.inner.batch as usize
    }

    /// Returns the number of learnt tokens in a batch.
    pub(in crate::engine) fn target_count(&self, tokens: &[u32]) -> u64 {
        token::target_count(tokens, self.gradient.network.dims.context)
    }

    /// Returns parameters and gradient.
    pub(in crate::engine) fn gradient(&mut self) -> &mut CpuGradient {
        &mut self.gradient
    }

    /// Takes the step for the gradient of a batch with the given number of learnt tokens, computed before.
    ///
    /// # Errors
    /// - [`EngineError::NotFinite`]: loss or gradient is not finite; the parameters are unchanged.
    pub(in crate::engine) fn finish(
        &mut self,
        sums: Sums,
        target_count: u64,
        lr: f32,
    ) -> Result<StepStats, EngineError> {
        let tokens = self.batch() as u64 * self.gradient.network.dims.context as u64;
        let loss = if target_count == 0 { self.loss } else { (sums.loss / target_count as f64) as f32 };
        let grad_norm = sums.squares.sqrt() as f32;
        if !(loss.is_finite() && grad_norm.is_finite()) {
            return Err(EngineError::NotFinite { loss, grad_norm });
        }
        (self.loss, self.steps) = (loss, self.steps + 1);
        let numbers = Adjust::new(&self.inner, self.steps, lr, grad_norm);
        self.adjust(&numbers, &MuonAdjust::new(&numbers, lr));
        self.seen.resize(self.gradient.seen().len(), 0);
        self.seen.iter_mut().zip(self.gradient.seen()).for_each(|(seen, more)| *seen += more);
        Ok(StepStats { loss, grad_norm, tokens })
    }

    /// Takes as long as [`Self::finish`] and changes nothing.
    pub(in crate::engine) fn finish_nothing(&mut self, sums: Sums) {
        // Values that are not finite would have an effect even so.
        if sums.squares.is_finite() {
            self.adjust(&Adjust::NOTHING, &MuonAdjust::NOTHING);
        }
    }

    fn adjust(&mut self, numbers: &Adjust, muon: &MuonAdjust) {
        let CpuGradient { params, grad, pool, .. } = &mut self.gradient;
        let (mut params, mut grad) = (&mut **params, &**grad);
        let (mut m, mut v) = (&mut *self.m, &mut *self.v);
        let (mut pieces, mut matrices) = (Vec::with_capacity(self.parts.len()), Vec::new());
        for part in &self.parts {
            let len = part.len();
            let own = (params.split_off_mut(..len), grad.split_off(..len), m.split_off_mut(..len));
            let (Some(params), Some(grad), Some(momentum)) = own else {
                unreachable!("the parts cover the flat vector once")
            };
            match part {
                Part::Piece { decayed, .. } => {
                    let numbers = Adjust { keep: if *decayed { numbers.keep } else { 1.0 }, ..*numbers };
                    let v = v.split_off_mut(..len).expect("each piece has its second moments");
                    pieces.push((params, grad, momentum, v, numbers));
                }
                Part::Matrix(matrix) => matrices.push(MatrixStep { matrix: *matrix, params, grad, momentum }),
            }
        }
        let (scratch, products) = (&self.muon, self.products);
        // A round of the pool wakes all threads.
        if !matrices.is_empty() {
            pool.each(&mut matrices, |step| scratch.adjust(products, step, muon));
        }
        pool.each(&mut pieces, |(params, grad, m, v, numbers)| kernels::adamw(params, grad, m, v, numbers));
    }
}

impl Part {
    fn range(&self) -> Range<usize> {
        match self {
            Self::Piece { range, .. } => range.clone(),
            Self::Matrix(matrix) => matrix.range(),
        }
    }

    fn len(&self) -> usize {
        self.range().len()
    }
}

impl Trainer for CpuTrainer {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn params(&self) -> &[f32] {
        &self.gradient.params
    }

    fn params_mut(&mut self) -> &mut [f32] {
        self.gradient.params_mut()
    }

    fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        self.check(tokens, lr)?;
        let target_count = self.target_count(tokens);
        let sums = self.gradient.differentiate(tokens, target_count)?;
        self.finish(sums, target_count, lr)
    }

    fn rehearse(&mut self, tokens: &[u32]) -> Result<bool, EngineError> {
        self.check(tokens, 0.0)?;
        let sums = self.gradient.differentiate(tokens, self.target_count(tokens))?;
        self.finish_nothing(sums);
        Ok(true)
    }

    fn supports_masks(&self) -> bool {
        true
    }

    fn moments(&self) -> Option<OptimiserState> {
        Some(OptimiserState { steps: self.steps, vectors: vec![self.m.to_vec(), self.v.to_vec()] })
    }

    fn take_expert_counts(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.seen)
    }

    fn describe(&self) -> String {
        self.gradient.describe()
    }
}

/// Returns the matrices of Muon, and the rest in pieces of [`PIECE`], by ascending start.
fn parts(layout: &Layout, optimiser: Optimiser) -> Vec<Part> {
    let cut = |(range, decayed): (Range<usize>, bool)| {
        let end = range.end;
        let piece = move |start| Part::Piece { range: start..end.min(start + PIECE), decayed };
        range.step_by(PIECE).map(piece)
    };
    let mut parts: Vec<Part> = adamw_ranges(layout, optimiser).into_iter().flat_map(cut).collect();
    parts.extend(muon_matrices(layout, optimiser).into_iter().map(Part::Matrix));
    parts.sort_by_key(|part| part.range().start);
    parts
}
