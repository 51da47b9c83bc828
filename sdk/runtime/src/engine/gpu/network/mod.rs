//! Operations of a training step, forward and backward, as dispatches.

mod experts;

use std::ops::Range;

use super::arena::Arena;
use super::attention::{Attention, AttentionPass, Sizes};
use super::frozen::Frozen;
use super::kernels::{self, Call};
use super::matmul::{Form, Matmul, Product, Values, WriteMode};
use super::params;
use super::program::{Builder, Constant, Dispatch, Slice};
use super::step::{BatchShape, Microbatch};
use super::workspace::{Layer, NORM_ROWS, Workspace};
use crate::model::{AdapterSlots, Dims, LayerSlots, LoraTarget, Slots};

/// Maximum number of workgroups in one dimension of a dispatch.
const GROUPS_MAX: usize = 65_535;
/// Assumed cost of reading or writing a value, in floating-point operations of a matrix product.
const MOVE_COST: usize = 8;

/// Inputs of the dispatches of a step.
pub struct Network<'a> {
    /// Sizes of the model.
    pub dims: &'a Dims,
    /// Ranges of the tensors in the flat vector.
    pub slots: &'a Slots,
    /// Layout of the trained parameters on the device.
    pub arena: &'a Arena,
    /// Frozen weights, if adapters are trained.
    pub frozen: Option<&'a Frozen>,
    /// Parameters.
    pub theta: &'a [wgpu::Buffer],
    /// Parameters as 16-bit floats, for matrix products that read weights in this form.
    pub half: Option<&'a [wgpu::Buffer]>,
    /// Gradient of the parameters.
    pub grad: &'a [wgpu::Buffer],
    /// Hyperparameters and other inputs of the step; see [`super::step::StepBuffers`].
    pub hyper: &'a Slice,
    /// Number of tokens that were routed to each expert so far, `[layers, E]`.
    pub seen: &'a Slice,
    /// Buffers of the activations.
    pub work: &'a Workspace,
    /// Number and length of the windows in a microbatch.
    pub shape: BatchShape,
    /// Choice of the kernels of matrix products.
    pub matmul: &'a Matmul,
    /// Number of invocations in a workgroup that processes one row.
    pub lanes: u32,
    /// Kernels and sizes of attention.
    pub attention: (Attention, Sizes),
}

