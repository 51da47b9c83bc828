//! Frozen weights, stored in two bytes or one byte for each.
//!
//! Bytes are stored tensor after tensor in the order of the layout. In [`FrozenForm::F16`] each value is a binary16. In
//! [`FrozenForm::Int8`] a matrix has first its codes row by row, a signed byte each, and then its scales, a binary16
//! for each [`FROZEN_BLOCK`] codes of a row; the last block of a row may be shorter. A value is its code times its
//! scale. Vectors are binary16 in both forms.

use std::ops::Range;

use super::{ModelError, ModelSpec, layout};
use crate::diloco::{Layout, Tensor, binary16};
use crate::wire::FrozenForm;

/// Number of codes in a row that share a scale.
pub const FROZEN_BLOCK: usize = 32;

/// Maximum absolute value of a code.
const CODE_MAX: f32 = 127.0;
/// Bits of the smallest binary16 that is not finite.
const INFINITY: u16 = 0x7c00;

/// Frozen weights in a compact form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenWeights {
    layout: Layout,
    form: FrozenForm,
    places: Vec<Place>,
    bytes: Vec<u8>,
}

/// Position of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    /// Range of its values in the flat vector.
    flat: Range<usize>,
    /// Values of a row.
    cols: usize,
    /// Offset of its first value in bytes.
    at: usize,
    /// Offset of its first scale in bytes; `None` if the values are binary16.
    scales: Option<usize>,
}

impl Place {
    /// Returns the number of scales of a row.
    fn blocks(&self) -> usize {
        self.cols.div_ceil(FROZEN_BLOCK)
    }
}

/// Reason why frozen weights are invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FrozenError {
    /// The model is invalid.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The number of bytes does not match the model and form.
    #[error("{found} bytes of frozen weights given, the model has {expected}: fetch them again")]
    Length {
        /// Bytes given.
        found: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// A value or a scale is infinite or NaN.
    #[error("the frozen weights of {tensor} are not finite: they are damaged, or of another model")]
    NotFinite {
        /// Name of the tensor.
        tensor: String,
    },
}

/// Lays out the weights of `spec` in `form`, and returns the positions and the total bytes.
fn places(layout: &Layout, form: FrozenForm) -> (Vec<Place>, usize) {
    let mut next = 0;
    let mut place = |(start, tensor): (u32, &Tensor)| {
        let (start, len, cols) = (start as usize, tensor.len() as usize, tensor.cols as usize);
        let (at, flat) = (next, start..start + len);
        let scales = (form == FrozenForm::Int8 && tensor.rows > 1).then_some(at + len);
        let place = Place { flat, cols, at, scales };
        next += match scales {
            Some(_) => len + binary16::BYTES * tensor.rows as usize * place.blocks(),
            None => binary16::BYTES * len,
        };
        place
    };
    (layout.offsets().map(&mut place).collect(), next)
}

impl FrozenWeights {
    /// Rounds `params`, `[len]` in the layout of [`ModelSpec::base`]. Values round to the nearest binary16, limited to
    /// [`binary16::ABS_MAX`], or to the nearest code, where the largest absolute value of a block has the code 127.
    ///
    /// # Errors
    /// - [`FrozenError::Model`]: `spec` is invalid, or the length of `params` does not match its weights.
    /// - [`FrozenError::NotFinite`]: a value is infinite or NaN.
    pub fn quantised(spec: &ModelSpec, params: &[f32], form: FrozenForm) -> Result<Self, FrozenError> {
        let layout = layout(&spec.base())?;
        if params.len() != layout.len() {
            return Err(ModelError::Params { found: params.len(), expected: layout.len() }.into());
        }
        let (places, len) = places(&layout, form);
        let mut bytes = Vec::with_capacity(len);
        for (place, tensor) in places.iter().zip(layout.tensors()) {
            let values = &params[place.flat.clone()];
            if !values.iter().all(|value| value.is_finite()) {
                return Err(FrozenError::NotFinite { tensor: tensor.name.clone() });
            }
            if place.scales.is_none() {
                bytes.extend(binary16::to_bytes(values));
                continue;
            }
            let mut scales = Vec::with_capacity(tensor.rows as usize * place.blocks());
            for block in values.chunks(place.cols).flat_map(|row| row.chunks(FROZEN_BLOCK)) {
                let largest = block.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
                let scale = binary16::nearest(largest / CODE_MAX);
                // In a block of zeros, or of values below any scale, all codes are 0.
                let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
                let code = |value: &f32| (value * inverse).round_ties_even().clamp(-CODE_MAX, CODE_MAX) as i8;
                bytes.extend(block.iter().map(|value| code(value).to_le_bytes()[0]));
                scales.push(scale);
            }
            bytes.extend(binary16::to_bytes(&scales));
        }
        Ok(Self { layout, form, places, bytes })
    }

