//! Causal attention, one window and one head at a time, in blocks of queries.
//!
//! A block of scores is `[ROWS, keys]`, with the keys that its last query sees. Probabilities are not kept: the
//! backward pass recomputes them from the logarithm of their sum.

use super::kernels;
use super::matmul::{Mat, MatMut, Products, WriteMode};
use super::workspace::Buffer;
use crate::model::Dims;

/// Queries in a block: enough for the matrix product, few enough to skip most masked scores.
const ROWS: usize = 64;

/// Memory for one block.
pub struct Scratch {
    scores: Buffer,
    gradients: Buffer,
    /// `1 / Σ` forwards, `dy · y` backwards; `[ROWS]`.
    per_row: Buffer,
    stride: usize,
}

impl Scratch {
    /// Allocates memory for windows of up to `context` tokens, without room for a backward pass unless `training`.
    pub fn new(context: usize, training: bool) -> Self {
        let stride = context.next_multiple_of(16);
        let block = ROWS * stride;
        let gradients = Buffer::zeros(if training { block } else { 0 });
        Self { scores: Buffer::zeros(block), gradients, per_row: Buffer::zeros(ROWS), stride }
    }

    /// Returns the bytes held.
    pub fn bytes(&self) -> usize {
        self.scores.bytes() + self.gradients.bytes() + self.per_row.bytes()
    }
}

/// Columns of one head in the rows of a window.
#[derive(Clone, Copy)]
struct HeadColumns {
    /// Column of the query and of the output.
    query: usize,
    /// Column of the key.
    key: usize,
    /// Column of the value.
    value: usize,
    /// Whether an earlier head has written the gradient of the same key and value.
    shared: bool,
}

fn heads(dims: &Dims) -> impl Iterator<Item = HeadColumns> + use<> {
    let dims = *dims;
    let group = dims.heads / dims.kv_heads;
    (0..dims.heads).map(move |h| {
        let kv = h / group * dims.head;
        let key = dims.width + kv;
        HeadColumns { query: h * dims.head, key, value: key + dims.kv_width, shared: h % group > 0 }
    })
}

/// Returns the first query, number of queries and number of keys of each block of the queries `past..len`, last block
/// first.
fn blocks(past: usize, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (past..len).step_by(ROWS).rev().map(move |first| {
        let rows = ROWS.min(len - first);
        (first, rows, first + rows)
    })
}

/// Computes attention for one window whose first `past` positions were processed before: qkv `[len, C + 2 K D]` → y
/// `[len − past, C]`, lse `[H, len − past]`.
pub fn forward(
    dims: &Dims,
    products: Products,
    qkv: &[f32],
    past: usize,
    y: &mut [f32],
    lse: &mut [f32],
    scratch: &mut Scratch,
) {
    let (stride, d) = (dims.qkv_width(), dims.head);
    let len = qkv.len() / stride;
    let scale = 1.0 / (d as f32).sqrt();
    let view = |row: usize, column: usize, rows| Mat::strided(&qkv[row * stride + column..], rows, d, stride);
    for (head, lse) in heads(dims).zip(lse.chunks_exact_mut(len - past)) {
        for (first, rows, keys) in blocks(past, len) {
            let block = &mut scratch.scores[..rows * scratch.stride];
            let scores = MatMut::strided(block, rows, keys, scratch.stride);
            products.multiply(
                scores,
                WriteMode::Set,
                1.0,
                view(first, head.query, rows),
                view(0, head.key, keys).t(),
            );
            let inverse = &mut scratch.per_row[..rows];
            kernels::softmax(
                block,
                scratch.stride,
                first,
                keys,
                scale,
                inverse,
                &mut lse[first - past..][..rows],
            );
            let out = &mut y[(first - past) * dims.width + head.query..];
            let weights = Mat::strided(block, rows, keys, scratch.stride);
            let target = MatMut::strided(out, rows, d, dims.width);
            products.multiply(target, WriteMode::Set, 1.0, weights, view(0, head.value, keys));
            kernels::scale_rows(out, dims.width, d, inverse);
        }
    }
}

