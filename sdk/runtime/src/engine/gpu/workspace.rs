//! Device memory of a step in addition to the parameters: activations for the backward pass, and scratch buffers.
//!
//! Each tensor has a separate buffer, because WebGPU forbids reading one part of a buffer and writing another in the
//! same dispatch.

use super::Gpu;
use super::error::GpuError;
use super::program::{Slice, buffer, buffer_bytes};
use super::step::BatchShape;
use crate::model::{Dims, rotary_tables};

/// Maximum size of the logits in memory, in bytes. The head processes the tokens in chunks.
const LOGITS_BYTES_MAX: u64 = 64 << 20;
/// Rows of a chunk are a multiple of this number, so that each chunk begins at an aligned offset.
const CHUNK_ROWS: usize = 64;
/// Number of rows over which one workgroup sums a norm weight's gradient.
pub const NORM_ROWS: usize = 8;

/// Activations of one layer that the backward pass needs. There are R rows, one per token.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Residual stream at the layer's input, `[R, C]`.
    pub x: Slice,
    /// Scales of the first norm, `[R]`.
    pub scales1: Slice,
    /// Queries and keys after rotation, and values, `[R, C + 2 K D]`.
    pub qkv: Slice,
    /// Logarithms of the softmax sums in attention, `[R, H]`.
    pub lse: Slice,
    /// Output of attention, `[R, C]`.
    pub attended: Slice,
    /// Residual stream between attention and feed-forward, `[R, C]`.
    pub middle: Slice,
    /// Scales of the second norm, `[R]`.
    pub scales2: Slice,
    /// Gates and ups, `[R, 2 F]`. The backward pass overwrites them with their gradient. Empty with experts.
    pub gate_up: Slice,
    /// Routing of the tokens; empty in a dense layer.
    pub mixture: Mixture,
    /// Products `x Aᵀ` of the adapters, `[R, r]` each; empty if the whole model is trained.
    pub low: Vec<Slice>,
}

/// Routing of a layer's tokens, and activations of the experts.
#[derive(Clone, Debug)]
pub struct Mixture {
    /// Softmax of the router's logits, `[R, stride]`; see [`router_stride`].
    pub probs: Slice,
    /// Weight of each expert for each token, mostly 0, `[R, stride]`.
    pub weights: Slice,
    /// Gradient of the load-balancing loss for each window and expert, `[R / T, stride]`.
    pub slopes: Slice,
    /// Gates and ups of each expert, `[R, 2 F]` each. The backward pass overwrites them with their gradient.
    pub gate_up: Vec<Slice>,
}

/// Returns the number of values in a row of the router's logits: E, rounded up to a multiple of 4.
pub fn router_stride(dims: &Dims) -> usize {
    dims.experts.next_multiple_of(4)
}

/// Buffers of a step, for one microbatch at a time.
#[derive(Debug)]
pub struct Workspace {
    /// Activations of each layer.
    pub layers: Vec<Layer>,
    /// Whether the layers share one set of activation buffers, except for their inputs and routing. After the forward
    /// pass, it holds the activations of the last layer, and the backward pass recomputes those of the others.
    pub recompute: bool,
    /// Residual stream after the last layer, `[R, C]`.
    pub x: Slice,
    /// Scales of the last norm, `[R]`.
    pub scales: Slice,
    /// Output of a norm and input of the next matrix, `[R, C]`.
    pub normed: Slice,
    /// Input of the down matrix, later its gradient, `[R, F]`.
    pub gated: Slice,
    /// Logits of the router, later their gradient, `[R, stride]`; empty in a dense model.
    pub router: Slice,
    /// Gradient of the experts' weights for each token, `[R, stride]`; empty in a dense model.
    pub dweights: Slice,
    /// Gradient of the output of a norm or of attention, `[R, C]`.
    pub branch: Slice,
    /// Gradient of queries, keys and values, `[R, C + 2 K D]`.
    pub dqkv: Slice,
    /// For each token and head, the dot product of attention's output and its gradient, `[R, H]`.
    pub dots: Slice,
    /// Gradient of the residual stream, `[R, C]`.
    pub dx: Slice,
    /// Gradients of the products `x Aᵀ` of a layer's adapters, `[R, r]` each; empty if the whole model is trained.
    pub dlow: Vec<Slice>,
    /// Partial sums of a norm weight's gradient, `[R / NORM_ROWS, C]`.
    pub partial: Slice,
    /// Logits of a chunk of tokens, later their gradient, `[chunk, logits_stride]`.
    pub logits: Slice,
    /// Number of values in a row of logits: V, rounded up to a multiple of 4.
    pub logits_stride: usize,
    /// Number of tokens in a chunk.
    pub chunk: usize,
    /// Cosines of the rotary angles, `[T, D / 2]`.
    pub cos: Slice,
    /// Sines of the rotary angles, `[T, D / 2]`.
    pub sin: Slice,
}

impl Workspace {
    /// Returns the size of a workspace in bytes, on a device with a binding limit of `bytes_max` bytes.
    pub fn bytes(bytes_max: u64, dims: &Dims, shape: &BatchShape, recompute: bool) -> u64 {
        let (rows, c, wide, f) = (shape.rows(), dims.width, dims.qkv_width(), dims.ff);
        let (stride, dense) = (router_stride(dims), usize::from(dims.experts == 0));
        let sum = |values: &[usize]| values.iter().map(|&values| buffer_bytes(values as u64)).sum::<u64>();
        let several = |count: usize, values: usize| count as u64 * buffer_bytes(values as u64);
        let low = several(adapters(dims), rows * dims.rank());
        let kept = sum(&[rows * c, rows * stride, rows * stride, shape.windows * stride]);
        let left = sum(&[rows, rows * wide, rows * dims.heads, rows * c, rows * c, rows])
            + sum(&[rows * 2 * f * dense])
            + several(dims.experts, rows * 2 * f)
            + low;
        let sets = if recompute { 1 } else { dims.layers as u64 };
        let logits = chunk_rows(dims, rows, bytes_max) * dims.vocab.next_multiple_of(4);
        let table = dims.context * dims.head / 2;
        let own =
            sum(&[rows * c, rows, rows * c, rows * f, rows * stride, rows * stride, rows * c, rows * wide])
                + sum(&[rows * dims.heads, rows * c, rows.div_ceil(NORM_ROWS) * c, logits, table, table])
                + low;
        dims.layers as u64 * kept + sets * left + own
    }