    /// Returns the weights of `spec`, with or without adapters, from the bytes of [`Self::bytes`].
    ///
    /// # Errors
    /// - [`FrozenError::Model`]: `spec` is invalid.
    /// - [`FrozenError::Length`]: the number of bytes is wrong.
    /// - [`FrozenError::NotFinite`]: a value or a scale is infinite or NaN.
    pub fn from_bytes(spec: &ModelSpec, form: FrozenForm, bytes: Vec<u8>) -> Result<Self, FrozenError> {
        let layout = layout(&spec.base())?;
        let (places, len) = places(&layout, form);
        if bytes.len() != len {
            return Err(FrozenError::Length { found: bytes.len() as u64, expected: len as u64 });
        }
        let ends = places.iter().skip(1).map(|place| place.at).chain([len]);
        for ((place, end), tensor) in places.iter().zip(ends).zip(layout.tensors()) {
            let (halves, _) = bytes[place.scales.unwrap_or(place.at)..end].as_chunks();
            if halves.iter().any(|half| u16::from_le_bytes(*half) & 0x7fff >= INFINITY) {
                return Err(FrozenError::NotFinite { tensor: tensor.name.clone() });
            }
        }
        Ok(Self { layout, form, places, bytes })
    }

    /// Returns the bytes of the weights of `spec` in `form`.
    ///
    /// # Errors
    /// Those of [`layout`].
    pub fn bytes_len(spec: &ModelSpec, form: FrozenForm) -> Result<u64, ModelError> {
        Ok(places(&layout(&spec.base())?, form).1 as u64)
    }

    /// Returns all bytes, as [`Self::from_bytes`] takes them.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the form of the weights.
    #[must_use]
    pub fn form(&self) -> FrozenForm {
        self.form
    }

    /// Returns the tensors, as [`layout`] of [`ModelSpec::base`] names them.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns true if names and shapes match the weights of `spec`.
    #[must_use]
    pub fn fits(&self, spec: &ModelSpec) -> bool {
        layout(&spec.base()).is_ok_and(|layout| layout == self.layout)
    }

    /// Widens the values in `range` of the flat vector into `out`, which must have the same length.
    ///
    /// # Panics
    /// If `range` is longer than `out` or goes beyond the flat vector.
    pub fn read(&self, range: Range<usize>, out: &mut [f32]) {
        let out = &mut out[..range.len()];
        assert!(range.end <= self.layout.len(), "{range:?} of {} values", self.layout.len());
        for place in self.places_of(range.start, range.end) {
            let part = range.start.max(place.flat.start)..range.end.min(place.flat.end);
            let out = &mut out[part.start - range.start..part.end - range.start];
            self.widen(place, part.start - place.flat.start, out);
        }
    }

    /// Returns the bytes of whole rows in `range`, one slice for each tensor: codes, or binary16 values in
    /// [`FrozenForm::F16`].
    pub fn codes(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        self.places_of(range.start, range.end).map(move |place| {
            let part = range.start.max(place.flat.start)..range.end.min(place.flat.end);
            let each = if place.scales.is_some() { 1 } else { binary16::BYTES };
            &self.bytes[place.at + each * (part.start - place.flat.start)..][..each * part.len()]
        })
    }

