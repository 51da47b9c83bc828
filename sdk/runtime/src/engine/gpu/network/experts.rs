//! Dispatches of a mixture of experts, which replaces the feed-forward layer. Every expert computes every token, and
//! the router's weights, mostly 0, scale the results. With few experts this is fast and needs no sorting.

use super::super::matmul::{Form, Product, Values, WriteMode};
use super::super::program::{Builder, Slice};
use super::super::step::Microbatch;
use super::super::workspace::{Layer, router_stride};
use super::super::{kernels, params};
use super::{Network, Norm};
use crate::model::LayerSlots;

impl Network<'_> {
    /// Adds the forward pass of layer `index`'s mixture: reads `normed` and the layer's `middle`, writes `next`.
    pub fn experts(
        &self,
        builder: &mut Builder,
        slots: &LayerSlots,
        (index, layer): (usize, &Layer),
        tokens: &Microbatch,
        next: &Slice,
    ) {
        let (dims, work, rows) = (self.dims, self.work, self.rows());
        let (c, f, experts, stride) = (dims.width, dims.ff, dims.experts, router_stride(dims));
        let mix = &layer.mixture;
        let (router, b_values) = self.factor(&slots.router);
        self.matmul.add(
            builder,
            Product {
                form: Form::Nt,
                m: rows as u32,
                n: experts as u32,
                k: c as u32,
                a: work.normed.clone(),
                a_stride: c as u32,
                b: router,
                b_stride: c as u32,
                b_values,
                c: work.router.clone(),
                c_stride: stride as u32,
                store: WriteMode::Set,
                first: [0, 0],
                scale: 1.0,
            },
        );
        let call = kernels::ROUTE.with(params::Route {
            rows: rows as u32,
            experts: experts as u32,
            stride: stride as u32,
            chosen: dims.active as u32,
        });
        let storage = vec![work.router.clone(), mix.probs.clone(), mix.weights.clone()];
        self.by_item(builder, call, storage, rows, experts * (dims.active + 3));
        let call = kernels::EXPERT_COUNT.with(params::ExpertCount {
            windows: self.shape.windows as u32,
            context: dims.context as u32,
            experts: experts as u32,
            stride: stride as u32,
            first: (index * experts) as u32,
            aux: dims.aux_loss * experts as f32 / dims.layers as f32,
        });
        let storage = vec![
            mix.weights.clone(),
            tokens.targets.clone(),
            self.hyper.clone(),
            mix.slopes.clone(),
            self.seen.clone(),
        ];
        self.by_item(builder, call, storage, self.shape.windows * experts, 2 * dims.context);
        self.experts_gate_up(builder, slots, layer);
        for (e, (slots, gate_up)) in slots.experts.iter().zip(&mix.gate_up).enumerate() {
            let call = kernels::EXPERT.with(self.expert(e));
            let storage = vec![gate_up.clone(), mix.weights.clone(), work.gated.clone()];
            self.by_item(builder, call, storage, rows * f / 4, 12);
            let store = if e == 0 { WriteMode::Plus(layer.middle.clone()) } else { WriteMode::Add };
            self.linear(builder, &work.gated, &self.weight(&slots.down, f), next, store);
        }
    }

    /// Adds the products that compute gates and ups of each expert from `normed`.
    pub fn experts_gate_up(&self, builder: &mut Builder, slots: &LayerSlots, layer: &Layer) {
        for (slots, gate_up) in slots.experts.iter().zip(&layer.mixture.gate_up) {
            let weight = self.weight(&slots.gate_up, self.dims.width);
            self.linear(builder, &self.work.normed, &weight, gate_up, WriteMode::Set);
        }
    }

    /// Adds the backward pass: reads `dx`, writes the weights' gradients and, in `branch`, that of the second norm's
    /// output.
    pub fn experts_back(&self, builder: &mut Builder, slots: &LayerSlots, layer: &Layer, first: bool) {
        let (dims, work, rows) = (self.dims, self.work, self.rows());
        let (c, f, experts, stride) = (dims.width, dims.ff, dims.experts, router_stride(dims));
        let mix = &layer.mixture;
        self.norm(builder, &Norm::second(slots, layer));
        for (e, (slots, gate_up)) in slots.experts.iter().zip(&mix.gate_up).enumerate() {
            let (into, down) = (self.weight(&slots.gate_up, c), self.weight(&slots.down, f));
            self.linear_back(builder, &work.dx, &down, &work.gated);
            let call = kernels::EXPERT_GRAD.with(self.expert(e));
            let storage =
                vec![mix.weights.clone(), gate_up.clone(), work.gated.clone(), work.dweights.clone()];
            self.by_row(builder, call, storage, rows, 6 * f);
            self.weight_back(builder, &work.dx, &work.gated, &down, first);
            self.weight_back(builder, gate_up, &work.normed, &into, first);
            let store = if e == 0 { WriteMode::Set } else { WriteMode::Add };
            let product = self.back(gate_up, [2 * f, 2 * f], self.factor(&slots.gate_up), store);
            self.matmul.add(builder, product);
        }
        let call = kernels::ROUTE_GRAD.with(params::RouteGrad {
            rows: rows as u32,
            context: dims.context as u32,
            experts: experts as u32,
            stride: stride as u32,
        });
        let storage =
            [&mix.probs, &mix.weights, &work.dweights, &mix.slopes, &work.router].map(Slice::clone).to_vec();
        self.by_item(builder, call, storage, rows, 6 * experts);
        self.matmul.add(
            builder,
            Product {
                form: Form::Tn,
                m: experts as u32,
                n: c as u32,
                k: rows as u32,
                a: work.router.clone(),
                a_stride: stride as u32,
                b: work.normed.clone(),
                b_stride: c as u32,
                b_values: Values::Whole,
                c: self.grad(&slots.router),
                c_stride: c as u32,
                store: if first { WriteMode::Set } else { WriteMode::Add },
                first: [0, 0],
                scale: 1.0,
            },
        );
        let product = self.back(&work.router, [experts, stride], self.factor(&slots.router), WriteMode::Add);
        self.matmul.add(builder, product);
    }

    /// Returns the product `dy w`, stored in `branch` according to `store`. dy is `[R, outs]` with row stride `stride`.
    fn back(&self, dy: &Slice, [outs, stride]: [usize; 2], w: (Slice, Values), store: WriteMode) -> Product {
        let c = self.dims.width as u32;
        Product {
            form: Form::Nn,
            m: self.rows() as u32,
            n: c,
            k: outs as u32,
            a: dy.clone(),
            a_stride: stride as u32,
            b: w.0,
            b_stride: c,
            b_values: w.1,
            c: self.work.branch.clone(),
            c_stride: c,
            store,
            first: [0, 0],
            scale: 1.0,
        }
    }

    fn expert(&self, expert: usize) -> params::Expert {
        params::Expert {
            rows: self.rows() as u32,
            quads: self.dims.ff as u32 / 4,
            stride: router_stride(self.dims) as u32,
            column: expert as u32,
        }
    }
}