impl Network<'_> {
    /// Adds the forward and backward pass of one microbatch. They set the gradient if `first`, and add to it otherwise.
    /// They write the losses of the microbatch's tokens to `losses`, `[R]`.
    pub fn microbatch(&self, builder: &mut Builder, tokens: &Microbatch, losses: &Slice, first: bool) {
        self.forward(builder, tokens);
        self.head(builder, tokens, losses, first);
        self.backward(builder, tokens, first);
    }

    fn rows(&self) -> usize {
        self.shape.rows()
    }

    /// Adds a dispatch with one workgroup per row, for `count` rows of about `width` values.
    fn by_row(&self, builder: &mut Builder, call: Call, storage: Vec<Slice>, count: usize, width: usize) {
        builder.add(Dispatch {
            call,
            constants: vec![("WG", self.lanes)],
            storage,
            groups: [count.min(GROUPS_MAX) as u32, 1, 1],
            cost: (count * width * MOVE_COST) as u64,
        });
    }

    /// Adds a dispatch with one invocation per item, for `count` items of `width` values.
    fn by_item(&self, builder: &mut Builder, call: Call, storage: Vec<Slice>, count: usize, width: usize) {
        self.by_items(builder, call, (storage, Vec::new()), count, width);
    }

    /// Adds a dispatch as [`Self::by_item`] does, with constants for the kernel.
    fn by_items(
        &self,
        builder: &mut Builder,
        call: Call,
        (storage, constants): (Vec<Slice>, Vec<Constant>),
        count: usize,
        width: usize,
    ) {
        const WG: usize = 64;
        builder.add(Dispatch {
            call,
            constants: [constants, vec![("WG", WG as u32)]].concat(),
            storage,
            groups: [count.div_ceil(WG).min(GROUPS_MAX) as u32, 1, 1],
            cost: (count * width * MOVE_COST) as u64,
        });
    }

    fn rotary(&self, builder: &mut Builder, qkv: &Slice, sign: f32) {
        let (dims, rows) = (self.dims, self.rows());
        let (heads, half) = (dims.heads + dims.kv_heads, dims.head / 2);
        let call = kernels::ROTARY.with(params::Rotary {
            rows: rows as u32,
            context: dims.context as u32,
            stride: dims.qkv_width() as u32,
            heads: heads as u32,
            half: half as u32,
            sign,
        });
        let storage = vec![self.work.cos.clone(), self.work.sin.clone(), qkv.clone()];
        self.by_item(builder, call, storage, rows * heads * half, 4);
    }

    /// Returns the kernel parameters for a slice of the embedding: `count` rows from row `first` on.
    fn embed(&self, first: usize, count: usize) -> params::Embed {
        let (rows, quads) = (self.rows() as u32, self.dims.width as u32 / 4);
        params::Embed { rows, quads, first: first as u32, count: count as u32 }
    }

    fn swiglu(&self) -> params::Swiglu {
        params::Swiglu { rows: self.rows() as u32, quads: self.dims.ff as u32 / 4 }
    }

    fn forward(&self, builder: &mut Builder, tokens: &Microbatch) {
        let (dims, work, rows) = (self.dims, self.work, self.rows());
        for (first, count, flat) in self.row_slices(&self.slots.embed) {
            let call = kernels::EMBED.with(self.embed(first, count));
            // The embedding is read as it is stored: in 32 bits unless frozen, even if matrix products read 16-bit
            // floats.
            let (table, values) = match self.frozen {
                Some(_) => self.factor(&flat),
                None => (self.theta(&flat), Values::Whole),
            };
            let storage = vec![tokens.inputs.clone(), table.clone(), table, work.layers[0].x.clone()];
            let constants = vec![("VALUES", values as u32)];
            self.by_items(builder, call, (storage, constants), rows * dims.width / 4, 4);
        }
        for (i, (slots, layer)) in self.slots.layers.iter().zip(&work.layers).enumerate() {
            let next = work.layers.get(i + 1).map_or(&work.x, |next| &next.x);
            self.layer(builder, slots, layer);
            if dims.experts > 0 {
                self.experts(builder, slots, (i, layer), tokens, next);
            } else {
                self.dense(builder, slots, layer, next);
            }
        }
        self.norm(builder, &self.last_norm());
    }

    /// Adds the operations of a layer up to the second norm, whose output is the input of the feed-forward part.
    fn layer(&self, builder: &mut Builder, slots: &LayerSlots, layer: &Layer) {
        let (c, work) = (self.dims.width, self.work);
        self.norm(builder, &Norm::first(slots, layer));
        let qkv = (&layer.qkv, self.dims.qkv_width());
        self.linear(builder, &work.normed, &self.weight(&slots.qkv, c), &layer.qkv, WriteMode::Set);
        self.adapt(builder, (slots, layer), QKV, &work.normed, qkv);
        self.rotary(builder, &layer.qkv, 1.0);
        self.attend(builder, layer);
        let out = self.weight(&slots.out, c);
        self.linear(builder, &layer.attended, &out, &layer.middle, WriteMode::Plus(layer.x.clone()));
        self.adapt(builder, (slots, layer), OUT, &layer.attended, (&layer.middle, c));
        self.norm(builder, &Norm::second(slots, layer));
    }

    fn dense(&self, builder: &mut Builder, slots: &LayerSlots, layer: &Layer, next: &Slice) {
        let (work, down) = (self.work, self.weight(&slots.down, self.dims.ff));
        self.gate_up(builder, slots, layer);
        self.gate(builder, layer);
        self.linear(builder, &work.gated, &down, next, WriteMode::Plus(layer.middle.clone()));
        self.adapt(builder, (slots, layer), DOWN, &work.gated, (next, self.dims.width));
    }

    fn gate_up(&self, builder: &mut Builder, slots: &LayerSlots, layer: &Layer) {
        let (work, c, f) = (self.work, self.dims.width, self.dims.ff);
        self.linear(builder, &work.normed, &self.weight(&slots.gate_up, c), &layer.gate_up, WriteMode::Set);
        self.adapt(builder, (slots, layer), GATE_UP, &work.normed, (&layer.gate_up, 2 * f));
    }

    fn gate(&self, builder: &mut Builder, layer: &Layer) {
        let storage = vec![layer.gate_up.clone(), self.work.gated.clone()];
        let call = kernels::SWIGLU.with(self.swiglu());
        self.by_item(builder, call, storage, self.rows() * self.dims.ff / 4, 12);
    }

    /// Recomputes the activations of `layer`'s forward pass, which later layers have overwritten. The router's weights
    /// are stored for each layer, so they are not recomputed.
    fn again(&self, builder: &mut Builder, slots: &LayerSlots, layer: &Layer) {
        self.layer(builder, slots, layer);
        if self.dims.experts > 0 {
            return self.experts_gate_up(builder, slots, layer);
        }
        self.gate_up(builder, slots, layer);
        if has(slots, DOWN) {
            self.gate(builder, layer);
            self.lower(builder, (slots, layer), DOWN, &self.work.gated);
        }
    }

    /// Adds the backward pass from `branch`, the gradient of the last norm's output, to the gradients of all
    /// parameters.
    fn backward(&self, builder: &mut Builder, tokens: &Microbatch, first: bool) {
        let (dims, work, rows) = (self.dims, self.work, self.rows());
        self.norm_back(builder, &self.last_norm(), WriteMode::Set, first);
        for (i, (slots, layer)) in self.slots.layers.iter().zip(&work.layers).enumerate().rev() {
            if work.recompute && i + 1 < dims.layers {
                self.again(builder, slots, layer);
            }
            if dims.experts > 0 {
                self.experts_back(builder, slots, layer, first);
            } else {
                self.dense_back(builder, slots, layer, first);
            }
            self.norm_back(builder, &Norm::second(slots, layer), WriteMode::Add, first);
            self.attention_back(builder, slots, layer, first);
        }
        if self.frozen.is_some() {
            return;
        }
        for (start, count, flat) in self.row_slices(&self.slots.embed) {
            // If embedding and head are one matrix, the backward pass of the head has already set this gradient.
            if first && !self.slots.is_tied() {
                let quads = (flat.len() / 4) as u32;
                let call = kernels::CLEAR.with(params::Clear { quads });
                self.by_item(builder, call, vec![self.grad(&flat)], quads as usize, 4);
            }
            let call = kernels::EMBED_GRAD.with(self.embed(start, count));
            let storage = vec![tokens.runs.clone(), tokens.order.clone(), work.dx.clone(), self.grad(&flat)];
            self.by_row(builder, call, storage, rows, dims.width);
        }
    }

    fn dense_back(&self, builder: &mut Builder, slots: &LayerSlots, layer: &Layer, first: bool) {
        let (dims, work, rows) = (self.dims, self.work, self.rows());
        let (c, f) = (dims.width, dims.ff);
        let (gate_up, down) = (self.weight(&slots.gate_up, c), self.weight(&slots.down, f));
        self.linear_back(builder, &work.dx, &down, &work.gated);
        self.adapt_back(builder, slots, DOWN, (&work.dx, c), &work.gated);
        let (call, storage) =
            (kernels::SWIGLU_GRAD.with(self.swiglu()), vec![layer.gate_up.clone(), work.gated.clone()]);
        self.by_item(builder, call, storage, rows * f / 4, 24);
        self.weight_back(builder, &work.dx, &work.gated, &down, first);
        self.adapters_back(builder, (slots, layer), DOWN, ((&work.dx, c), &work.gated), first);
        self.norm(builder, &Norm::second(slots, layer));
        self.weight_back(builder, &layer.gate_up, &work.normed, &gate_up, first);
        self.linear_back(builder, &layer.gate_up, &gate_up, &work.branch);
        let wide = (&layer.gate_up, 2 * f);
        self.adapt_back(builder, slots, GATE_UP, wide, &work.branch);
        self.adapters_back(builder, (slots, layer), GATE_UP, (wide, &work.normed), first);
    }

    fn attention_back(&self, builder: &mut Builder, slots: &LayerSlots, layer: &Layer, first: bool) {
        let (c, work) = (self.dims.width, self.work);
        let (qkv, out) = (self.weight(&slots.qkv, c), self.weight(&slots.out, c));
        self.linear_back(builder, &work.dx, &out, &work.branch);
        self.adapt_back(builder, slots, OUT, (&work.dx, c), &work.branch);
        self.weight_back(builder, &work.dx, &layer.attended, &out, first);
        self.adapters_back(builder, (slots, layer), OUT, ((&work.dx, c), &layer.attended), first);
        self.attend_back(builder, layer);
        self.rotary(builder, &work.dqkv, -1.0);
        self.norm(builder, &Norm::first(slots, layer));
        self.weight_back(builder, &work.dqkv, &work.normed, &qkv, first);
        self.linear_back(builder, &work.dqkv, &qkv, &work.branch);
        let wide = (&work.dqkv, self.dims.qkv_width());
        self.adapt_back(builder, slots, QKV, wide, &work.branch);
        self.adapters_back(builder, (slots, layer), QKV, (wide, &work.normed), first);
        self.norm_back(builder, &Norm::first(slots, layer), WriteMode::Add, first);
    }

    fn attend(&self, builder: &mut Builder, layer: &Layer) {
        let storage = [&layer.qkv, &layer.attended, &layer.lse].map(Slice::clone);
        self.attention_pass(builder, AttentionPass::Forward, &storage);
    }

    /// Adds the backward pass of attention, from `branch`, the gradient of its output, to the gradient of qkv.
    fn attend_back(&self, builder: &mut Builder, layer: &Layer) {
        let (work, rows) = (self.work, self.rows() * self.dims.heads);
        let params = params::AttentionDots { rows: rows as u32, quads: self.dims.head as u32 / 4 };
        let call = kernels::ATTENTION_DOTS.with(params);
        let storage = vec![layer.attended.clone(), work.branch.clone(), work.dots.clone()];
        self.by_item(builder, call, storage, rows, 2 * self.dims.head);
        let storage = [&layer.qkv, &work.branch, &layer.lse, &work.dots, &work.dqkv].map(Slice::clone);
        self.attention_pass(builder, AttentionPass::Queries, &storage);
        self.attention_pass(builder, AttentionPass::Keys, &storage);
    }

    /// Adds the dispatches of one attention pass over all windows.
    fn attention_pass(&self, builder: &mut Builder, pass: AttentionPass, storage: &[Slice]) {
        let (attention, sizes) = self.attention;
        let (gain, cost_max) = (self.matmul.gain(), self.matmul.cost_max);
        let dispatches = attention.dispatches(pass, sizes, gain, storage, cost_max);
        dispatches.for_each(|dispatch| builder.add(dispatch));
    }
}

