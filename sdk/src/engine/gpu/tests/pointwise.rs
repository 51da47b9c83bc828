use super::super::kernels;
use super::harness::{close, each_gpu, floats, noise, run, words};
use crate::model::ops;

/// Within 1e-6 of the larger of 1 and the value: one exponential and one division.
#[test]
fn swiglu_agrees() {
    for (rows, ff, groups) in [(1, 4, 1), (3, 20, 2), (64, 4, 1), (65, 4, 3), (129, 344, 7)] {
        let gate_up = noise(rows * 2 * ff, 3.0);
        let expected: Vec<f64> = gate_up
            .chunks(2 * ff)
            .flat_map(|row| {
                let row: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
                ops::swiglu(&row[..ff], &row[ff..])
            })
            .collect();
        each_gpu(|gpu| {
            let buffers = [words(&gate_up), vec![0; rows * ff]];
            let params = [rows as u32, ff as u32 / 4];
            let found = run(gpu, &kernels::SWIGLU, &[("WG", 64)], &params, &buffers, [groups, 1, 1]);
            close("swiglu", &floats(&found[0]), &expected, 1e-6);
        });
    }
}
