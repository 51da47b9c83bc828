//! Vectors of floats, as wide as the processor supports, whose sums and products are rounded separately.

/// Name of the vector instructions for which all code is compiled, or `None` if the program detects them at run time.
pub const NAME: Option<&str> = if cfg!(target_feature = "relaxed-simd") {
    Some("relaxed-simd")
} else if cfg!(target_feature = "simd128") {
    Some("simd128")
} else {
    None
};

/// `N` floats side by side, in registers.
pub trait Lanes<const N: usize>: Copy {
    /// Creates a vector that holds `value` in each lane.
    fn splat(value: f32) -> Self;

    /// Reads contiguous values from memory.
    fn load(values: &[f32; N]) -> Self;

    /// Writes the lanes to contiguous memory.
    fn store(self, values: &mut [f32; N]);

    /// Computes `self + a · b`, rounded twice. Modules compiled for `relaxed-simd` may round once, if the browser
    /// prefers that.
    #[must_use]
    fn add_product(self, a: Self, b: Self) -> Self;
}

/// Work to do with the widest vectors available, see [`widest`]. All of it must be `#[inline(always)]`; otherwise each
/// operation becomes a call.
pub trait Work {
    /// Does the work with vectors of type `L`.
    fn run<L: Lanes<N>, const N: usize>(self);
}

#[cfg(not(any(target_feature = "simd128", target_arch = "x86_64")))]
mod array;
#[cfg(target_feature = "simd128")]
mod simd128;
#[cfg(all(not(target_feature = "simd128"), target_arch = "x86_64"))]
mod x86_64;

#[cfg(not(any(target_feature = "simd128", target_arch = "x86_64")))]
pub use array::widest;
#[cfg(target_feature = "simd128")]
pub use simd128::widest;
#[cfg(all(not(target_feature = "simd128"), target_arch = "x86_64"))]
pub use x86_64::widest;
