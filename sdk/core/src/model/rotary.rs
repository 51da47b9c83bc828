//! Angles of rotary positions.

/// Returns cosines and sines of the angles `t / theta^(2i/D)`, `[context, head / 2]` each (RoPE, Su et al. 2021).
pub fn rotary_tables(context: usize, head: usize, theta: f32) -> (Vec<f32>, Vec<f32>) {
    let half = head / 2;
    let angle = |t: usize, i: usize| t as f64 / libm::pow(f64::from(theta), i as f64 / half as f64);
    let table = |f: fn(f64) -> f64| -> Vec<f32> {
        (0..context).flat_map(|t| (0..half).map(move |i| f(angle(t, i)) as f32)).collect()
    };
    (table(libm::cos), table(libm::sin))
}
