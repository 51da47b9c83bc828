//! Tests of the codec: round trips, refused bodies, and frozen bytes.

use proptest::prelude::*;

use super::{SCALE_MIN, scale, *};
use crate::diloco::MergeClass;
use crate::wire::ApplyPolicy;

const CODES: [Code; 3] = [Code::Int4, Code::E3m0, Code::F32];

fn codec(code: Code, block: u32) -> Codec {
    let apply = ApplyPolicy::Overwrite;
    Codec::new(&ExchangeSpec { fragments: 1, sync_every: 1, block, code, apply }).unwrap()
}

fn segments(lens: &[u32]) -> Vec<Segment> {
    let mut start = 0;
    let segment = |&len: &u32| {
        start += len + 3; // Values between segments belong to other fragments.
        Segment { start: start - len, len, merge: MergeClass::Radial, cols: 0, expert: None }
    };
    lens.iter().map(segment).collect()
}

/// Returns a strategy for values of many magnitudes, with zeros.
fn values(len: usize) -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![Just(0.0), -1.0_f32..1.0, -1e-6_f32..1e-6, any::<f32>().prop_map(bounded)];
    prop::collection::vec(value, len)
}

fn bounded(x: f32) -> f32 {
    if x.is_nan() { 0.0 } else { x.clamp(-1e17, 1e17) }
}

#[test]
fn the_smallest_scale_is_kept_and_what_is_below_it_is_nothing() {
    let (codec, segments) = (codec(Code::Int4, 8), segments(&[8]));
    let largest = |factor: f32| codec.decode(&segments, &codec.encode(&segments, &[factor; 8])).unwrap()[0];
    let smallest = SCALE_MIN * 7.0;
    assert_eq!((largest(smallest), largest(smallest / 2.0)), (smallest, 0.0));
}

#[test]
fn block_sizes_fill_whole_words() {
    let block = |code, block| {
        let apply = ApplyPolicy::Overwrite;
        Codec::new(&ExchangeSpec { fragments: 1, sync_every: 1, block, code, apply }).err()
    };
    for good in [8, 256, 65_536] {
        assert_eq!(block(Code::Int4, good), None);
    }
    for (code, multiple, bad) in [
        (Code::Int4, 8, [0, 4, 12, 65_544]),
        (Code::F32, 8, [0, 4, 12, 65_544]),
        (Code::Int2, 16, [0, 8, 24, 65_552]),
        (Code::Int1, 32, [0, 16, 48, 65_568]),
    ] {
        assert_eq!(block(code, multiple), None);
        for bad in bad {
            assert_eq!(block(code, bad), Some(QuantError::Block { block: bad, multiple }));
        }
    }
}

/// Goal: bytes do not change unnoticed. If this fails, undo the change or raise the wire version.
#[test]
fn bytes_are_frozen() {
    let values = [7.0, -7.0, 3.4, -0.5, 0.0, 1.5, 2.5, -1.0, 6.0, 0.25, -0.125];
    let body = |code| codec(code, 8).encode(&segments(&[9, 2]), &values);
    // Scales 1, 6/7 and 0.25/7, each rounded up; 2 bytes of padding; 8 + 8 + 8 codes.
    let int4 = [0x80, 0x3f, 0x5c, 0x3f, 0x13, 0x3d, 0, 0, 0x97, 0x03, 0x20, 0xf2, 7, 0, 0, 0, 0xd7, 0, 0, 0];
    assert_eq!(body(Code::Int4), int4);
    let e3m0 = [0xe0, 0x40, 0xc0, 0x40, 0x80, 0x3e, 0, 0, 0xf7, 0xb6, 0x50, 0xc5, 7, 0, 0, 0, 0xe7, 0, 0, 0];
    assert_eq!(body(Code::E3m0), e3m0);
}

