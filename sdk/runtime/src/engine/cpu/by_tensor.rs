//! The gradient of a batch, split by tensor, to which threads add in turn.

use std::ops::Range;

use super::kernels;
use super::matmul::Store;
use super::routes::ExpertGradient;
use super::turns::Turns;
use crate::model::{LayerSlots, Slots};

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
pub(super) fn store(turn: usize) -> Store {
    if turn == 0 { Store::Set } else { Store::Add }
}
