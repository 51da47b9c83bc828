//! The operations of a step, forwards and backwards, as dispatches.

mod adapters;
mod experts;
mod head;
mod norm;
mod products;

use self::adapters::{DOWN, GATE_UP, OUT, QKV};
use self::norm::Norm;
use super::arena::Arena;
use super::attention::{Attention, Pass, Sizes};
use super::batch::{BatchShape, Microbatch};
use super::frozen::Frozen;
use super::kernels::{self, Call};
use super::matmul::{Matmul, Store, Values};
use super::params;
use super::program::{Builder, Constant, Dispatch, Slice};
use super::workspace::{Layer, Workspace};
use crate::model::{Dims, LayerSlots, Slots};

/// Maximum number of workgroups in a dimension.
const GROUPS_MAX: usize = 65_535;
/// Cost of moving a value, in floating-point operations of a matrix product.
const MOVE_COST: usize = 8;

/// Inputs for the dispatches of a step.
pub struct Network<'a> {
    /// The sizes.
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
    /// Hyperparameters and other inputs of the step, see [`super::step::StepBuffers`].
    pub hyper: &'a Slice,
    /// Tokens that went through each expert so far, `[layers, E]`.
    pub seen: &'a Slice,
    /// Activations.
    pub work: &'a Workspace,
    /// Shape of the tokens of a step.
    pub shape: BatchShape,
    /// Matrix products.
    pub matmul: &'a Matmul,
    /// Number of invocations that share a row.
    pub lanes: u32,
    /// Kernels and sizes of attention.
    pub attention: (Attention, Sizes),
}