#[test]
fn int4_costs_four_and_a_sixteenth_bits() {
    for len in [4_096, 65_536, 1_000_448] {
        let bytes = codec(Code::Int4, 256).body_bytes(&segments(&[len]));
        assert!(bytes as f64 * 8.0 <= f64::from(len) * 4.0625, "{len}: {bytes} bytes");
    }
    // Padding is less than 4 bytes and one scale per segment, and 2 bytes per body.
    let lens = [4_099, 5, 777];
    let bytes = codec(Code::Int4, 256).body_bytes(&segments(&lens));
    let len: u32 = lens.iter().sum();
    assert!(bytes as f64 * 8.0 <= f64::from(len) * 4.0625 + 3.0 * (32.0 + 16.0) + 16.0, "{bytes} bytes");
}

#[test]
fn values_out_of_range_are_clipped() {
    for code in CODES {
        let codec = codec(code, 8);
        let segments = segments(&[6]);
        let body = codec.encode(&segments, &[f32::NAN, f32::INFINITY, f32::MIN, 1e30, 1e-40, -f32::NAN]);
        let values = codec.decode(&segments, &body).unwrap();
        let near = |value: f32, expected: f32| (value - expected).abs() <= expected.abs() * 0.01 + 1e-30;
        let expected = [0.0, VALUE_ABS_MAX, -VALUE_ABS_MAX, VALUE_ABS_MAX, 0.0, 0.0];
        assert!(values.iter().zip(expected).all(|(v, e)| near(*v, e)), "{code:?}: {values:?}");
    }
}

#[test]
fn bodies_that_encode_never_writes_are_refused() {
    let segments = segments(&[3]);
    let check = |code, at: usize, bytes: &[u8], expected| {
        let codec = codec(code, 8);
        let mut body = codec.encode(&segments, &[1.0, 2.0, -3.0]);
        body[at..at + bytes.len()].copy_from_slice(bytes);
        assert_eq!(codec.norm(&segments, &body), Err(expected), "{code:?} {at} {bytes:?}");
        assert_eq!(codec.decode(&segments, &body), Err(expected), "{code:?} {at} {bytes:?}");
    };
    let block = 0;
    for code in [Code::Int4, Code::E3m0] {
        check(code, 0, &[0xC0, 0x7F], QuantError::NotFinite { block }); // NaN
        check(code, 0, &[0x80, 0x7F], QuantError::NotFinite { block }); // ∞
        check(code, 0, &[0x80, 0xBF], QuantError::Range { block, value: -1.0 });
        check(code, 0, &[0x00, 0x80], QuantError::Range { block, value: -0.0 });
        check(code, 0, &[0x01, 0x00], QuantError::Range { block, value: f32::from_bits(1 << 16) });
        check(code, 0, &[0x00, 0x5E], QuantError::Range { block, value: VALUE_ABS_MAX * 2.0 });
        check(code, 0, &[0x00, 0x00], QuantError::Code { block }); // scale 0 with codes
        check(code, 4, &[0x08], QuantError::Code { block });
        check(code, 4, &[0x80], QuantError::Code { block });
        check(code, 5, &[0x10], QuantError::Padding);
        check(code, 7, &[0x10], QuantError::Padding);
        check(code, 2, &[1], QuantError::Padding);
        check(code, 3, &[1], QuantError::Padding);
    }
    let block = 1;
    check(Code::F32, 4, &f32::NAN.to_le_bytes(), QuantError::NotFinite { block });
    check(Code::F32, 4, &f32::NEG_INFINITY.to_le_bytes(), QuantError::NotFinite { block });
    check(Code::F32, 4, &1e20_f32.to_le_bytes(), QuantError::Range { block, value: 1e20 });
}

#[test]
fn checksum_is_the_start_of_sha_256() {
    assert_eq!(checksum(b"abc"), 0xba78_16bf_8f01_cfea);
}

/// Returns an upper bound on the coding error of `x`, both in scales: 0.5 for Int4, and the distance to the nearest
/// level for E3M0.
fn worst(code: Code, x: f32) -> f64 {
    let x = f64::from(x.abs());
    match code {
        Code::Int4 => 0.5,
        Code::E3m0 => (0..7).map(|k| 0.5_f64.powi(k)).fold(x, |best, number| best.min((x - number).abs())),
        Code::F32 => 0.0,
        Code::Int2 | Code::Int1 => panic!("{code:?} has tests of its own"),
    }
}

