//! Vectors as arrays, for targets without a vector implementation here.

use super::{Lanes, Work};

/// Does `work` with arrays, which the compiler may turn into vectors.
pub fn widest(work: impl Work) {
    work.run::<[f32; 8], 8>();
}

impl Lanes<8> for [f32; 8] {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        [value; 8]
    }

    #[inline(always)]
    fn load(values: &[f32; 8]) -> Self {
        *values
    }

    #[inline(always)]
    fn store(self, values: &mut [f32; 8]) {
        *values = self;
    }

    #[inline(always)]
    fn add_product(mut self, a: Self, b: Self) -> Self {
        for ((sum, a), b) in self.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
        self
    }
}
