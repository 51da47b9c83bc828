//! Vectors of floats as wide as the processor supports. Products and sums are rounded separately.

/// Name of the vector instructions for which this program is compiled; `None` if it detects them at run time.
pub const NAME: Option<&str> = if cfg!(target_feature = "relaxed-simd") {
    Some("relaxed-simd")
} else if cfg!(target_feature = "simd128") {
    Some("simd128")
} else {
    None
};

/// Vector of `N` floats.
pub trait Lanes<const N: usize>: Copy {
    /// Creates a vector that holds `value` in each lane.
    fn splat(value: f32) -> Self;

    /// Reads contiguous values from memory.
    fn load(values: &[f32; N]) -> Self;

    /// Writes the lanes to contiguous memory.
    fn store(self, values: &mut [f32; N]);

    /// Computes `self + a · b` with two roundings. In modules compiled for `relaxed-simd`, the browser may round only
    /// once.
    #[must_use]
    fn add_product(self, a: Self, b: Self) -> Self;
}

/// Computation for vectors of any width, to be run by [`widest`]. All its code must be `#[inline(always)]`; otherwise
/// each operation becomes a function call.
pub trait Work {
    /// Runs the computation with vectors of type `L`.
    fn run<L: Lanes<N>, const N: usize>(self);
}

#[cfg(not(any(target_feature = "simd128", target_arch = "x86_64")))]
mod array {
    //! Vectors as arrays, for targets without a vector implementation here.

    use super::{Lanes, Work};

    /// Runs `work` with arrays, which the compiler may turn into vectors.
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
}

#[cfg(target_feature = "simd128")]
mod simd128 {
    //! Vectors of WebAssembly.

    use std::arch::wasm32::{f32x4, f32x4_extract_lane, f32x4_splat, v128};

    #[cfg(target_feature = "relaxed-simd")]
    use std::arch::wasm32::f32x4_relaxed_madd;
    #[cfg(not(target_feature = "relaxed-simd"))]
    use std::arch::wasm32::{f32x4_add, f32x4_mul};

    use super::{Lanes, Work};

    /// Runs `work` with pairs of vectors of four values.
    pub fn widest(work: impl Work) {
        work.run::<[v128; 2], 8>();
    }

    impl Lanes<8> for [v128; 2] {
        #[inline(always)]
        fn splat(value: f32) -> Self {
            [f32x4_splat(value); 2]
        }

        #[inline(always)]
        fn load(&[a, b, c, d, e, f, g, h]: &[f32; 8]) -> Self {
            [f32x4(a, b, c, d), f32x4(e, f, g, h)]
        }

        #[inline(always)]
        fn store(self, values: &mut [f32; 8]) {
            for (part, values) in self.into_iter().zip(values.as_chunks_mut::<4>().0) {
                *values = [
                    f32x4_extract_lane::<0>(part),
                    f32x4_extract_lane::<1>(part),
                    f32x4_extract_lane::<2>(part),
                    f32x4_extract_lane::<3>(part),
                ];
            }
        }

        #[inline(always)]
        fn add_product(self, a: Self, b: Self) -> Self {
            [add_product(self[0], a[0], b[0]), add_product(self[1], a[1], b[1])]
        }
    }

    #[cfg(target_feature = "relaxed-simd")]
    #[inline(always)]
    fn add_product(sum: v128, a: v128, b: v128) -> v128 {
        f32x4_relaxed_madd(a, b, sum)
    }

    #[cfg(not(target_feature = "relaxed-simd"))]
    #[inline(always)]
    fn add_product(sum: v128, a: v128, b: v128) -> v128 {
        f32x4_add(sum, f32x4_mul(a, b))
    }
}

#[cfg(all(not(target_feature = "simd128"), target_arch = "x86_64"))]
mod x86_64 {
    //! Vectors of x86-64, chosen at run time: AVX-512, AVX2 or SSE2.

    use std::arch::x86_64::{
        __m128, __m256, __m512, _mm_add_ps, _mm_loadu_ps, _mm_mul_ps, _mm_set1_ps, _mm_storeu_ps,
        _mm256_add_ps, _mm256_loadu_ps, _mm256_mul_ps, _mm256_set1_ps, _mm256_storeu_ps, _mm512_add_ps,
        _mm512_loadu_ps, _mm512_mul_ps, _mm512_set1_ps, _mm512_storeu_ps,
    };

    use super::{Lanes, Work};

    /// Runs `work` with pairs of the widest vectors that this processor supports.
    pub fn widest(work: impl Work) {
        // Some processors and virtual machines support AVX-512F without the other features.
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
        {
            // SAFETY: the processor supports all these features.
            unsafe { with_avx512(work) }
        } else if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor supports AVX2.
            unsafe { with_avx2(work) }
        } else {
            work.run::<VectorPair<__m128>, 8>();
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
    fn with_avx512(work: impl Work) {
        work.run::<VectorPair<__m512>, 32>();
    }

    #[target_feature(enable = "avx2")]
    fn with_avx2(work: impl Work) {
        work.run::<VectorPair<__m256>, 16>();
    }

    /// Pair of vectors. Two independent sums keep a processor busy that can add twice per cycle.
    #[derive(Clone, Copy)]
    struct VectorPair<V>([V; 2]);

    macro_rules! pair {
        ($vector:ty, $half:literal, $all:literal, $splat:ident, $load:ident, $store:ident, $add:ident, $mul:ident) => {
            // SAFETY, of each block: only `widest` creates these types, and only if the processor supports the
            // instructions. Each pointer is to as many values as a vector has, and unaligned pointers are allowed.
            impl Lanes<$all> for VectorPair<$vector> {
                #[inline(always)]
                fn splat(value: f32) -> Self {
                    Self([unsafe { $splat(value) }; 2])
                }

                #[inline(always)]
                fn load(values: &[f32; $all]) -> Self {
                    let (low, high) = values.split_at($half);
                    Self(unsafe { [$load(low.as_ptr()), $load(high.as_ptr())] })
                }

                #[inline(always)]
                fn store(self, values: &mut [f32; $all]) {
                    let (low, high) = values.split_at_mut($half);
                    unsafe {
                        $store(low.as_mut_ptr(), self.0[0]);
                        $store(high.as_mut_ptr(), self.0[1]);
                    }
                }

                #[inline(always)]
                fn add_product(self, a: Self, b: Self) -> Self {
                    Self(unsafe {
                        [$add(self.0[0], $mul(a.0[0], b.0[0])), $add(self.0[1], $mul(a.0[1], b.0[1]))]
                    })
                }
            }
        };
    }

    pair!(__m128, 4, 8, _mm_set1_ps, _mm_loadu_ps, _mm_storeu_ps, _mm_add_ps, _mm_mul_ps);
    pair!(__m256, 8, 16, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_add_ps, _mm256_mul_ps);
    pair!(__m512, 16, 32, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, _mm512_mul_ps);
}

#[cfg(not(any(target_feature = "simd128", target_arch = "x86_64")))]
pub use array::widest;
#[cfg(target_feature = "simd128")]
pub use simd128::widest;
#[cfg(all(not(target_feature = "simd128"), target_arch = "x86_64"))]
pub use x86_64::widest;
