//! All passes that are not matrix products, each compiled for several instruction sets. The best set that the processor
//! supports is chosen at run time.
//!
//! Kernels use no fused multiply-add, and sums have a fixed number of partial sums, so that each kernel gives the same
//! bits on every instruction set.

/// Compiles functions for AVX-512, AVX2 and the baseline, and dispatches between them.
macro_rules! simd {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident $args:tt $(-> $out:ty)? $body:block)*) => {
        $(
            $(#[$meta])*
            #[multiversion::multiversion(targets("x86_64+avx2+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
            $vis fn $name $args $(-> $out)? $body
        )*
    };
}

mod entropy;
mod math;
mod norm;
mod optimiser;
mod rotary;
mod routing;
mod softmax;
mod swiglu;

pub use entropy::cross_entropy;
pub use norm::{add_norm, norm, norm_again, norm_backward};
pub use optimiser::{adamw, add, squares};
pub use rotary::{Direction, Rotary};
pub use routing::{Balance, balance_back, likeliest, route, weights_back};
pub use softmax::{dots, probabilities, scale_rows, score_gradient, softmax};
pub use swiglu::{swiglu, swiglu_backward};

use crate::platform::lanes;

/// Returns the name of the instruction set, for people.
pub fn instruction_set() -> &'static str {
    lanes::NAME.unwrap_or_else(chosen)
}

#[multiversion::multiversion(targets("x86_64+avx2+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn chosen() -> &'static str {
    multiversion::target::match_target! {
        "x86_64+avx512f" => "avx512",
        "x86_64+avx2" => "avx2",
        _ => "baseline",
    }
}