/// Inputs of the backward pass of one window: qkv `[len, C + 2 K D]`, y and dy `[len, C]`, lse `[H, len]`.
pub struct BackwardInputs<'a> {
    /// Queries, keys and values of the forward pass.
    pub qkv: &'a [f32],
    /// Output of the forward pass.
    pub y: &'a [f32],
    /// Gradient of the output.
    pub dy: &'a [f32],
    /// Logarithms of the sums of the softmax.
    pub lse: &'a [f32],
}

/// Writes the gradient dqkv, `[len, C + 2 K D]`, of one window.
pub fn backward(
    dims: &Dims,
    products: Products,
    saved: &BackwardInputs<'_>,
    dqkv: &mut [f32],
    scratch: &mut Scratch,
) {
    let len = saved.qkv.len() / dims.qkv_width();
    for (head, lse) in heads(dims).zip(saved.lse.chunks_exact(len)) {
        for (i, (first, rows, keys)) in blocks(0, len).enumerate() {
            // The first block of the first head sees all keys, so it can overwrite.
            let store = if head.shared || i > 0 { WriteMode::Add } else { WriteMode::Set };
            let lse = &lse[first..first + rows];
            let block = Block { dims, products, saved, head, first, rows, keys, lse, store };
            block.backward(dqkv, scratch);
        }
    }
}

/// A block of queries of one head in the backward pass.
struct Block<'a> {
    dims: &'a Dims,
    products: Products,
    saved: &'a BackwardInputs<'a>,
    head: HeadColumns,
    /// First query.
    first: usize,
    /// Number of queries.
    rows: usize,
    /// Number of keys that the last query sees.
    keys: usize,
    /// Logarithms of the sums of the softmax, `[rows]`.
    lse: &'a [f32],
    /// Store mode for the gradients of keys and values.
    store: WriteMode,
}

impl Block<'_> {
    /// Returns `count` rows, from `row` on, of the queries, keys or values that begin at `column`.
    fn view(&self, row: usize, column: usize, count: usize) -> Mat<'_> {
        let wide = self.dims.qkv_width();
        Mat::strided(&self.saved.qkv[row * wide + column..], count, self.dims.head, wide)
    }

    fn backward(&self, dqkv: &mut [f32], scratch: &mut Scratch) {
        let &Self { dims, products, saved, head, first, rows, keys, lse, store } = self;
        let (wide, width, d, stride) = (dims.qkv_width(), dims.width, dims.head, scratch.stride);
        let scale = 1.0 / (d as f32).sqrt();
        let (y, dy) = (&saved.y[first * width + head.query..], &saved.dy[first * width + head.query..]);
        let dout = Mat::strided(dy, rows, d, width);
        let (query, key) = (self.view(first, head.query, rows), self.view(0, head.key, keys));
        let (p, dp) = (&mut scratch.scores[..rows * stride], &mut scratch.gradients[..rows * stride]);

        products.multiply(MatMut::strided(p, rows, keys, stride), WriteMode::Set, 1.0, query, key.t());
        kernels::probabilities(p, stride, first, keys, scale, lse);
        let weights = Mat::strided(p, rows, keys, stride);
        let dvalue = MatMut::strided(&mut dqkv[head.value..], keys, d, wide);
        products.multiply(dvalue, store, 1.0, weights.t(), dout);

        let value = self.view(0, head.value, keys);
        products.multiply(MatMut::strided(dp, rows, keys, stride), WriteMode::Set, 1.0, dout, value.t());
        let dots = &mut scratch.per_row[..rows];
        kernels::dots(dy, y, width, d, dots);
        kernels::score_gradient(dp, p, stride, keys, scale, dots);
        let gradients = Mat::strided(dp, rows, keys, stride);
        let dquery = MatMut::strided(&mut dqkv[first * wide + head.query..], rows, d, wide);
        products.multiply(dquery, WriteMode::Set, 1.0, gradients, key);
        let dkey = MatMut::strided(&mut dqkv[head.key..], keys, d, wide);
        products.multiply(dkey, store, 1.0, gradients.t(), query);
    }
}
