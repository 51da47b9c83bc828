//! Floats and hexadecimal digits as bytes, for files, sockets, downloads and devices.

use std::fmt::Write;

/// Returns `values` as bytes: four for each, little endian, as in snapshots, fragments and coded bodies.
#[must_use]
pub fn from_f32s(values: &[f32]) -> Vec<u8> {
    values.iter().map(|value| value.to_le_bytes()).collect::<Vec<_>>().into_flattened()
}

/// Decodes the output of [`from_f32s`]. Up to three bytes after the last whole value are ignored.
#[must_use]
pub fn to_f32s(bytes: &[u8]) -> Vec<f32> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

/// Decodes the output of [`from_f32s`] into `values`, until either ends.
pub fn copy_f32s(bytes: &[u8], values: &mut [f32]) {
    let (words, _) = bytes.as_chunks();
    for (value, word) in values.iter_mut().zip(words) {
        *value = f32::from_le_bytes(*word);
    }
}

/// Returns `bytes` as lower-case hexadecimal digits, two for each byte.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        write!(digits, "{byte:02x}").expect("a string takes all that is written");
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_come_back_to_the_bit() {
        let values = [1.0, -0.0, f32::MIN_POSITIVE / 2.0, f32::INFINITY];
        let bytes = from_f32s(&values);
        assert_eq!(bytes[..5], [0, 0, 0x80, 0x3f, 0]);
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&to_f32s(&bytes)), bits(&values));
        assert_eq!(to_f32s(&bytes[..7]), [1.0]);
        let mut begun = [7.0; 5];
        copy_f32s(&bytes, &mut begun);
        assert_eq!(bits(&begun), bits(&[1.0, -0.0, f32::MIN_POSITIVE / 2.0, f32::INFINITY, 7.0]));
    }

    #[test]
    fn digits_are_two_for_each_byte() {
        assert_eq!(hex(&[0, 9, 0xaf, 255]), "0009afff");
    }
}