proptest! {
    #[test]
    fn coding_error_is_at_most_half_a_step(
        (lens, values) in prop::collection::vec(1_u32..70, 1..5)
            .prop_flat_map(|lens| { let n = lens.iter().sum::<u32>() as usize; (Just(lens), values(n)) }),
        block in 1_u32..5,
    ) {
        let segments = segments(&lens);
        for code in CODES {
            let codec = codec(code, block * 8);
            let body = codec.encode(&segments, &values);
            let decoded = codec.decode(&segments, &body).unwrap();
            for block in codec.spans(&segments).flat_map(|span| codec.blocks(span)) {
                let scale = if code == Code::F32 { 1.0 } else { scale(&block, &body) };
                for i in block.values.clone() {
                    let error = (f64::from(values[i]) - f64::from(decoded[i])).abs();
                    let bound = if scale > 0.0 {
                        (worst(code, values[i] / scale) + 1e-6) * f64::from(scale)
                    } else {
                        f64::from(SCALE_MIN) * 7.0
                    };
                    prop_assert!(error <= bound, "{code:?}: {} → {}, scale {scale}", values[i], decoded[i]);
                }
            }
        }
    }

    #[test]
    fn coding_decoded_values_gives_the_same_body(
        (lens, values) in prop::collection::vec(1_u32..70, 1..5)
            .prop_flat_map(|lens| { let n = lens.iter().sum::<u32>() as usize; (Just(lens), values(n)) }),
        block in 1_u32..5,
    ) {
        let segments = segments(&lens);
        for code in CODES {
            let codec = codec(code, block * 8);
            let body = codec.encode(&segments, &values);
            let decoded = codec.decode(&segments, &body).unwrap();
            prop_assert_eq!(codec.encode(&segments, &decoded), body, "{:?}", code);
        }
    }

    #[test]
    fn norm_equals_that_of_decoded_values(values in values(300), block in 1_u32..4) {
        let segments = segments(&[33, 267]);
        for code in CODES.into_iter().chain(low::LOW) {
            let codec = codec(code, block * 32);
            let body = codec.encode(&segments, &values);
            let decoded = codec.decode(&segments, &body).unwrap();
            let expected = decoded.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            let norm = codec.norm(&segments, &body).unwrap();
            prop_assert!((norm - expected).abs() <= expected * 1e-12, "{:?}: {} {}", code, norm, expected);
        }
    }

    #[test]
    fn wrong_lengths_are_refused(len in 1_u32..100, wrong in 0_usize..500) {
        let segments = segments(&[len, 5]);
        for code in CODES {
            let codec = codec(code, 16);
            let mut body = codec.encode(&segments, &vec![1.0; len as usize + 5]);
            let expected = body.len();
            if wrong != expected {
                body.resize(wrong, 0);
                let refused = Err(QuantError::Length { expected, actual: wrong });
                prop_assert_eq!(codec.norm(&segments, &body), refused);
            }
        }
    }

    #[test]
    fn any_bytes_are_refused_or_stand_for_finite_values(
        mut body in prop::collection::vec(any::<u8>(), 36),
        plausible in any::<bool>(),
    ) {
        let segments = segments(&[11, 13]);
        if plausible {
            for (high, low) in [(1, 0), (3, 2), (5, 4), (7, 6)] {
                body[high] = 0x10 + body[high] % 0x4D;
                body[low] &= 0xF0;
            }
        }
        for code in [Code::Int4, Code::E3m0] {
            let codec = codec(code, 8);
            let body = &body[..codec.body_bytes(&segments)];
            if let Ok(values) = codec.decode(&segments, body) {
                prop_assert!(values.iter().all(|value| value.is_finite()));
                prop_assert!(codec.norm(&segments, body).unwrap().is_finite());
            }
        }
    }
}

mod low {
    use super::*;

    pub(super) const LOW: [Code; 2] = [Code::Int2, Code::Int1];

