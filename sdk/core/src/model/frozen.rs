//! Weights that are not trained, held in two bytes or one for each.
//!
//! In bytes, tensor after tensor in the order of the layout: each value as a binary16; or, of a matrix in
//! [`FrozenForm::Int8`], its codes row by row, a signed byte each, and then the scales, a binary16 for each
//! [`FROZEN_BLOCK`] codes of a row, of which the last block may be shorter. A value is its code times its scale.

use std::ops::Range;

use super::{ModelError, ModelSpec, layout};
use crate::diloco::{Layout, Tensor, halves};
use crate::wire::FrozenForm;

/// Codes of a row that share a scale.
pub const FROZEN_BLOCK: usize = 32;

/// The largest size of a code.
const CODE_MAX: f32 = 127.0;
/// The bits of the smallest binary16 that is no number of finite size.
const INFINITY: u16 = 0x7c00;

/// Weights that a run does not train, in a compact form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenWeights {
    layout: Layout,
    form: FrozenForm,
    places: Vec<Place>,
    bytes: Vec<u8>,
}

/// Where a tensor lies.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    /// Its values, within the flat vector.
    flat: Range<usize>,
    /// Values in a row.
    cols: usize,
    /// The byte of its first value.
    at: usize,
    /// The byte of its first scale; `None` where values are binary16.
    scales: Option<usize>,
}

impl Place {
    /// Scales of a row.
    fn blocks(&self) -> usize {
        self.cols.div_ceil(FROZEN_BLOCK)
    }
}

/// Why something is no set of frozen weights.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FrozenError {
    /// There is no such model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Another number of bytes than the model has in this form.
    #[error("{found} bytes of frozen weights given, the model has {expected}: fetch them anew")]
    Length {
        /// Bytes given.
        found: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// A value, or the scale of some, is infinite or no number.
    #[error("the frozen weights of {tensor} are not finite: they are damaged, or not of this model")]
    NotFinite {
        /// The name of the tensor.
        tensor: String,
    },
}

/// Lays out the weights of `spec` in `form`; their bytes.
fn places(layout: &Layout, form: FrozenForm) -> (Vec<Place>, usize) {
    let mut next = 0;
    let mut place = |(start, tensor): (u32, &Tensor)| {
        let (start, len, cols) = (start as usize, tensor.len() as usize, tensor.cols as usize);
        let (at, flat) = (next, start..start + len);
        let scales = (form == FrozenForm::Int8 && tensor.rows > 1).then_some(at + len);
        let place = Place { flat, cols, at, scales };
        next += match scales {
            Some(_) => len + halves::BYTES * tensor.rows as usize * place.blocks(),
            None => halves::BYTES * len,
        };
        place
    };
    (layout.offsets().map(&mut place).collect(), next)
}

