//! Split of the parameters into balanced fragments.
//!
//! Parameters are one flat vector: the tensors of a [`Layout`], one after another, row-major. A fragment is a list of
//! [`Segment`]s of that vector.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use sha2::{Digest, Sha256};

use super::experts::{FragmentExpert, expert_of};
use crate::wire::{FragmentId, LayoutHash, MergeClass, Model, Tensor};

/// Tensors of a model, in the order of the flat parameter vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    tensors: Vec<Tensor>,
    len: u32,
}

/// Reasons for which a list of tensors is not a layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// There are no tensors.
    #[error("a layout needs at least one tensor")]
    Empty,
    /// A tensor has no values.
    #[error("tensor {name} has no values")]
    EmptyTensor {
        /// Name of the tensor.
        name: String,
    },
    /// Two tensors have the same name.
    #[error("two tensors are called {name}")]
    Duplicate {
        /// The common name.
        name: String,
    },
    /// There are more than 2³² − 1 parameters.
    #[error("more than {} parameters", u32::MAX)]
    TooLarge,
}

impl Layout {
    /// Checks `tensors`, and computes their total length.
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

    /// Creates the layout of `model`.
    ///
    /// # Errors
    /// Each variant of [`LayoutError`].
    pub fn of(model: &Model) -> Result<Self, LayoutError> {
        Self::new(model.tensors.clone())
    }

    /// Returns the tensors, in order.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Returns the tensors, each with its offset in the flat vector.
    pub fn offsets(&self) -> impl Iterator<Item = (u32, &Tensor)> {
        self.tensors.iter().scan(0, |next, tensor| {
            let start = *next;
            *next += tensor.len();
            Some((start, tensor))
        })
    }

    /// Returns the length of the flat parameter vector.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a layout is never empty")]
    pub fn len(&self) -> usize {
        self.len as usize
    }
}

/// Range of the flat vector that is merged as one direction: a tensor, or some rows of a large one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset of the first value.
    pub start: u32,
    /// Number of values, at least 1.
    pub len: u32,
    /// Merge class of its updates.
    pub merge: MergeClass,
    /// Index of its expert in the fragment, if it belongs to one. It is then merged by the tokens routed to that
    /// expert.
    pub expert: Option<u16>,
}

impl Segment {
    /// Returns its range in the flat vector.
    #[must_use]
    pub fn range(&self) -> std::ops::Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }
}

/// Parameters in `P` fragments of nearly equal size; each value is in exactly one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragments {
    parts: Vec<Vec<Segment>>,
    /// Experts with segments in each fragment, in layout order.
    experts: Vec<Vec<FragmentExpert>>,
    hash: LayoutHash,
}

impl Fragments {
    /// Splits `layout` into `count` fragments, or into fewer if it has fewer pieces.
    ///
    /// The split is greedy (longest first, into the lightest fragment, ties by offset and by index): the largest
    /// fragment is at most 4/3 of the best possible. Tensors larger than `len / count` are first cut into pieces of
    /// whole rows of at most that size. Each segment keeps its merge class, so the embedding is merged apart wherever
    /// it lies. The tensors of an expert of at most that size stay together and are merged at once.
    #[must_use]
    pub fn plan(layout: &Layout, count: NonZeroU16) -> Self {
        let target = layout.len.div_ceil(u32::from(count.get())).max(1);
        let mut groups: Vec<Vec<Piece>> = Vec::new();
        for (start, tensor, expert) in with_experts(layout) {
            let mut pieces: Vec<Piece> =
                split_rows(start, tensor, target).map(|segment| Piece { segment, expert }).collect();
            let before = groups.last_mut().filter(|before| {
                let len = before.iter().chain(&pieces).map(|piece| u64::from(piece.segment.len)).sum::<u64>();
                expert.is_some() && before[0].expert == expert && len <= u64::from(target)
            });
            match before {
                Some(before) => before.append(&mut pieces),
                None => groups.extend(pieces.into_iter().map(|piece| vec![piece])),
            }
        }
        let len = |group: &[Piece]| group.iter().map(|piece| u64::from(piece.segment.len)).sum::<u64>();
        groups.sort_by_key(|group| (std::cmp::Reverse(len(group)), group[0].segment.start));

        let mut parts = vec![Vec::new(); usize::from(count.get()).min(groups.len())];
        let mut sizes = vec![0_u64; parts.len()];
        for group in groups {
            let lightest = (0..parts.len()).min_by_key(|&i| sizes[i]).expect("at least one part");
            sizes[lightest] += len(&group);
            parts[lightest].extend(group);
        }
        let (parts, experts): (Vec<_>, Vec<_>) = parts.into_iter().map(settle).unzip();
        let hash = hash(layout, &parts);
        Self { parts, experts, hash }
    }