    /// Returns the scales of whole rows in `range`, one for each [`FROZEN_BLOCK`] codes of a row; empty in
    /// [`FrozenForm::F16`].
    #[must_use]
    pub fn scales(&self, range: &Range<usize>) -> Vec<f32> {
        let mut found = Vec::new();
        for place in self.places_of(range.start, range.end) {
            let Some(scales) = place.scales else { continue };
            let part = range.start.max(place.flat.start)..range.end.min(place.flat.end);
            let first = (part.start - place.flat.start) / place.cols * place.blocks();
            let count = part.len() / place.cols * place.blocks();
            let bytes = &self.bytes[scales + binary16::BYTES * first..][..binary16::BYTES * count];
            found.extend(binary16::from_bytes(bytes));
        }
        found
    }

    /// Returns the tensors that have values in `start..end`.
    fn places_of(&self, start: usize, end: usize) -> impl Iterator<Item = &Place> {
        let first = self.places.partition_point(|place| place.flat.end <= start);
        self.places[first..].iter().take_while(move |place| place.flat.start < end)
    }

    /// Widens the values of a tensor from `first` on.
    fn widen(&self, place: &Place, mut first: usize, mut out: &mut [f32]) {
        let Some(scales) = place.scales else {
            let start = place.at + binary16::BYTES * first;
            return binary16::widen(&self.bytes[start..start + binary16::BYTES * out.len()], out);
        };
        while !out.is_empty() {
            let (row, col) = (first / place.cols, first % place.cols);
            let (part, rest) = out.split_at_mut(out.len().min(place.cols - col));
            let codes = &self.bytes[place.at + first..][..part.len()];
            let block = row * place.blocks() + col / FROZEN_BLOCK;
            let count = (col % FROZEN_BLOCK + part.len()).div_ceil(FROZEN_BLOCK);
            let scales = &self.bytes[scales + binary16::BYTES * block..][..binary16::BYTES * count];
            multiply(codes, scales, FROZEN_BLOCK - col % FROZEN_BLOCK, part);
            first += part.len();
            out = rest;
        }
    }
}

