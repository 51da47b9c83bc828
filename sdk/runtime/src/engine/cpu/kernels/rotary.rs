//! Rotary positions: pairs of values of each head are rotated by an angle that grows with the position.

use std::ops::Range;

use crate::model::rotary_tables;

/// Cosines and sines of the rotary positions, `[T, D / 2]` each.
pub struct Rotary {
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
}

/// Direction of the rotation: values forwards, gradients backwards.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// By the angle.
    Forward,
    /// By minus the angle.
    Backward,
}

impl Rotary {
    /// Computes the angles `t / theta^(2i/D)` for positions below `context` and heads of width `head`.
    pub fn new(context: usize, head: usize, theta: f32) -> Self {
        let (cos, sin) = rotary_tables(context, head, theta);
        Self { cos, sin, half: head / 2 }
    }

    /// Returns the bytes of the tables.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.cos) + size_of_val(&*self.sin)
    }

    /// Rotates the first `width` values, whole heads, of each row of `x`, `[n · at.len(), stride]`: `n` windows at the
    /// positions `at`.
    pub fn turn(&self, x: &mut [f32], stride: usize, width: usize, at: Range<usize>, direction: Direction) {
        let rows = at.start * self.half..at.end * self.half;
        let tables = (&self.cos[rows.clone()], &self.sin[rows]);
        for window in x.chunks_exact_mut(at.len() * stride) {
            match direction {
                Direction::Forward => turn(window, stride, width, tables.0, tables.1, self.half, 1.0),
                Direction::Backward => turn(window, stride, width, tables.0, tables.1, self.half, -1.0),
            }
        }
    }
}

simd! {
    /// Computes `(a, b) ← (a cos − b sin, b cos + a sin)` for values i and i + D/2 of a head.
    fn turn(
        x: &mut [f32], stride: usize, width: usize, cos: &[f32], sin: &[f32], half: usize, sign: f32,
    ) {
        let tables = cos.chunks_exact(half).zip(sin.chunks_exact(half));
        for (row, (cos, sin)) in x.chunks_exact_mut(stride).zip(tables) {
            for head in row[..width].chunks_exact_mut(2 * half) {
                let (a, b) = head.split_at_mut(half);
                for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                    let (from_a, from_b, sin) = (*a, *b, sin * sign);
                    *a = from_a * cos - from_b * sin;
                    *b = from_b * cos + from_a * sin;
                }
            }
        }
    }
}