    /// Returns the experts with segments in `fragment`, by ascending index; empty if there is no such fragment.
    #[must_use]
    pub fn experts(&self, fragment: FragmentId) -> &[FragmentExpert] {
        self.experts.get(usize::from(fragment.0)).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns P.
    #[must_use]
    pub fn count(&self) -> u16 {
        u16::try_from(self.parts.len()).expect("planned from a u16")
    }

    /// Returns all fragments, in order.
    pub fn ids(&self) -> impl Iterator<Item = FragmentId> + use<> {
        (0..self.count()).map(FragmentId)
    }

    /// Returns the segments of `fragment`, by ascending start; `None` if there is no such fragment.
    #[must_use]
    pub fn segments(&self, fragment: FragmentId) -> Option<&[Segment]> {
        self.parts.get(usize::from(fragment.0)).map(Vec::as_slice)
    }

    /// Returns the number of values in `fragment`; 0 if there is no such fragment.
    #[must_use]
    pub fn len(&self, fragment: FragmentId) -> usize {
        self.segments(fragment).unwrap_or_default().iter().map(|s| s.len as usize).sum()
    }

    /// Returns the hash of this layout and this split.
    #[must_use]
    pub fn hash(&self) -> LayoutHash {
        self.hash
    }

    /// Copies the values of `fragment` from the flat vector, `[len]` → `[fragment_len]`.
    #[must_use]
    pub fn gather(&self, fragment: FragmentId, flat: &[f32]) -> Vec<f32> {
        let mut values = Vec::with_capacity(self.len(fragment));
        for segment in self.segments(fragment).unwrap_or_default() {
            values.extend_from_slice(&flat[segment.range()]);
        }
        values
    }

    /// Copies `values`, `[fragment_len]`, into the flat vector, `[len]`.
    pub fn scatter(&self, fragment: FragmentId, values: &[f32], flat: &mut [f32]) {
        let mut rest = values;
        for segment in self.segments(fragment).unwrap_or_default() {
            let (head, tail) = rest.split_at(segment.len as usize);
            flat[segment.range()].copy_from_slice(head);
            rest = tail;
        }
    }
}

/// Segment that is not yet assigned to a fragment.
#[derive(Clone, Copy)]
struct Piece {
    segment: Segment,
    expert: Option<FragmentExpert>,
}

/// Returns the tensors of `layout` with their offsets, each with its expert if it belongs to one.
fn with_experts(layout: &Layout) -> impl Iterator<Item = (u32, &Tensor, Option<FragmentExpert>)> {
    let (mut layers, mut experts) = (BTreeMap::new(), BTreeMap::new());
    layout.offsets().map(move |(start, tensor)| {
        let expert = expert_of(&tensor.name).map(|(layer, expert)| {
            let (next_layer, next) = (layers.len() as u32, experts.len() as u32);
            let layer = *layers.entry(layer).or_insert(next_layer);
            FragmentExpert { index: *experts.entry(expert).or_insert(next), layer }
        });
        (start, tensor, expert)
    })
}

/// Returns the segments of a fragment by ascending start, and their experts.
fn settle(mut part: Vec<Piece>) -> (Vec<Segment>, Vec<FragmentExpert>) {
    part.sort_by_key(|piece| piece.segment.start);
    let mut experts: Vec<FragmentExpert> = part.iter().filter_map(|piece| piece.expert).collect();
    experts.sort_by_key(|expert| expert.index);
    experts.dedup();
    let segment = |Piece { segment, expert }: Piece| {
        let at = expert.and_then(|expert| experts.iter().position(|other| *other == expert));
        Segment { expert: at.map(|at| at as u16), ..segment }
    };
    (part.into_iter().map(segment).collect(), experts)
}

/// Cuts `tensor` at row borders into pieces of nearly equal size, at most `target` unless one row is larger.
fn split_rows(start: u32, tensor: &Tensor, target: u32) -> impl Iterator<Item = Segment> + use<> {
    let (rows, cols, merge) = (tensor.rows, tensor.cols, tensor.merge);
    let rows_max = (target / cols).max(1);
    let count = rows.div_ceil(rows_max);
    let (each, extra) = (rows / count, rows % count);
    (0..count).map(move |i| {
        let first = i * each + i.min(extra);
        let taken = each + u32::from(i < extra);
        Segment { start: start + first * cols, len: taken * cols, merge, expert: None }
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
mod tests;
