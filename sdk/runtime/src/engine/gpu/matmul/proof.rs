//! Correctness test of a variant on a device before use.

use archipelago_core::bytes::to_f32s;

use super::{Form, Matmul, Product, Store, Values, Variant};
use crate::engine::gpu::program::{Builder, Slice, buffer};
use crate::engine::gpu::ring::Ring;
use crate::engine::gpu::{Gpu, GpuError};

/// Sides of the test product, which cross the edges of all tiles.
const SIDES: [u32; 3] = [77, 140, 91];
/// Maximum error of a sum whose terms are exact and at most 1. Only the order of additions differs.
const ERROR_MAX: f32 = 1e-6 * SIDES[2] as f32;

/// Returns true if `variant` agrees for a product of `form` on `gpu` with plain sums, within rounding.
///
/// # Errors
/// [`GpuError::Lost`] and [`GpuError::Refused`].
pub async fn agrees(gpu: &Gpu, variant: Variant, form: Form) -> Result<bool, GpuError> {
    let [m, n, k] = SIDES;
    let width = |side: u32| side.next_multiple_of(4);
    let ([rows_a, columns_a], [rows_b, columns_b]) = match form {
        Form::Nt => ([m, k], [n, k]),
        Form::Nn => ([m, k], [k, n]),
        Form::Tn => ([k, m], [k, n]),
    };
    let (a, b) = (operand(gpu, rows_a, columns_a), operand(gpu, rows_b, columns_b));
    let mut found = Vec::new();
    for variant in [Variant::Register4, variant] {
        let c = Slice::whole(&buffer(gpu, "proof", u64::from(m * n)));
        let product = Product {
            form,
            m,
            n,
            k,
            a: a.clone(),
            a_stride: width(columns_a),
            b: b.clone(),
            b_stride: width(columns_b),
            b_values: Values::Whole,
            c: c.clone(),
            c_stride: n,
            store: Store::Set,
            first: [0, 0],
            scale: 1.0,
        };
        let mut builder = Builder::default();
        Matmul::fixed(variant).for_means_of(1000).add(&mut builder, product);
        builder.build(gpu).submit(gpu, u64::MAX);
        let mut ring = Ring::new(gpu, "proof", 1, c.bytes);
        ring.read(gpu, &[c], ());
        ring.ready(gpu).await?;
        found.push(ring.next(gpu, |(), bytes| to_f32s(bytes))?.unwrap_or_default());
    }
    Ok(are_alike(&found[0], &found[1]))
}

/// Returns true if both hold numbers that differ only by rounding.
fn are_alike(expected: &[f32], found: &[f32]) -> bool {
    expected.len() == found.len() && expected.iter().zip(found).all(|(a, b)| (a - b).abs() <= ERROR_MAX)
}

/// Creates a matrix `[rows, columns]` of numbers between −1 and 1 that 16-bit floats represent exactly, with 0 after
/// each row.
fn operand(gpu: &Gpu, rows: u32, columns: u32) -> Slice {
    let width = columns.next_multiple_of(4);
    let value = |i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as f32 / 128.0 - 1.0;
    let values: Vec<f32> =
        (0..rows * width).map(|i| if i % width < columns { value(i) } else { 0.0 }).collect();
    let slice = Slice::whole(&buffer(gpu, "proof", values.len() as u64));
    gpu.write(&slice, &values);
    slice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_roundings_are_alike() {
        assert!(are_alike(&[1.0, -20.0], &[1.000_01, -20.000_04]));
        for other in [&[1.0, -20.001][..], &[1.0], &[1.0, 20.0], &[1.0, f32::NAN], &[1.0, f32::INFINITY]] {
            assert!(!are_alike(&[1.0, -20.0], other), "{other:?}");
        }
    }
}
