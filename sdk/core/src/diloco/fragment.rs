//! Splitting the parameters into balanced fragments.
//!
//! Parameters are one flat vector: the tensors of a [`Layout`], one after another, row-major. A
//! fragment is a list of [`Segment`]s of that vector.

use std::num::NonZeroU16;

use sha2::{Digest, Sha256};

use crate::wire::{FragmentId, LayoutHash, MergeClass, Model, Tensor};

/// The tensors of a model, in the order of the flat parameter vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    tensors: Vec<Tensor>,
    len: u32,
}

/// Why a list of tensors is no layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// No tensors.
    #[error("a layout needs at least one tensor")]
    Empty,
    /// A tensor without values.
    #[error("tensor {name} has no values")]
    EmptyTensor {
        /// Its name.
        name: String,
    },
    /// Two tensors of one name.
    #[error("two tensors are called {name}")]
    Duplicate {
        /// Their name.
        name: String,
    },
    /// More than 2³² − 1 parameters.
    #[error("more than {} parameters", u32::MAX)]
    TooLarge,
}

impl Layout {
    /// Checks `tensors` and adds them up.
    ///
    /// # Errors
    /// Each variant of [`LayoutError`].
    pub fn new(tensors: Vec<Tensor>) -> Result<Self, LayoutError> {
        if tensors.is_empty() {
            return Err(LayoutError::Empty);
        }
        let mut names = std::collections::BTreeSet::new();
        let mut len = 0_u32;
        for tensor in &tensors {
            if tensor.is_empty() {
                return Err(LayoutError::EmptyTensor { name: tensor.name.clone() });
            }
            if !names.insert(&tensor.name) {
                return Err(LayoutError::Duplicate { name: tensor.name.clone() });
            }
            let size = tensor.rows.checked_mul(tensor.cols).ok_or(LayoutError::TooLarge)?;
            len = len.checked_add(size).ok_or(LayoutError::TooLarge)?;
        }
        Ok(Self { tensors, len })
    }

    /// Where each parameter of `model` lies.
    ///
    /// # Errors
    /// Each variant of [`LayoutError`].
    pub fn of(model: &Model) -> Result<Self, LayoutError> {
        Self::new(model.tensors.clone())
    }

    /// The tensors, in order.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensors with the offset of each in the flat vector.
    pub fn offsets(&self) -> impl Iterator<Item = (u32, &Tensor)> {
        self.tensors.iter().scan(0, |next, tensor| {
            let start = *next;
            *next += tensor.len();
            Some((start, tensor))
        })
    }

    /// Length of the flat parameter vector.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a layout is never empty")]
    pub fn len(&self) -> usize {
        self.len as usize
    }
}

/// A run of the flat vector that is merged as one direction: a tensor, or some rows of a large one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First value.
    pub start: u32,
    /// Number of values, at least 1.
    pub len: u32,
    /// How its updates are merged.
    pub merge: MergeClass,
}

impl Segment {
    /// The values it covers in the flat vector.
    #[must_use]
    pub fn range(&self) -> std::ops::Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }
}

/// The parameters in `P` parts of nearly equal size; each value is in exactly one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragments {
    parts: Vec<Vec<Segment>>,
    hash: LayoutHash,
}

impl Fragments {
    /// Splits `layout` into `count` parts, or into fewer if it has fewer pieces.
    ///
    /// Greedy (longest first, into the lightest part, ties by offset and by index): the largest part
    /// is at most 4/3 of the best possible. Tensors larger than `len / count` are first cut into
    /// pieces of whole rows no larger than that. Each segment keeps its own merge class, so the
    /// embedding is merged apart wherever it lies.
    #[must_use]
    pub fn plan(layout: &Layout, count: NonZeroU16) -> Self {
        let target = layout.len.div_ceil(u32::from(count.get())).max(1);
        let mut pieces: Vec<Segment> =
            layout.offsets().flat_map(|(start, tensor)| split_rows(start, tensor, target)).collect();
        pieces.sort_by_key(|piece| (std::cmp::Reverse(piece.len), piece.start));

        let mut parts = vec![Vec::new(); usize::from(count.get()).min(pieces.len())];
        let mut sizes = vec![0_u64; parts.len()];
        for piece in pieces {
            let lightest = (0..parts.len()).min_by_key(|&i| sizes[i]).expect("at least one part");
            sizes[lightest] += u64::from(piece.len);
            parts[lightest].push(piece);
        }
        for part in &mut parts {
            part.sort_by_key(|piece| piece.start);
        }
        let hash = hash(layout, &parts);
        Self { parts, hash }
    }

    /// P.
    #[must_use]
    pub fn count(&self) -> u16 {
        u16::try_from(self.parts.len()).expect("planned from a u16")
    }

    /// All fragments, in order.
    pub fn ids(&self) -> impl Iterator<Item = FragmentId> + use<> {
        (0..self.count()).map(FragmentId)
    }

    /// The segments of `fragment`, by ascending start; `None` if there is no such fragment.
    #[must_use]
    pub fn segments(&self, fragment: FragmentId) -> Option<&[Segment]> {
        self.parts.get(usize::from(fragment.0)).map(Vec::as_slice)
    }

    /// Values in `fragment`, 0 if there is no such fragment.
    #[must_use]
    pub fn len(&self, fragment: FragmentId) -> usize {
        self.segments(fragment).unwrap_or_default().iter().map(|s| s.len as usize).sum()
    }

    /// Names this layout and this split of it.
    #[must_use]
    pub fn hash(&self) -> LayoutHash {
        self.hash
    }