/// Weight matrix, `[outs, ins]`.
pub struct Weight {
    theta: Slice,
    values: Values,
    /// Gradient; `None` if the matrix is frozen.
    grad: Option<Slice>,
    outs: usize,
    ins: usize,
}

impl Network<'_> {
    pub fn theta(&self, range: &Range<usize>) -> Slice {
        self.arena.slice(self.theta, range)
    }

    /// Returns the slice of a weight vector, trained or frozen.
    pub fn vector(&self, range: &Range<usize>) -> Slice {
        self.frozen.map_or_else(|| self.theta(range), |frozen| frozen.slice(range))
    }

    /// Returns the slice and number format of a weight matrix for use as a product's operand.
    pub fn factor(&self, range: &Range<usize>) -> (Slice, Values) {
        match (self.frozen, self.half) {
            (Some(frozen), _) => (frozen.slice(range), frozen.values()),
            (None, Some(half)) => (self.arena.half_slice(half, range), Values::Half),
            (None, None) => (self.theta(range), Values::Whole),
        }
    }

    /// Returns the slices of `matrix` as [`super::arena::Arena::row_slices`] does.
    pub fn row_slices(&self, matrix: &Range<usize>) -> Vec<(usize, usize, Range<usize>)> {
        match self.frozen {
            Some(frozen) => frozen.plan().row_slices(self.dims, matrix),
            None => self.arena.row_slices(self.dims, matrix),
        }
    }

    pub fn grad(&self, range: &Range<usize>) -> Slice {
        self.arena.slice(self.grad, range)
    }

    pub fn weight(&self, range: &Range<usize>, ins: usize) -> Weight {
        let (theta, values) = self.factor(range);
        let grad = self.frozen.is_none().then(|| self.grad(range));
        Weight { theta, values, grad, outs: range.len() / ins, ins }
    }

    /// Adds the product `x wᵀ`, stored in `y` according to `store`.
    pub fn linear(&self, builder: &mut Builder, x: &Slice, w: &Weight, y: &Slice, store: WriteMode) {
        self.matmul.add(
            builder,
            Product {
                form: Form::Nt,
                m: self.rows() as u32,
                n: w.outs as u32,
                k: w.ins as u32,
                a: x.clone(),
                a_stride: w.ins as u32,
                b: w.theta.clone(),
                b_stride: w.ins as u32,
                b_values: w.values,
                c: y.clone(),
                c_stride: w.outs as u32,
                store,
                first: [0, 0],
                scale: 1.0,
            },
        );
    }

    /// Adds the product `dx = dy w`.
    pub fn linear_back(&self, builder: &mut Builder, dy: &Slice, w: &Weight, dx: &Slice) {
        self.matmul.add(
            builder,
            Product {
                form: Form::Nn,
                m: self.rows() as u32,
                n: w.ins as u32,
                k: w.outs as u32,
                a: dy.clone(),
                a_stride: w.outs as u32,
                b: w.theta.clone(),
                b_stride: w.ins as u32,
                b_values: w.values,
                c: dx.clone(),
                c_stride: w.ins as u32,
                store: WriteMode::Set,
                first: [0, 0],
                scale: 1.0,
            },
        );
    }

    /// Adds the product `dw = dyᵀ x`, or `dw += dyᵀ x` if not `first`. Does nothing if the matrix is frozen.
    pub fn weight_back(&self, builder: &mut Builder, dy: &Slice, x: &Slice, w: &Weight, first: bool) {
        let Some(grad) = &w.grad else { return };
        self.matmul.add(
            builder,
            Product {
                form: Form::Tn,
                m: w.outs as u32,
                n: w.ins as u32,
                k: self.rows() as u32,
                a: dy.clone(),
                a_stride: w.outs as u32,
                b: x.clone(),
                b_stride: w.ins as u32,
                b_values: Values::Whole,
                c: grad.clone(),
                c_stride: w.ins as u32,
                store: if first { WriteMode::Set } else { WriteMode::Add },
                first: [0, 0],
                scale: 1.0,
            },
        );
    }
}

