//! Scalar functions that are inlined into the loops of the kernels.

/// Number of partial sums of a sum over a row: one AVX-512 vector.
pub const LANES: usize = 16;

/// Returns `eˣ` within 2.5e-7 of its value; 1e-38 below −87, `e⁸⁸` above 88; NaN stays NaN.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts; the first has few enough bits that n times it is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // 1.5 · 2²³: adding it rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;

    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = x * LOG2_E + ROUND;
    let n = shifted - ROUND;
    // x = n ln 2 + r with |r| ≤ ln 2 / 2; eʳ by its Taylor series, whose next term is below 1.3e-7.
    let r = x - n * LN_2_HIGH - n * LN_2_LOW;
    let tail = 1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0)));
    let power = 1.0 + (r + r * r * (0.5 + r * tail));
    power * f32::from_bits(shifted.to_bits().wrapping_add(127) << 23)
}

/// Returns `1 / (1 + e⁻ˣ)`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Returns the sum of `f(aᵢ, bᵢ)` over slices of equal length.
#[inline(always)]
pub fn sum_with(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            sums[i] += f(a[i], b[i]);
        }
    }
    for ((sum, &a), &b) in sums.iter_mut().zip(a_rest).zip(b_rest) {
        *sum += f(a, b);
    }
    fold(sums, |a, b| a + b)
}

/// Joins the partial results in a fixed order.
#[inline(always)]
pub fn fold(mut lanes: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = f(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// Returns the largest value of `row`, or −∞ if `row` is empty. Skips NaN.
#[inline(always)]
pub fn max(row: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (chunks, rest) = row.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = larger(lanes[i], chunk[i]);
        }
    }
    rest.iter().fold(fold(lanes, larger), |a, &b| larger(a, b))
}

/// Replaces each value x by `exp(scale · x − offset)` and returns the sum.
#[inline(always)]
pub fn exp_and_sum(row: &mut [f32], scale: f32, offset: f32) -> f32 {
    let (chunks, rest) = row.as_chunks_mut::<LANES>();
    let mut sums = [0.0; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            chunk[i] = exp(chunk[i] * scale - offset);
            sums[i] += chunk[i];
        }
    }
    for (value, sum) in rest.iter_mut().zip(&mut sums) {
        *value = exp(*value * scale - offset);
        *sum += *value;
    }
    fold(sums, |a, b| a + b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close() {
        let mut worst = 0.0_f64;
        for i in -87_000..88_000 {
            let x = i as f32 / 1000.0;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
        }
        assert!(worst < 2.5e-7, "{worst:e}");
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(f32::NEG_INFINITY) < 1.7e-38);
        assert!(exp(f32::INFINITY).is_finite());
    }

    #[test]
    fn sums_and_maxima_see_every_value() {
        for len in [1, 15, 16, 17, 50] {
            let row: Vec<f32> = (0..len).map(|i| i as f32 - 3.0).collect();
            assert_eq!(sum_with(&row, &row, |a, _| a), row.iter().sum::<f32>());
            for i in 0..len {
                let mut row = vec![-5.0; len];
                row[i] = -1.0;
                assert_eq!(max(&row), -1.0);
            }
        }
    }
}
