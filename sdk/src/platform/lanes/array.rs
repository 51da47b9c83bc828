/// Four floats.
#[derive(Clone, Copy)]
pub struct F4([f32; 4]);

impl F4 {
    /// `value` four times.
    #[inline(always)]
    pub fn splat(value: f32) -> Self {
        Self([value; 4])
    }

    /// Of four values that lie side by side.
    #[inline(always)]
    pub fn load(values: &[f32; 4]) -> Self {
        Self(*values)
    }

    /// Into four values that lie side by side.
    #[inline(always)]
    pub fn store(self, values: &mut [f32; 4]) {
        *values = self.0;
    }

    /// `self + a · b`; rounded once or twice, as the target likes best.
    #[inline(always)]
    #[must_use]
    pub fn add_product(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] + a.0[i] * b.0[i]))
    }
}
