//! Tests of codes with one and two bits.

use super::*;

pub(super) const LOW: [Code; 2] = [Code::Int2, Code::Int1];

/// If this fails, either undo the change or raise the version of the wire.
#[test]
fn bytes_are_frozen() {
    let mut values = vec![0.0; 36];
    values[..8].copy_from_slice(&[8.0, -8.0, 0.5, -0.25, 3.0, -3.0, f32::NAN, 0.0]);
    values[34..].copy_from_slice(&[-1.0, 2.0]);
    let body = |code| codec(code, 32).encode(&segments(&[34, 2]), &values);
    // Mean sizes 22.75/32, 0.5 and 1.5, times 0.624 for int2, all rounded up to 8 bits. The first segment
    // has a whole block and one of 2 values, of which one is 0 and is coded as the smaller number.
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
fn costs_its_bits_and_a_share_of_a_scale() {
    for (code, bits) in [(Code::Int2, 2.0625), (Code::Int1, 1.0625)] {
        for len in [4_096, 65_536, 1_000_448] {
            let bytes = codec(code, 256).body_bytes(&segments(&[len]));
            assert!(bytes as f64 * 8.0 <= f64::from(len) * bits + 16.0, "{code:?} {len}: {bytes} bytes");
        }
    }
}

#[test]
fn keeps_what_is_no_number_and_what_is_too_large_within_range() {
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
fn refuses_what_encode_never_writes() {
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

/// Mean square error of the best code for normally distributed values: 0.1188 of their variance with four levels at
/// equal distances, and 1 − 2/π with two (Max, 1960).
#[test]
fn errs_as_little_as_a_code_of_its_bits_can() {
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
    fn signs_are_coded_again_as_they_are(
        (lens, values) in prop::collection::vec(1_u32..150, 1..5)
            .prop_flat_map(|lens| { let n = lens.iter().sum::<u32>() as usize; (Just(lens), values(n)) }),
        block in 1_u32..4,
    ) {
        let (codec, segments) = (codec(Code::Int1, block * 32), segments(&lens));
        let body = codec.encode(&segments, &values);
        let decoded = codec.decode(&segments, &body).unwrap();
        prop_assert_eq!(codec.encode(&segments, &decoded), body);
    }

    /// Each value is coded as the nearest number of its block's scale.
    #[test]
    fn takes_the_nearest_number(values in values(300), block in 1_u32..4) {
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