    /// Goal: bytes do not change unnoticed. If this fails, undo the change or raise the wire version.
    #[test]
    fn bytes_are_frozen() {
        let mut values = vec![0.0; 36];
        values[..8].copy_from_slice(&[8.0, -8.0, 0.5, -0.25, 3.0, -3.0, f32::NAN, 0.0]);
        values[34..].copy_from_slice(&[-1.0, 2.0]);
        let body = |code| codec(code, 32).encode(&segments(&[34, 2]), &values);
        // The scales are mean magnitudes, 22.75/32, 0 and 1.5, times 0.624 for Int2, rounded up to bfloat16. The first
        // segment has a whole block and a block of 2 zeros.
        let scales = |factor: f32| {
            [22.75 / 32.0, 0.0, 1.5].map(|mean: f32| (((mean * factor).to_bits() + 0xFFFF) >> 16) as u16)
        };
        let head = |factor| scales(factor).into_iter().flat_map(u16::to_le_bytes).chain([0, 0]);
        let int2: Vec<u8> = head(0.624)
            .chain([0b10_00_11_01, 0b00_00_11_01, 0, 0, 0, 0, 0, 0])
            .chain([0; 4])
            .chain([0b01_10, 0, 0, 0])
            .collect();
        assert_eq!(body(Code::Int2), int2);
        let int1: Vec<u8> =
            head(1.0).chain([0b0010_1010, 0, 0, 0]).chain([0; 4]).chain([0b01, 0, 0, 0]).collect();
        assert_eq!(body(Code::Int1), int1);
    }

    #[test]
    fn low_bit_codes_cost_their_bits_and_scales() {
        for (code, bits) in [(Code::Int2, 2.0625), (Code::Int1, 1.0625)] {
            for len in [4_096, 65_536, 1_000_448] {
                let bytes = codec(code, 256).body_bytes(&segments(&[len]));
                assert!(bytes as f64 * 8.0 <= f64::from(len) * bits + 16.0, "{code:?} {len}: {bytes} bytes");
            }
        }
    }

    #[test]
    fn nan_and_large_values_are_coded_within_range() {
        for code in LOW {
            let (codec, segments) = (codec(code, 32), segments(&[4]));
            let body = codec.encode(&segments, &[f32::NAN, f32::INFINITY, f32::MIN, 1e30]);
            let values = codec.decode(&segments, &body).unwrap();
            let expected = match code {
                Code::Int1 => VALUE_ABS_MAX * 0.75,
                _ => VALUE_ABS_MAX * 0.75 * 0.624 * 3.0,
            };
            for (value, sign) in values[1..].iter().zip([1.0, -1.0, 1.0]) {
                assert!((value / expected - sign).abs() < 0.01, "{code:?}: {values:?}");
            }
            assert!(values[0] > 0.0 && values[0] <= expected, "{code:?}: {values:?}");
            assert_eq!(codec.encode(&segments, &[1e-40, f32::NAN, -1e-40, 0.0]), vec![0; 8]);
        }
    }

    #[test]
    fn bodies_that_encode_never_writes_are_refused() {
        let segments = segments(&[3]);
        for (code, padding) in [(Code::Int2, 0x40), (Code::Int1, 0x08)] {
            let check = |at: usize, bytes: &[u8], expected| {
                let codec = codec(code, 32);
                let mut body = codec.encode(&segments, &[1.0, 2.0, -3.0]);
                body[at..at + bytes.len()].copy_from_slice(bytes);
                assert_eq!(codec.norm(&segments, &body), Err(expected), "{code:?} {at} {bytes:?}");
                assert_eq!(codec.decode(&segments, &body), Err(expected), "{code:?} {at} {bytes:?}");
            };
            let block = 0;
            check(0, &[0xC0, 0x7F], QuantError::NotFinite { block });
            check(0, &[0x80, 0xBF], QuantError::Range { block, value: -1.0 });
            check(0, &[0x01, 0x00], QuantError::Range { block, value: f32::from_bits(1 << 16) });
            check(0, &[0x00, 0x00], QuantError::Code { block });
            check(4, &[padding], QuantError::Padding);
            check(7, &[0x80], QuantError::Padding);
            check(2, &[1], QuantError::Padding);
        }
    }

