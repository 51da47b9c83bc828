//! The parameters that a run begins with, from its seed.

use super::{Dims, ModelError, ModelSpec, Slots, adapters, layout};
use crate::rng::Rng;

/// Standard deviation of the initial matrices.
const STD: f64 = 0.02;

/// Initial parameters, flat, `[len]`: the same bits on every machine.
///
/// Norms are 1, matrices normal with standard deviation 0.02, and the two that write to the residual
/// stream `1/√(2 layers)` of that (GPT-2). "Normal" is the sum of 12 uniform numbers (Irwin–Hall), which
/// needs no logarithm or cosine, whose last bits differ between platforms.
///
/// Of adapters A is uniform within ±1/√ins, as PEFT begins, and B is 0: they change nothing yet.
///
/// # Errors
/// As [`layout`].
pub fn init(spec: &ModelSpec, seed: u64) -> Result<Vec<f32>, ModelError> {
    layout(spec)?;
    if let Some(lora) = &spec.lora {
        return Ok(adapters::begin(spec, lora, seed));
    }
    let slots = Slots::new(&Dims::new(spec));
    let mut rng = Rng::new(seed);
    let mut params = vec![1.0; slots.len];
    let residual = STD / f64::from(2 * spec.layers).sqrt();
    let mut fill = |range: std::ops::Range<usize>, std: f64| {
        for value in &mut params[range] {
            *value = (normal(&mut rng) * std) as f32;
        }
    };
    fill(slots.embed.clone(), STD);
    for layer in slots.layers {
        fill(layer.qkv, STD);
        fill(layer.out, residual);
        fill(layer.gate_up, STD);
        fill(layer.down, residual);
        fill(layer.router, STD);
        for expert in layer.experts {
            fill(expert.gate_up, STD);
            fill(expert.down, residual);
        }
    }
    if spec.untied_head {
        fill(slots.head, STD);
    }
    Ok(params)
}

/// Mean 0, variance 1, within ±6: the sum of 12 uniform 16-bit numbers, exact in `f64`.
fn normal(rng: &mut Rng) -> f64 {
    let mut sum = 0_u64;
    for _ in 0..3 {
        let bits = rng.next_u64();
        sum += (0..4).map(|i| (bits >> (16 * i)) & 0xffff).sum::<u64>();
    }
    // Each number is uniform on 0..2¹⁶, with mean (2¹⁶ − 1) / 2.
    (sum as f64 - 6.0 * 65_535.0) / 65_536.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{LoraSpec, LoraTargets, Preset};

    #[test]
    fn has_the_promised_moments() {
        let spec = ModelSpec { untied_head: true, ..Preset::Small.model(256) };
        let params = init(&spec, 7).unwrap();
        let slots = Slots::new(&Dims::new(&spec));
        let check = |range: std::ops::Range<usize>, std: f64| {
            let values: Vec<f64> = params[range].iter().map(|&x| f64::from(x)).collect();
            let n = values.len() as f64;
            let mean = values.iter().sum::<f64>() / n;
            let var = values.iter().map(|x| x * x).sum::<f64>() / n;
            assert!(mean.abs() < 4.0 * std / n.sqrt(), "mean {mean}");
            assert!((var.sqrt() / std - 1.0).abs() < 0.02, "std {}", var.sqrt());
        };
        check(slots.embed, 0.02);
        check(slots.head, 0.02);
        check(slots.layers[1].qkv.clone(), 0.02);
        check(slots.layers[1].down.clone(), 0.02 / 8_f64.sqrt());
        assert!(params[slots.norm].iter().all(|&x| x == 1.0));
    }

    #[test]
    fn adapters_begin_by_changing_nothing() {
        let lora = Some(LoraSpec { rank: 8, alpha: 16.0, targets: LoraTargets::ALL });
        let spec = ModelSpec { lora, ..Preset::Tiny.model(256) };
        let (params, slots) = (init(&spec, 7).unwrap(), Slots::new(&Dims::new(&spec)));
        for adapter in slots.layers.iter().flat_map(|layer| &layer.adapters) {
            let (a, bound) = (&params[adapter.a.clone()], 1.0 / (adapter.ins as f32).sqrt());
            assert!(a.iter().all(|value| value.abs() <= bound));
            let (n, squares) = (a.len() as f64, a.iter().map(|&a| f64::from(a * a)).sum::<f64>());
            // A uniform number has the variance bound² / 3; the mean of squares is known to 0.9 / √n.
            let variance = squares / n / f64::from(bound * bound / 3.0);
            assert!((variance - 1.0).abs() < 4.0 * 0.9 / n.sqrt(), "{variance}");
            assert!(params[adapter.b.clone()].iter().all(|&b| b == 0.0));
        }
        assert_ne!(params, init(&spec, 8).unwrap());
    }

    #[test]
    fn follows_the_seed() {
        let spec = Preset::Tiny.model(64);
        assert_eq!(init(&spec, 1).unwrap(), init(&spec, 1).unwrap());
        assert_ne!(init(&spec, 1).unwrap(), init(&spec, 2).unwrap());
    }

    /// If this fails, learners of two versions start apart: raise the wire version.
    #[test]
    fn bits_are_frozen() {
        let params = init(&Preset::Tiny.model(64), 1).unwrap();
        let bits: Vec<u32> = params[..4].iter().map(|x| x.to_bits()).collect();
        assert_eq!(bits, [1_019_354_972, 1_005_763_953, 3_155_242_844, 3_152_014_868]);
    }
}
