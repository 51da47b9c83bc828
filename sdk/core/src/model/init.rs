//! Initial parameters of a run, from its seed.

use std::ops::Range;

use super::adapters::{AdapterSlots, Sizes, of_layers};
use super::{Dims, LoraSpec, ModelError, ModelSpec, Slots, layout};
use crate::rng::Rng;

/// Standard deviation of the initial matrices.
const STD: f64 = 0.02;

/// Returns initial parameters, flat, `[len]`: the same bits on every machine.
///
/// Norms are 1. Matrices are normal with standard deviation 0.02, and the two that write to the residual stream with
/// `1/√(2 layers)` of that (GPT-2). "Normal" is the sum of 12 uniform numbers (Irwin–Hall). It needs no logarithm or
/// cosine, whose last bits differ between platforms.
///
/// For adapters, A is uniform within ±1/√ins, as in PEFT, and B is 0, so that they initially change nothing.
///
/// # Errors
/// Those of [`layout`].
pub fn init(spec: &ModelSpec, seed: u64) -> Result<Vec<f32>, ModelError> {
    let len = layout(spec)?.len();
    init_within(spec, seed, std::slice::from_ref(&(0..len)))
}

/// Returns the values of [`init`] in these ranges of the flat vector, one after another. Time and memory depend on the
/// ranges, not on the model.
///
/// # Errors
/// Those of [`layout`].
pub fn init_within(spec: &ModelSpec, seed: u64, ranges: &[Range<usize>]) -> Result<Vec<f32>, ModelError> {
    layout(spec)?;
    Ok(match &spec.lora {
        Some(lora) => {
            let draws = draws_of_adapters(spec, lora);
            let uniform = |rng: &mut Rng, bound| (2.0 * rng.unit() - 1.0) * bound;
            Begun { elsewhere: 0.0, draws, numbers: 1, value: uniform }.within(seed, ranges)
        }
        None => {
            let normal = |rng: &mut Rng, std| normal(rng) * std;
            Begun { elsewhere: 1.0, draws: draws(spec), numbers: 3, value: normal }.within(seed, ranges)
        }
    })
}

/// Randomly drawn values of the flat vector.
struct Draw {
    range: Range<usize>,
    /// Scale of the values: their standard deviation, or their bound.
    scale: f64,
}

/// Construction of initial values.
struct Begun<F> {
    /// Value outside the drawn ranges.
    elsewhere: f32,
    /// Drawn ranges, in this order.
    draws: Vec<Draw>,
    /// Random numbers for one value.
    numbers: u64,
    /// Draws one value for a scale.
    value: F,
}

impl<F: Fn(&mut Rng, f64) -> f64> Begun<F> {
    fn within(&self, seed: u64, ranges: &[Range<usize>]) -> Vec<f32> {
        let mut made = vec![self.elsewhere; ranges.iter().map(ExactSizeIterator::len).sum()];
        let mut rest = &mut made[..];
        for range in ranges {
            let (values, others) = rest.split_at_mut(range.len());
            rest = others;
            let mut drawn = 0;
            for Draw { range: all, scale } in &self.draws {
                let (from, to) = (all.start.max(range.start), all.end.min(range.end));
                if from < to {
                    let mut rng = Rng::new(seed);
                    rng.skip(self.numbers * (drawn + from - all.start) as u64);
                    for value in &mut values[from - range.start..to - range.start] {
                        *value = (self.value)(&mut rng, *scale) as f32;
                    }
                }
                drawn += all.len();
            }
        }
        made
    }
}

/// Returns the drawn ranges of initial adapters and their bounds. A is uniform within ±1/√ins, which equals PEFT's
/// Kaiming initialisation with a = √5. B is zero, so that the initial model is the one without adapters.
fn draws_of_adapters(spec: &ModelSpec, lora: &LoraSpec) -> Vec<Draw> {
    let adapters = of_layers(Sizes::of(spec), lora).0.into_iter().flatten();
    adapters.map(|AdapterSlots { a, ins, .. }| Draw { range: a, scale: 1.0 / (ins as f64).sqrt() }).collect()
}