    /// Allocates a workspace for microbatches of `shape`. With `recompute`, layers share most buffers.
    ///
    /// # Errors
    /// [`GpuError::TensorTooLarge`] if a tensor of one microbatch exceeds the binding limit.
    pub fn new(gpu: &Gpu, dims: &Dims, shape: &BatchShape, recompute: bool) -> Result<Self, GpuError> {
        let (rows, c, wide) = (shape.rows(), dims.width, dims.qkv_width());
        let bytes_max = gpu.binding_bytes_max();
        let make = |label: &str, values: usize| {
            let bytes = values as u64 * 4;
            if bytes > bytes_max {
                let adapter = gpu.facts().name.clone();
                return Err(GpuError::TensorTooLarge { tensor: label.to_owned(), bytes, bytes_max, adapter });
            }
            Ok(Slice::whole(&buffer(gpu, label, values as u64)))
        };
        let stride = router_stride(dims);
        let layers = layers(dims, shape, recompute, &make)?;
        let chunk = chunk_rows(dims, rows, bytes_max);
        let logits_stride = dims.vocab.next_multiple_of(4);
        let (cos, sin) = rotary_tables(dims.context, dims.head, dims.rope_theta);
        let table = |label: &str, values: &[f32]| {
            let slice = make(label, values.len())?;
            gpu.write(&slice, values);
            Ok::<Slice, GpuError>(slice)
        };
        Ok(Self {
            layers,
            recompute,
            x: make("x", rows * c)?,
            scales: make("scales", rows)?,
            normed: make("normed", rows * c)?,
            gated: make("gated", rows * dims.ff)?,
            router: make("router", rows * stride)?,
            dweights: make("dweights", rows * stride)?,
            branch: make("branch", rows * c)?,
            dqkv: make("dqkv", rows * wide)?,
            dots: make("dots", rows * dims.heads)?,
            dx: make("dx", rows * c)?,
            dlow: low(dims, rows, "dlow", &make)?,
            partial: make("partial", rows.div_ceil(NORM_ROWS) * c)?,
            logits: make("logits", chunk * logits_stride)?,
            logits_stride,
            chunk,
            cos: table("cos", &cos)?,
            sin: table("sin", &sin)?,
        })
    }
}

/// Creates the activations of each layer. `make` allocates a slice by label and number of values.
fn layers(
    dims: &Dims,
    shape: &BatchShape,
    recompute: bool,
    make: &impl Fn(&str, usize) -> Result<Slice, GpuError>,
) -> Result<Vec<Layer>, GpuError> {
    let (rows, c, stride) = (shape.rows(), dims.width, router_stride(dims));
    let dense = usize::from(dims.experts == 0);
    let mixture = |gate_up| -> Result<Mixture, GpuError> {
        Ok(Mixture {
            probs: make("probs", rows * stride)?,
            weights: make("weights", rows * stride)?,
            slopes: make("slopes", shape.windows * stride)?,
            gate_up,
        })
    };
    let mut layers: Vec<Layer> = Vec::with_capacity(dims.layers);
    for _ in 0..dims.layers {
        let x = make("x", rows * c)?;
        layers.push(match layers.first().filter(|_| recompute) {
            Some(first) => Layer { x, mixture: mixture(first.mixture.gate_up.clone())?, ..first.clone() },
            None => Layer {
                x,
                scales1: make("scales1", rows)?,
                qkv: make("qkv", rows * dims.qkv_width())?,
                lse: make("lse", rows * dims.heads)?,
                attended: make("attended", rows * c)?,
                middle: make("middle", rows * c)?,
                scales2: make("scales2", rows)?,
                gate_up: make("gate_up", rows * 2 * dims.ff * dense)?,
                mixture: {
                    let gate_up = (0..dims.experts).map(|_| make("gate_up", rows * 2 * dims.ff));
                    mixture(gate_up.collect::<Result<_, _>>()?)?
                },
                low: low(dims, rows, "low", make)?,
            },
        });
    }
    Ok(layers)
}

/// Creates a slice `[rows, r]` for each adapter of a layer.
fn low(
    dims: &Dims,
    rows: usize,
    label: &str,
    make: &impl Fn(&str, usize) -> Result<Slice, GpuError>,
) -> Result<Vec<Slice>, GpuError> {
    (0..adapters(dims)).map(|_| make(label, rows * dims.rank())).collect()
}

/// Returns the number of adapters in a layer.
fn adapters(dims: &Dims) -> usize {
    dims.lora.map_or(0, |lora| lora.targets.iter().count())
}

fn chunk_rows(dims: &Dims, rows: usize, bytes_max: u64) -> usize {
    let row_bytes = dims.vocab.next_multiple_of(4) * 4;
    let most =
        (LOGITS_BYTES_MAX.min(bytes_max) as usize / row_bytes / CHUNK_ROWS * CHUNK_ROWS).max(CHUNK_ROWS);
    most.min(rows.next_multiple_of(CHUNK_ROWS))
}