    /// Goal: the mean square error for normally distributed values is that of the best code of the same bits: 0.1188 of
    /// their variance with four equidistant levels, and 1 − 2/π with two levels (Max, 1960).
    #[test]
    fn low_bit_codes_have_the_least_square_error() {
        let mut rng = crate::rng::Rng::new(1);
        let bell = |rng: &mut crate::rng::Rng| (0..12).map(|_| rng.unit() as f32).sum::<f32>() - 6.0;
        let values: Vec<f32> = (0..65_536).map(|_| bell(&mut rng)).collect();
        for (code, expected) in [(Code::Int2, 0.1188), (Code::Int1, 0.3634)] {
            let (codec, segments) = (codec(code, 256), segments(&[65_536]));
            let decoded = codec.decode(&segments, &codec.encode(&segments, &values)).unwrap();
            let square = |a: &f32, b: &f32| f64::from(a - b).powi(2);
            let error: f64 = values.iter().zip(&decoded).map(|(a, b)| square(a, b)).sum();
            let variance: f64 = values.iter().map(|a| square(a, &0.0)).sum();
            assert!((error / variance / expected - 1.0).abs() < 0.05, "{code:?}: {}", error / variance);
        }
    }

    proptest! {
        #[test]
        fn coding_decoded_signs_gives_the_same_body(
            (lens, values) in prop::collection::vec(1_u32..150, 1..5)
                .prop_flat_map(|lens| { let n = lens.iter().sum::<u32>() as usize; (Just(lens), values(n)) }),
            block in 1_u32..4,
        ) {
            let (codec, segments) = (codec(Code::Int1, block * 32), segments(&lens));
            let body = codec.encode(&segments, &values);
            let decoded = codec.decode(&segments, &body).unwrap();
            prop_assert_eq!(codec.encode(&segments, &decoded), body);
        }

        /// Goal: each value is coded as the nearest level of its block.
        #[test]
        fn values_are_coded_as_the_nearest_level(values in values(300), block in 1_u32..4) {
            let segments = segments(&[133, 167]);
            for (code, numbers) in [(Code::Int2, &[-3.0, -1.0, 1.0, 3.0][..]), (Code::Int1, &[-1.0, 1.0])] {
                let codec = codec(code, block * 32);
                let body = codec.encode(&segments, &values);
                let decoded = codec.decode(&segments, &body).unwrap();
                for block in codec.spans(&segments).flat_map(|span| codec.blocks(span)) {
                    let scale = scale(&block, &body);
                    for i in block.values.clone().filter(|_| scale > 0.0) {
                        let x = f64::from(values[i]) / f64::from(scale);
                        let best = numbers.iter().map(|number| (x - number).abs()).fold(f64::MAX, f64::min);
                        let error = (x - f64::from(decoded[i]) / f64::from(scale)).abs();
                        prop_assert!(error <= best * (1.0 + 1e-6) + 1e-6, "{code:?}: {x} scales, {error}, {best}");
                    }
                }
            }
        }

        #[test]
        fn any_bytes_are_refused_or_stand_for_finite_values(
            mut body in prop::collection::vec(any::<u8>(), 36),
            plausible in any::<bool>(),
        ) {
            let segments = segments(&[40, 56]);
            if plausible {
                for (high, low) in [(1, 0), (3, 2), (5, 4), (7, 6)] {
                    body[high] = 0x10 + body[high] % 0x4D;
                    body[low] &= 0xF0;
                }
            }
            for code in LOW {
                let codec = codec(code, 32);
                let body = &body[..codec.body_bytes(&segments)];
                if let Ok(values) = codec.decode(&segments, body) {
                    prop_assert!(values.iter().all(|value| value.is_finite()));
                    prop_assert!(codec.norm(&segments, body).unwrap().is_finite());
                }
            }
        }
    }
}