/// Overrides `WG` and `ACROSS` of the column-sum kernel: invocations in a workgroup, and quads of columns per
/// workgroup.
const SUM_WG: u32 = 64;
const SUM_ACROSS: u32 = 8;

/// One RMSNorm: its input `[R, C]`, the flat range of its weight, and its scales `[R]`.
pub struct Norm<'a> {
    x: &'a Slice,
    weight: &'a Range<usize>,
    scales: &'a Slice,
}

impl<'a> Norm<'a> {
    /// Returns the norm before attention.
    pub fn first(slots: &'a LayerSlots, layer: &'a Layer) -> Self {
        Self { x: &layer.x, weight: &slots.norm1, scales: &layer.scales1 }
    }

    /// Returns the norm before the feed-forward layer.
    pub fn second(slots: &'a LayerSlots, layer: &'a Layer) -> Self {
        Self { x: &layer.middle, weight: &slots.norm2, scales: &layer.scales2 }
    }
}

impl Network<'_> {
    /// Returns the norm before the head.
    pub fn last_norm(&self) -> Norm<'_> {
        Norm { x: &self.work.x, weight: &self.slots.norm, scales: &self.work.scales }
    }

    /// Adds a norm. It writes its output to `normed`, and its scales.
    pub fn norm(&self, builder: &mut Builder, norm: &Norm<'_>) {
        let (rows, c) = (self.rows(), self.dims.width);
        let call =
            kernels::NORM.with(params::Norm { rows: rows as u32, quads: c as u32 / 4, eps: self.dims.eps });
        let storage =
            vec![norm.x.clone(), self.vector(norm.weight), self.work.normed.clone(), norm.scales.clone()];
        self.by_row(builder, call, storage, rows, c);
    }

    /// Adds the backward pass of a norm. It reads the gradient of the norm's output in `branch`, stores the gradient of
    /// the residual stream in `dx` according to `to_dx`, and computes the weight's gradient unless the weight is
    /// frozen.
    pub fn norm_back(&self, builder: &mut Builder, norm: &Norm<'_>, to_dx: WriteMode, first: bool) {
        let (rows, c, work) = (self.rows(), self.dims.width, self.work);
        let quads = c as u32 / 4;
        let groups = rows.div_ceil(NORM_ROWS);
        let call = kernels::NORM_GRAD.with(params::NormGrad {
            rows: rows as u32,
            quads,
            rows_per_group: NORM_ROWS as u32,
            add: u32::from(matches!(to_dx, WriteMode::Add)),
        });
        let storage = vec![
            work.branch.clone(),
            norm.x.clone(),
            self.vector(norm.weight),
            norm.scales.clone(),
            work.dx.clone(),
            work.partial.clone(),
        ];
        self.by_row(builder, call, storage, groups, c * NORM_ROWS);
        if self.frozen.is_some() {
            return;
        }
        let params = params::ColumnSum { rows: groups as u32, quads, add: u32::from(!first) };
        let call = kernels::COLUMN_SUM.with(params);
        builder.add(Dispatch {
            call,
            constants: vec![("WG", SUM_WG), ("ACROSS", SUM_ACROSS)],
            storage: vec![work.partial.clone(), self.grad(norm.weight)],
            groups: [quads.div_ceil(SUM_ACROSS), 1, 1],
            cost: (groups * c) as u64,
        });
    }
}