impl Network<'_> {
    /// Goes forwards and backwards over one microbatch. If `first`, sets the gradient; otherwise adds to it. Writes the
    /// losses of the tokens, `[R]`.
    pub fn microbatch(&self, builder: &mut Builder, tokens: &Microbatch, losses: &Slice, first: bool) {
        self.forward(builder, tokens);
        self.head(builder, tokens, losses, first);
        self.backward(builder, tokens, first);
    }

    fn rows(&self) -> usize {
        self.shape.rows()
    }

    /// Adds a dispatch with one workgroup for each of `count` rows of about `width` values.
    fn by_row(&self, builder: &mut Builder, call: Call, storage: Vec<Slice>, count: usize, width: usize) {
        builder.add(Dispatch {
            call,
            constants: vec![("WG", self.lanes)],
            storage,
            groups: [count.min(GROUPS_MAX) as u32, 1, 1],
            cost: (count * width * MOVE_COST) as u64,
        });
    }

    /// Adds a dispatch with one invocation for each of `count` items of `width` values.
    fn by_item(&self, builder: &mut Builder, call: Call, storage: Vec<Slice>, count: usize, width: usize) {
        self.by_items(builder, call, (storage, Vec::new()), count, width);
    }

    /// Does the same as [`Self::by_item`], with constants of the kernel.
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

    /// Returns the kernel parameters for the slice of the embedding that begins at row `first`.
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
            // The table is read in its stored form: in 32 bits, even if matrix products read 16-bit floats.
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

    /// Computes a layer up to the input of its feed-forward part.
    fn layer(&self, builder: &mut Builder, slots: &LayerSlots, layer: &Layer) {
        let (c, work) = (self.dims.width, self.work);
        self.norm(builder, &Norm::first(slots, layer));
        let qkv = (&layer.qkv, self.dims.qkv_width());
        self.linear(builder, &work.normed, &self.weight(&slots.qkv, c), &layer.qkv, Store::Set);
        self.adapt(builder, (slots, layer), QKV, &work.normed, qkv);
        self.rotary(builder, &layer.qkv, 1.0);
        self.attend(builder, layer);
        let out = self.weight(&slots.out, c);
        self.linear(builder, &layer.attended, &out, &layer.middle, Store::Plus(layer.x.clone()));
        self.adapt(builder, (slots, layer), OUT, &layer.attended, (&layer.middle, c));
        self.norm(builder, &Norm::second(slots, layer));
    }

    fn dense(&self, builder: &mut Builder, slots: &LayerSlots, layer: &Layer, next: &Slice) {
        let (work, down) = (self.work, self.weight(&slots.down, self.dims.ff));
        self.gate_up(builder, slots, layer);
        self.gate(builder, layer);
        self.linear(builder, &work.gated, &down, next, Store::Plus(layer.middle.clone()));
        self.adapt(builder, (slots, layer), DOWN, &work.gated, (next, self.dims.width));
    }

    fn gate_up(&self, builder: &mut Builder, slots: &LayerSlots, layer: &Layer) {
        let (work, c, f) = (self.work, self.dims.width, self.dims.ff);
        self.linear(builder, &work.normed, &self.weight(&slots.gate_up, c), &layer.gate_up, Store::Set);
        self.adapt(builder, (slots, layer), GATE_UP, &work.normed, (&layer.gate_up, 2 * f));
    }

    fn gate(&self, builder: &mut Builder, layer: &Layer) {
        let storage = vec![layer.gate_up.clone(), self.work.gated.clone()];
        let call = kernels::SWIGLU.with(self.swiglu());
        self.by_item(builder, call, storage, self.rows() * self.dims.ff / 4, 12);
    }

    /// Recomputes the activations that `layer` left in the forward pass, because a later layer has overwritten them.
    /// The expert weights of its tokens are still available.
    fn again(&self, builder: &mut Builder, slots: &LayerSlots, layer: &Layer) {
        self.layer(builder, slots, layer);
        if self.dims.experts > 0 {
            return self.experts_gate_up(builder, slots, layer);
        }
        self.gate_up(builder, slots, layer);
        if adapters::has(slots, DOWN) {
            self.gate(builder, layer);
            self.lower(builder, (slots, layer), DOWN, &self.work.gated);
        }
    }

    /// Goes from `branch`, the gradient of the last norm's output, to the gradient of all parameters.
    fn backward(&self, builder: &mut Builder, tokens: &Microbatch, first: bool) {
        let (dims, work, rows) = (self.dims, self.work, self.rows());
        self.norm_back(builder, &self.last_norm(), Store::Set, first);
        for (i, (slots, layer)) in self.slots.layers.iter().zip(&work.layers).enumerate().rev() {
            if work.recompute && i + 1 < dims.layers {
                self.again(builder, slots, layer);
            }
            if dims.experts > 0 {
                self.experts_back(builder, slots, layer, first);
            } else {
                self.dense_back(builder, slots, layer, first);
            }
            self.norm_back(builder, &Norm::second(slots, layer), Store::Add, first);
            self.attention_back(builder, slots, layer, first);
        }
        if self.frozen.is_some() {
            return;
        }
        for (start, count, flat) in self.row_slices(&self.slots.embed) {
            // If embedding and head are one matrix, the head has already set this gradient.
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
        self.norm_back(builder, &Norm::first(slots, layer), Store::Add, first);
    }

    fn attend(&self, builder: &mut Builder, layer: &Layer) {
        let storage = [&layer.qkv, &layer.attended, &layer.lse].map(Slice::clone);
        self.attention_pass(builder, Pass::Forward, &storage);
    }

    /// Goes from `branch`, the gradient of attention's output, to the gradient of queries, keys and values.
    fn attend_back(&self, builder: &mut Builder, layer: &Layer) {
        let (work, rows) = (self.work, self.rows() * self.dims.heads);
        let params = params::AttentionDots { rows: rows as u32, quads: self.dims.head as u32 / 4 };
        let call = kernels::ATTENTION_DOTS.with(params);
        let storage = vec![layer.attended.clone(), work.branch.clone(), work.dots.clone()];
        self.by_item(builder, call, storage, rows, 2 * self.dims.head);
        let storage = [&layer.qkv, &work.branch, &layer.lse, &work.dots, &work.dqkv].map(Slice::clone);
        self.attention_pass(builder, Pass::Queries, &storage);
        self.attention_pass(builder, Pass::Keys, &storage);
    }

    /// Adds one pass of attention over all windows.
    fn attention_pass(&self, builder: &mut Builder, pass: Pass, storage: &[Slice]) {
        let (attention, sizes) = self.attention;
        let (gain, cost_max) = (self.matmul.gain(), self.matmul.cost_max);
        let dispatches = attention.dispatches(pass, sizes, gain, storage, cost_max);
        dispatches.for_each(|dispatch| builder.add(dispatch));
    }
}
