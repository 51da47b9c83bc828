//! The output head, forwards and backwards, as dispatches.

use super::super::batch::Microbatch;
use super::super::kernels;
use super::super::matmul::{Form, Product, Store, Values};
use super::super::params;
use super::super::program::{Builder, Slice};
use super::Network;

impl Network<'_> {
    /// Computes logits, losses, and the gradient of the last norm's output in `branch`, chunk by chunk of tokens.
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
                let product = product(i, Form::Nt, &normed, self.factor(flat), &logits(i), Store::Set);
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
                let store = if i == 0 { Store::Set } else { Store::Add };
                let product = product(i, Form::Nn, &logits(i), self.factor(flat), &branch, store);
                self.matmul.add(builder, product);
            }
            if self.frozen.is_some() {
                continue;
            }
            for (i, (.., flat)) in slices.iter().enumerate() {
                let (store, x) = (
                    if first && start == 0 { Store::Set } else { Store::Add },
                    (normed.clone(), Values::Whole),
                );
                let product = product(i, Form::Tn, &logits(i), x, &self.grad(flat), store);
                self.matmul.add(builder, product);
            }
        }
    }
}