impl Network<'_> {
    /// Adds the head, one chunk of tokens at a time: logits, losses, and the gradient of the last norm's output in
    /// `branch`.
    pub fn head(&self, builder: &mut Builder, tokens: &Microbatch, losses: &Slice, first: bool) {
        let (dims, work, rows) = (self.dims, self.work, self.rows());
        let stride = work.logits_stride as u32;
        let slices = self.row_slices(&self.slots.head);
        for start in (0..rows).step_by(work.chunk) {
            let count = work.chunk.min(rows - start);
            let rows_of = |slice: &Slice, width: usize| slice.after((start * width) as u64);
            let (normed, branch) = (rows_of(&work.normed, dims.width), rows_of(&work.branch, dims.width));
            let product = |i: usize, form, a: &Slice, (b, b_values): (Slice, Values), c: &Slice, store| {
                let (vocab, width, count) = (slices[i].1 as u32, dims.width as u32, count as u32);
                let ([m, n, k], [a_stride, b_stride, c_stride]) = match form {
                    Form::Nt => ([count, vocab, width], [width, width, stride]),
                    Form::Nn => ([count, width, vocab], [stride, width, width]),
                    Form::Tn => ([vocab, width, count], [stride, width, width]),
                };
                let (a, c, first, scale) = (a.clone(), c.clone(), [0, 0], 1.0);
                Product {
                    form,
                    m,
                    n,
                    k,
                    a,
                    a_stride,
                    b,
                    b_stride,
                    b_values,
                    c,
                    c_stride,
                    store,
                    first,
                    scale,
                }
            };
            let logits = |i: usize| work.logits.after(slices[i].0 as u64);
            for (i, (.., flat)) in slices.iter().enumerate() {
                let product = product(i, Form::Nt, &normed, self.factor(flat), &logits(i), WriteMode::Set);
                self.matmul.add(builder, product);
            }
            let call = kernels::CROSS_ENTROPY.with(params::CrossEntropy {
                rows: count as u32,
                vocab: dims.vocab as u32,
                quads: stride / 4,
            });
            let hyper = self.hyper.clone();
            let storage = vec![rows_of(&tokens.targets, 1), hyper, work.logits.clone(), rows_of(losses, 1)];
            self.by_row(builder, call, storage, count, dims.vocab);
            for (i, (.., flat)) in slices.iter().enumerate() {
                let store = if i == 0 { WriteMode::Set } else { WriteMode::Add };
                let product = product(i, Form::Nn, &logits(i), self.factor(flat), &branch, store);
                self.matmul.add(builder, product);
            }
            if self.frozen.is_some() {
                continue;
            }
            for (i, (.., flat)) in slices.iter().enumerate() {
                let (store, x) = (
                    if first && start == 0 { WriteMode::Set } else { WriteMode::Add },
                    (normed.clone(), Values::Whole),
                );
                let product = product(i, Form::Tn, &logits(i), x, &self.grad(flat), store);
                self.matmul.add(builder, product);
            }
        }
    }
}