    /// Copies the values of `fragment` out of the flat vector, `[len]` → `[fragment_len]`.
    #[must_use]
    pub fn gather(&self, fragment: FragmentId, flat: &[f32]) -> Vec<f32> {
        let segments = self.segments(fragment).unwrap_or_default();
        segments.iter().flat_map(|segment| &flat[segment.range()]).copied().collect()
    }

    /// Copies `values`, `[fragment_len]`, to their places in the flat vector, `[len]`.
    pub fn scatter(&self, fragment: FragmentId, values: &[f32], flat: &mut [f32]) {
        let mut rest = values;
        for segment in self.segments(fragment).unwrap_or_default() {
            let (head, tail) = rest.split_at(segment.len as usize);
            flat[segment.range()].copy_from_slice(head);
            rest = tail;
        }
    }
}

/// Cuts `tensor` at row borders into pieces of nearly equal size, none above `target` unless one row is.
fn split_rows(start: u32, tensor: &Tensor, target: u32) -> impl Iterator<Item = Segment> + use<> {
    let (rows, cols, merge) = (tensor.rows, tensor.cols, tensor.merge);
    let rows_max = (target / cols).max(1);
    let count = rows.div_ceil(rows_max);
    let (each, extra) = (rows / count, rows % count);
    (0..count).map(move |i| {
        let first = i * each + i.min(extra);
        let taken = each + u32::from(i < extra);
        Segment { start: start + first * cols, len: taken * cols, merge }
    })
}

fn hash(layout: &Layout, parts: &[Vec<Segment>]) -> LayoutHash {
    let mut sha = Sha256::new();
    for tensor in layout.tensors() {
        let class = tensor.merge as u8;
        sha.update(format!("{} {} {} {class}\n", tensor.name, tensor.rows, tensor.cols));
    }
    for (fragment, part) in parts.iter().enumerate() {
        for segment in part {
            sha.update(format!("{fragment} {} {}\n", segment.start, segment.len));
        }
    }
    let digest = sha.finalize();
    LayoutHash(u64::from_be_bytes(digest[..8].try_into().expect("SHA-256 has 32 bytes")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tensor(name: &str, rows: u32, cols: u32) -> Tensor {
        Tensor { name: name.into(), rows, cols, merge: MergeClass::Radial }
    }

    fn sizes(fragments: &Fragments) -> Vec<usize> {
        fragments.ids().map(|p| fragments.len(p)).collect()
    }

    #[test]
    fn refuses_what_is_no_layout() {
        assert_eq!(Layout::new(vec![]), Err(LayoutError::Empty));
        let empty = Layout::new(vec![tensor("a", 0, 3)]);
        assert_eq!(empty, Err(LayoutError::EmptyTensor { name: "a".into() }));
        let twice = Layout::new(vec![tensor("a", 1, 1), tensor("a", 1, 1)]);
        assert_eq!(twice, Err(LayoutError::Duplicate { name: "a".into() }));
        assert_eq!(Layout::new(vec![tensor("a", 1 << 16, 1 << 16)]), Err(LayoutError::TooLarge));
    }

    #[test]
    fn cuts_a_large_tensor_at_rows() {
        let layout = Layout::new(vec![tensor("big", 10, 7), tensor("small", 1, 5)]).unwrap();
        let fragments = Fragments::plan(&layout, NonZeroU16::new(3).unwrap());
        let starts: Vec<u32> = fragments.parts.iter().flatten().map(|s| s.start).collect();
        assert!(starts.iter().filter(|s| **s < 70).all(|s| s % 7 == 0), "{starts:?}");
        assert_eq!(sizes(&fragments).iter().sum::<usize>(), 75);
    }

    #[test]
    fn hash_tells_layouts_and_splits_apart() {
        let plan = |rows, count| {
            let layout = Layout::new(vec![tensor("a", rows, 8), tensor("b", 64, 8)]).unwrap();
            Fragments::plan(&layout, NonZeroU16::new(count).unwrap()).hash()
        };
        assert_eq!(plan(64, 4), plan(64, 4));
        assert_ne!(plan(64, 4), plan(65, 4));
        assert_ne!(plan(64, 4), plan(64, 5));
    }

    proptest! {
        #[test]
        fn covers_each_parameter_once_and_evenly(
            shapes in prop::collection::vec((1_u32..200, 1_u32..64), 1..30),
            count in 1_u16..32,
        ) {
            let tensors = shapes.iter().enumerate().map(|(i, &(r, c))| tensor(&i.to_string(), r, c));
            let layout = Layout::new(tensors.collect()).unwrap();
            let fragments = Fragments::plan(&layout, NonZeroU16::new(count).unwrap());

            let mut seen = vec![0_u32; layout.len()];
            for segment in fragments.parts.iter().flatten() {
                for value in &mut seen[segment.range()] {
                    *value += 1;
                }
            }
            prop_assert!(seen.iter().all(|&times| times == 1));

            // Greedy never exceeds the mean by more than one piece, and a piece is at most
            // the mean or one row.
            let mean = layout.len().div_ceil(usize::from(count));
            let row = shapes.iter().map(|s| s.1 as usize).max().unwrap();
            prop_assert!(sizes(&fragments).into_iter().max().unwrap() <= mean + mean.max(row));
        }

        #[test]
        fn scatter_undoes_gather(rows in 1_u32..50, cols in 1_u32..50, count in 1_u16..9) {
            let layout = Layout::new(vec![tensor("a", rows, cols), tensor("b", 3, 5)]).unwrap();
            let fragments = Fragments::plan(&layout, NonZeroU16::new(count).unwrap());
            let flat: Vec<f32> = (0_u16..).map(f32::from).take(layout.len()).collect();
            let mut back = vec![-1.0; flat.len()];
            for p in fragments.ids() {
                fragments.scatter(p, &fragments.gather(p, &flat), &mut back);
            }
            prop_assert_eq!(back, flat);
        }
    }
}