/// Returns the matrices of a valid `spec`, in the order in which they are drawn.
fn draws(spec: &ModelSpec) -> Vec<Draw> {
    let slots = Slots::new(&Dims::new(spec));
    let residual = STD / f64::from(2 * spec.layers).sqrt();
    let mut draws = Vec::new();
    let mut draw = |range, scale| draws.push(Draw { range, scale });
    draw(slots.embed, STD);
    for layer in slots.layers {
        draw(layer.qkv, STD);
        draw(layer.out, residual);
        draw(layer.gate_up, STD);
        draw(layer.down, residual);
        draw(layer.router, STD);
        for expert in layer.experts {
            draw(expert.gate_up, STD);
            draw(expert.down, residual);
        }
    }
    if spec.untied_head {
        draw(slots.head, STD);
    }
    draws
}

/// Draws a number of mean 0 and variance 1, within ±6: the sum of 12 uniform 16-bit numbers, exact in `f64`.
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
    use crate::bytes::from_f32s;
    use crate::diloco::{Fragments, Segment, checksum};
    use crate::model::{ExpertSpec, LoraSpec, LoraTargets, Preset};

    #[test]
    fn has_the_promised_moments() {
        let spec = ModelSpec { untied_head: true, ..Preset::Small.model(256) };
        let params = init(&spec, 7).unwrap();
        let slots = Slots::new(&Dims::new(&spec));
        let check = |range: Range<usize>, std: f64| {
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

    /// Goal: a part of the parameters has the same bits as within the whole, for any start and end.
    #[test]
    fn a_part_is_as_in_the_whole() {
        let tiny = Preset::Tiny.model(256);
        let experts = Some(ExpertSpec { count: 4, per_token: 2, aux_loss: 0.01 });
        let lora = Some(LoraSpec { rank: 8, alpha: 16.0, targets: LoraTargets::ALL });
        let of = [
            tiny,
            ModelSpec { untied_head: true, ..tiny },
            ModelSpec { experts, ..tiny },
            ModelSpec { lora, ..tiny },
        ];
        for spec in of {
            let (layout, whole) = (layout(&spec).unwrap(), init(&spec, 7).unwrap());
            assert_eq!(whole.len(), layout.len());
            let fragments = Fragments::plan(&layout, 5.try_into().unwrap());
            for fragment in fragments.ids() {
                let ranges: Vec<_> =
                    fragments.segments(fragment).unwrap().iter().map(Segment::range).collect();
                assert_eq!(init_within(&spec, 7, &ranges).unwrap(), fragments.gather(fragment, &whole));
            }
            let odd = [3..whole.len() - 5, 0..0, 1_001..15_003];
            let expected = [&whole[odd[0].clone()], &whole[odd[2].clone()]].concat();
            assert_eq!(init_within(&spec, 7, &odd).unwrap(), expected);
        }
    }

    #[test]
    fn follows_the_seed() {
        let spec = Preset::Tiny.model(64);
        assert_eq!(init(&spec, 1).unwrap(), init(&spec, 1).unwrap());
        assert_ne!(init(&spec, 1).unwrap(), init(&spec, 2).unwrap());
    }

    /// If this test fails, learners of two versions start apart: raise the wire version.
    #[test]
    fn bits_are_frozen() {
        let params = init(&Preset::Tiny.model(64), 1).unwrap();
        let bits: Vec<u32> = params[..4].iter().map(|x| x.to_bits()).collect();
        assert_eq!(bits, [1_019_354_972, 1_005_763_953, 3_155_242_844, 3_152_014_868]);
        let dense = Preset::Tiny.model(100);
        let experts = Some(ExpertSpec { count: 3, per_token: 2, aux_loss: 0.01 });
        let lora = Some(LoraSpec { rank: 3, alpha: 6.0, targets: LoraTargets::ALL });
        let kinds = [
            dense,
            ModelSpec { untied_head: true, ..dense },
            ModelSpec { experts, ..dense },
            ModelSpec { lora, ..dense },
        ];
        let sum = |spec: ModelSpec| checksum(&from_f32s(&init(&spec, 7).unwrap()));
        let frozen = [
            9_205_497_811_460_098_293,
            7_052_981_715_963_373_875,
            14_516_927_909_229_248_893,
            17_054_693_848_715_688_343,
        ];
        assert_eq!(kinds.map(sum), frozen);
    }
}
