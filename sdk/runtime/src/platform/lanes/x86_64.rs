//! Vectors of x86-64, chosen at run time: AVX-512, AVX2 or the baseline.

use std::arch::x86_64::{
    __m128, __m256, __m512, _mm_add_ps, _mm_loadu_ps, _mm_mul_ps, _mm_set1_ps, _mm_storeu_ps, _mm256_add_ps,
    _mm256_loadu_ps, _mm256_mul_ps, _mm256_set1_ps, _mm256_storeu_ps, _mm512_add_ps, _mm512_loadu_ps,
    _mm512_mul_ps, _mm512_set1_ps, _mm512_storeu_ps,
};

use super::{Lanes, Work};

/// Does `work` with pairs of the widest vectors that this processor supports.
pub fn widest(work: impl Work) {
    // Some processors and virtual machines support only the first of these features.
    if is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx2")
    {
        // SAFETY: the processor supports all of them.
        unsafe { with_avx512(work) }
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor supports them.
        unsafe { with_avx2(work) }
    } else {
        work.run::<Pair<__m128>, 8>();
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
fn with_avx512(work: impl Work) {
    work.run::<Pair<__m512>, 32>();
}

#[target_feature(enable = "avx2")]
fn with_avx2(work: impl Work) {
    work.run::<Pair<__m256>, 16>();
}

/// Two vectors: enough sums in flight for a processor that adds twice per cycle.
#[derive(Clone, Copy)]
struct Pair<V>([V; 2]);

macro_rules! pair {
    ($vector:ty, $half:literal, $all:literal, $splat:ident, $load:ident, $store:ident, $add:ident, $mul:ident) => {
        // SAFETY, of each block: only `widest` creates these types, where the processor supports the instructions.
        // Pointers are to as many values as a vector has, and need no alignment.
        impl Lanes<$all> for Pair<$vector> {
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