/// Computes `out[i] = codes[i] · scale`. The first `head` codes share the first scale, each further block the next.
#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
fn multiply(codes: &[u8], scales: &[u8], head: usize, out: &mut [f32]) {
    let (halves, _) = scales.as_chunks();
    let head = head.min(out.len());
    let (first, rest) = out.split_at_mut(head);
    let blocks = std::iter::once((&codes[..head], first))
        .chain(codes[head..].chunks(FROZEN_BLOCK).zip(rest.chunks_mut(FROZEN_BLOCK)));
    for ((codes, out), half) in blocks.zip(halves) {
        let scale = binary16::decode(u16::from_le_bytes(*half));
        for (out, code) in out.iter_mut().zip(codes) {
            *out = f32::from(i8::from_le_bytes([*code])) * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{LoraSpec, LoraTargets, Preset, init};

    /// Returns a model with rows of 40 and 44 values, which are not multiples of the block of 32.
    fn spec() -> ModelSpec {
        let lora = Some(LoraSpec { rank: 2, alpha: 4.0, targets: LoraTargets::ALL });
        ModelSpec { d_model: 40, heads: 4, kv_heads: 2, d_ff: 44, lora, ..Preset::Tiny.model(37) }
    }

    fn params() -> Vec<f32> {
        init(&spec().base(), 5).unwrap()
    }

    fn all(frozen: &FrozenWeights) -> Vec<f32> {
        let mut values = vec![f32::NAN; frozen.layout().len()];
        frozen.read(0..values.len(), &mut values);
        values
    }

    #[test]
    fn halves_are_those_of_the_wire() {
        let frozen = FrozenWeights::quantised(&spec(), &params(), FrozenForm::F16).unwrap();
        assert_eq!(frozen.bytes(), binary16::to_bytes(&params()));
        assert_eq!(all(&frozen), binary16::from_bytes(frozen.bytes()));
    }

    /// Each value is within half a code of the original, and the largest of its block within the scale's rounding.
    #[test]
    fn eight_bits_keep_each_block_by_its_largest() {
        let (params, frozen) = (params(), quantised());
        let found = all(&frozen);
        for (start, tensor) in frozen.layout().offsets() {
            let range = start as usize..(start + tensor.len()) as usize;
            let rows = params[range.clone()].chunks(tensor.cols as usize);
            for (row, found) in rows.zip(found[range].chunks(tensor.cols as usize)) {
                if tensor.rows == 1 {
                    assert_eq!(row, found, "{}", tensor.name);
                    continue;
                }
                for (block, found) in row.chunks(FROZEN_BLOCK).zip(found.chunks(FROZEN_BLOCK)) {
                    let largest = block.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
                    for (value, found) in block.iter().zip(found) {
                        assert!((value - found).abs() <= largest / 127.0 * 0.56, "{value} {found} {largest}");
                    }
                }
            }
        }
        // A byte for each code, and two bytes for each block.
        let rows = 37 + 2 * (40 + 20 + 20 + 40 + 44 + 44);
        let codes = rows * (40 + 2 * 2) + 2 * 40 * (44 + 2 * 2);
        assert_eq!(frozen.bytes().len(), codes + 5 * 40 * 2);
    }

    fn quantised() -> FrozenWeights {
        FrozenWeights::quantised(&spec(), &params(), FrozenForm::Int8).unwrap()
    }

    #[test]
    fn any_part_reads_as_the_whole_does() {
        for form in FrozenForm::ALL {
            let frozen = FrozenWeights::quantised(&spec(), &params(), form).unwrap();
            let whole = all(&frozen);
            for len in [0, 1, 7, 32, 33, 100, 3_000] {
                for start in (0..whole.len() - len).step_by(61) {
                    let mut part = vec![f32::NAN; len];
                    frozen.read(start..start + len, &mut part);
                    assert_eq!(part, whole[start..start + len], "{form} {start} {len}");
                }
            }
        }
    }

    #[test]
    fn bytes_come_back_or_are_refused() {
        for form in FrozenForm::ALL {
            let frozen = FrozenWeights::quantised(&spec(), &params(), form).unwrap();
            let bytes = frozen.bytes().to_vec();
            assert_eq!(FrozenWeights::bytes_len(&spec(), form), Ok(bytes.len() as u64));
            let read = |bytes: Vec<u8>| FrozenWeights::from_bytes(&spec(), form, bytes);
            assert_eq!(read(bytes.clone()).unwrap(), frozen);
            assert!(frozen.fits(&spec()) && frozen.fits(&spec().base()));
            assert!(!frozen.fits(&ModelSpec { d_ff: 48, ..spec() }));
            let error = read(bytes[1..].to_vec()).unwrap_err().to_string();
            assert!(error.contains("fetch them again"), "{error}");
            // The last half belongs to the last norm.
            let mut damaged = bytes;
            *damaged.last_mut().unwrap() = 0x7e;
            let error = read(damaged).unwrap_err().to_string();
            assert!(error.contains("model.norm.weight are not finite"), "{error}");
        }
        let mut codes = quantised().bytes().to_vec();
        codes[37 * 40 + 1] = 0xfc;
        let damaged = FrozenWeights::from_bytes(&spec(), FrozenForm::Int8, codes);
        let expected = FrozenError::NotFinite { tensor: "model.embed_tokens.weight".into() };
        assert_eq!(damaged, Err(expected));
    }

    #[test]
    fn what_is_no_number_is_not_rounded() {
        let mut params = params();
        params[3] = f32::NAN;
        let error = FrozenWeights::quantised(&spec(), &params, FrozenForm::Int8).unwrap_err();
        assert_eq!(error, FrozenError::NotFinite { tensor: "model.embed_tokens.weight".into() });
        let short = FrozenWeights::quantised(&spec(), &params[1..], FrozenForm::F16);
        assert!(matches!(short, Err(FrozenError::Model(ModelError::Params { .. }))));
    }

    #[test]
    fn blocks_of_zeros_stay_zeros() {
        let mut params = params();
        params[..64].fill(0.0);
        params[64..80].fill(1e-12);
        let frozen = FrozenWeights::quantised(&spec(), &params, FrozenForm::Int8).unwrap();
        assert!(all(&frozen)[..72].iter().all(|&value| value == 0.0));
    }
}