impl FrozenWeights {
    /// Rounds `params`, `[len]` in the layout of [`ModelSpec::base`]: to the nearest binary16, of sizes up to
    /// [`halves::ABS_MAX`], or to the nearest code, where the largest size of a block has the code 127.
    ///
    /// # Errors
    /// - [`FrozenError::Model`]: `spec` is no model, or `params` is not as long as its weights.
    /// - [`FrozenError::NotFinite`]: a value is infinite or no number.
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
                bytes.extend(halves::to_bytes(values));
                continue;
            }
            let mut scales = Vec::with_capacity(tensor.rows as usize * place.blocks());
            for block in values.chunks(place.cols).flat_map(|row| row.chunks(FROZEN_BLOCK)) {
                let largest = block.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
                let scale = halves::nearest(largest / CODE_MAX);
                // Of a block of zeros, or of values below any scale, each code is 0.
                let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
                let code = |value: &f32| (value * inverse).round_ties_even().clamp(-CODE_MAX, CODE_MAX) as i8;
                bytes.extend(block.iter().map(|value| code(value).to_le_bytes()[0]));
                scales.push(scale);
            }
            bytes.extend(halves::to_bytes(&scales));
        }
        Ok(Self { layout, form, places, bytes })
    }

    /// The weights of `spec`, with or without adapters, that [`Self::bytes`] gave.
    ///
    /// # Errors
    /// - [`FrozenError::Model`]: `spec` is no model.
    /// - [`FrozenError::Length`]: it has another number of bytes.
    /// - [`FrozenError::NotFinite`]: a value or a scale is infinite or no number.
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

    /// Bytes of the weights of `spec` in `form`.
    ///
    /// # Errors
    /// Those of [`layout`].
    pub fn bytes_len(spec: &ModelSpec, form: FrozenForm) -> Result<u64, ModelError> {
        Ok(places(&layout(&spec.base())?, form).1 as u64)
    }

    /// All of them, as [`Self::from_bytes`] takes them.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The form they are in.
    #[must_use]
    pub fn form(&self) -> FrozenForm {
        self.form
    }

    /// The tensors, as [`layout`] of [`ModelSpec::base`] names them.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether they are weights of the model of `spec`, as far as names and shapes tell.
    #[must_use]
    pub fn fits(&self, spec: &ModelSpec) -> bool {
        layout(&spec.base()).is_ok_and(|layout| layout == self.layout)
    }

    /// Widens the values of `range` within the flat vector into `out`, as long as `range` is.
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

    /// The bytes of whole rows at `range`, one piece for each tensor: codes, or binary16s in [`FrozenForm::F16`].
    pub fn codes(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        self.places_of(range.start, range.end).map(move |place| {
            let part = range.start.max(place.flat.start)..range.end.min(place.flat.end);
            let each = if place.scales.is_some() { 1 } else { halves::BYTES };
            &self.bytes[place.at + each * (part.start - place.flat.start)..][..each * part.len()]
        })
    }

    /// The scales of whole rows at `range`, one for each [`FROZEN_BLOCK`] codes of a row; none in [`FrozenForm::F16`].
    #[must_use]
    pub fn scales(&self, range: &Range<usize>) -> Vec<f32> {
        let mut found = Vec::new();
        for place in self.places_of(range.start, range.end) {
            let Some(scales) = place.scales else { continue };
            let part = range.start.max(place.flat.start)..range.end.min(place.flat.end);
            let first = (part.start - place.flat.start) / place.cols * place.blocks();
            let count = part.len() / place.cols * place.blocks();
            let bytes = &self.bytes[scales + halves::BYTES * first..][..halves::BYTES * count];
            found.extend(halves::from_bytes(bytes));
        }
        found
    }

    /// The tensors that have values in `start..end`.
    fn places_of(&self, start: usize, end: usize) -> impl Iterator<Item = &Place> {
        let first = self.places.partition_point(|place| place.flat.end <= start);
        self.places[first..].iter().take_while(move |place| place.flat.start < end)
    }

    /// Widens the values of a tensor from `first` on.
    fn widen(&self, place: &Place, mut first: usize, mut out: &mut [f32]) {
        let Some(scales) = place.scales else {
            let start = place.at + halves::BYTES * first;
            return halves::widen(&self.bytes[start..start + halves::BYTES * out.len()], out);
        };
        while !out.is_empty() {
            let (row, col) = (first / place.cols, first % place.cols);
            let (part, rest) = out.split_at_mut(out.len().min(place.cols - col));
            let codes = &self.bytes[place.at + first..][..part.len()];
            let block = row * place.blocks() + col / FROZEN_BLOCK;
            let count = (col % FROZEN_BLOCK + part.len()).div_ceil(FROZEN_BLOCK);
            let scales = &self.bytes[scales + halves::BYTES * block..][..halves::BYTES * count];
            multiply(codes, scales, FROZEN_BLOCK - col % FROZEN_BLOCK, part);
            first += part.len();
            out = rest;
        }
    }
}

/// `out[i] = codes[i] · scale`: the first `head` codes have the first scale, each further block the next.
#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
fn multiply(codes: &[u8], scales: &[u8], head: usize, out: &mut [f32]) {
    let (halves, _) = scales.as_chunks();
    let head = head.min(out.len());
    let (first, rest) = out.split_at_mut(head);
    let blocks = std::iter::once((&codes[..head], first))
        .chain(codes[head..].chunks(FROZEN_BLOCK).zip(rest.chunks_mut(FROZEN_BLOCK)));
    for ((codes, out), half) in blocks.zip(halves) {
        let scale = halves::decode(u16::from_le_bytes(*half));
        for (out, code) in out.iter_mut().zip(codes) {
            *out = f32::from(i8::from_le_bytes([*code])) * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{LoraSpec, LoraTargets, Preset, init};

    /// Rows of 40 and 44 values, which no block of 32 divides.
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
        assert_eq!(frozen.bytes(), halves::to_bytes(&params()));
        assert_eq!(all(&frozen), halves::from_bytes(frozen.bytes()));
    }

    /// Each value is within half a code of what it was, and the largest of its block to the scale's own rounding.
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
        // A byte for each code, and two for each block of them.
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
            assert!(error.contains("fetch them anew"), "{error}");
            // The last half is of the last norm.
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