/// Groups of matrices that share one product. The results of a group are columns of the same rows.
const QKV: &[LoraTarget] = &[LoraTarget::Q, LoraTarget::K, LoraTarget::V];
const OUT: &[LoraTarget] = &[LoraTarget::O];
const GATE_UP: &[LoraTarget] = &[LoraTarget::Gate, LoraTarget::Up];
const DOWN: &[LoraTarget] = &[LoraTarget::Down];

/// Slice of a row-major matrix, and the number of values in its rows.
pub type Wide<'a> = (&'a Slice, usize);

/// Returns the adapters of a layer whose target is in `group`, with their indices.
fn of<'a>(slots: &'a LayerSlots, group: &'a [LoraTarget]) -> impl Iterator<Item = (usize, &'a AdapterSlots)> {
    slots.adapters.iter().enumerate().filter(|(_, adapter)| group.contains(&adapter.target))
}

/// Returns true if a layer has an adapter whose target is in `group`.
fn has(slots: &LayerSlots, group: &[LoraTarget]) -> bool {
    of(slots, group).next().is_some()
}

impl Network<'_> {
    /// Returns a product of A, from column `first.0` of its rows on, and B, stored in C from column `first.1` of its
    /// rows on. The second value of `a`, `b` and `c` is the row length.
    fn low_rank(
        &self,
        (form, store): (Form, WriteMode),
        [m, n, k]: [usize; 3],
        [a, b, c]: [Wide<'_>; 3],
        first: (usize, usize),
        scale: f32,
    ) -> Product {
        Product {
            form,
            m: m as u32,
            n: n as u32,
            k: k as u32,
            a: a.0.clone(),
            a_stride: a.1 as u32,
            b: b.0.clone(),
            b_stride: b.1 as u32,
            b_values: Values::Whole,
            c: c.0.clone(),
            c_stride: c.1 as u32,
            store,
            first: [first.0 as u32, first.1 as u32],
            scale,
        }
    }

    fn lora_scale(&self) -> f32 {
        self.dims.lora_scale() as f32
    }

    /// Adds operations that add `α / r · (x Aᵀ) Bᵀ` of each adapter in `group` to its columns of y; x is `[R, ins]`.
    pub fn adapt(
        &self,
        builder: &mut Builder,
        (slots, layer): (&LayerSlots, &Layer),
        group: &[LoraTarget],
        x: &Slice,
        y: Wide<'_>,
    ) {
        let (rows, rank) = (self.rows(), self.dims.rank());
        self.lower(builder, (slots, layer), group, x);
        for (index, adapter) in of(slots, group) {
            let (b, low) = (self.theta(&adapter.b), (&layer.low[index], rank));
            let (sides, first) = ([rows, adapter.outs, rank], (0, adapter.column));
            let add = (Form::Nt, WriteMode::Add);
            self.matmul
                .add(builder, self.low_rank(add, sides, [low, (&b, rank), y], first, self.lora_scale()));
        }
    }

    /// Adds operations that compute `x Aᵀ` of each adapter in `group` and store it in the layer's `low`; x is `[R,
    /// ins]`.
    pub fn lower(
        &self,
        builder: &mut Builder,
        (slots, layer): (&LayerSlots, &Layer),
        group: &[LoraTarget],
        x: &Slice,
    ) {
        let (rows, rank) = (self.rows(), self.dims.rank());
        for (index, adapter) in of(slots, group) {
            let (a, ins, low) = (self.theta(&adapter.a), adapter.ins, (&layer.low[index], rank));
            let set = (Form::Nt, WriteMode::Set);
            let product = self.low_rank(set, [rows, rank, ins], [(x, ins), (&a, ins), low], (0, 0), 1.0);
            self.matmul.add(builder, product);
        }
    }

    /// Adds the backward pass of the adapters in `group` to their input. From dy, the gradient of y, it computes the
    /// gradient of `x Aᵀ` in `dlow`, and adds the gradient of x to dx, `[R, ins]`.
    pub fn adapt_back(
        &self,
        builder: &mut Builder,
        slots: &LayerSlots,
        group: &[LoraTarget],
        dy: Wide<'_>,
        dx: &Slice,
    ) {
        let (rows, rank) = (self.rows(), self.dims.rank());
        for (index, adapter) in of(slots, group) {
            let (a, b) = (self.theta(&adapter.a), self.theta(&adapter.b));
            let (ins, dlow) = (adapter.ins, (&self.work.dlow[index], rank));
            let (sides, first) = ([rows, rank, adapter.outs], (adapter.column, 0));
            let set = (Form::Nn, WriteMode::Set);
            self.matmul
                .add(builder, self.low_rank(set, sides, [dy, (&b, rank), dlow], first, self.lora_scale()));
            let add = (Form::Nn, WriteMode::Add);
            let product = self.low_rank(add, [rows, ins, rank], [dlow, (&a, ins), (dx, ins)], (0, 0), 1.0);
            self.matmul.add(builder, product);
        }
    }

    /// Adds the gradients of A and B. [`Self::adapt`] and [`Self::adapt_back`] must have stored `low` and `dlow`.
    pub fn adapters_back(
        &self,
        builder: &mut Builder,
        (slots, layer): (&LayerSlots, &Layer),
        group: &[LoraTarget],
        (dy, x): (Wide<'_>, &Slice),
        is_first: bool,
    ) {
        let (rows, rank) = (self.rows(), self.dims.rank());
        let form = || (Form::Tn, if is_first { WriteMode::Set } else { WriteMode::Add });
        for (index, adapter) in of(slots, group) {
            let (da, db, ins) = (self.grad(&adapter.a), self.grad(&adapter.b), adapter.ins);
            let (low, dlow) = ((&layer.low[index], rank), (&self.work.dlow[index], rank));
            let (sides, first) = ([adapter.outs, rank, rows], (adapter.column, 0));
            self.matmul
                .add(builder, self.low_rank(form(), sides, [dy, low, (&db, rank)], first, self.lora_scale()));
            let product = self.low_rank(form(), [rank, ins, rows], [dlow, (x, ins), (&da, ins)], (0, 0), 1.0);
            self.matmul.add(builder, product);
        }
    }
}
