//! Split of the parameters into balanced fragments.
//!
//! Parameters are one flat vector: the tensors of a [`Layout`], one after another, row-major. A fragment is a list of
//! [`Segment`]s of that vector.
//!
//! An update's weight on an expert follows from the tokens routed to that expert, not from all tokens of the update.
//! Tensor names identify experts as in Mixtral: `….experts.3.w1.weight` belongs to expert 3 of its layer.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use crate::wire::{FragmentId, LayoutHash, MergeClass, Mixture, Model, Tensor};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// List of a model's tensors, in the order of the flat parameter vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    tensors: Vec<Tensor>,
    len: u32,
}

/// Error in a list of tensors.
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
    /// Creates a layout from `tensors`, in order.
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

/// Range of the flat vector that is merged as one vector: a tensor, or some rows of a large tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset of the first value in the flat vector.
    pub start: u32,
    /// Number of values, at least 1.
    pub len: u32,
    /// Merge class of the tensor.
    pub merge: MergeClass,
    /// Number of columns if the tensor is a linear map, 0 otherwise. Embeddings, heads and routers are tables of
    /// vectors, not linear maps in this sense.
    pub cols: u32,
    /// Index of the tensor's expert in [`Fragments::experts`]; `None` if it belongs to no expert. Merge weights on the
    /// segment then follow from the tokens routed to that expert.
    pub expert: Option<u16>,
}

impl Segment {
    /// Returns the number of rows if the segment is merged radially and is a linear map with at least two rows and two
    /// columns, otherwise `None`.
    #[must_use]
    pub fn matrix_rows(&self) -> Option<usize> {
        let is_matrix = self.merge == MergeClass::Radial && self.cols > 1 && self.len > self.cols;
        is_matrix.then(|| (self.len / self.cols) as usize)
    }

    /// Returns the range of the segment in the flat vector.
    #[must_use]
    pub fn range(&self) -> std::ops::Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }
}

/// Split of the parameters into P fragments of nearly equal size. Each value is in exactly one fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragments {
    /// Segments of each fragment, by ascending start, `[P]`.
    parts: Vec<Vec<Segment>>,
    /// Experts with segments in each fragment, in layout order, `[P]`.
    experts: Vec<Vec<FragmentExpert>>,
    hash: LayoutHash,
}

impl Fragments {
    /// Splits `layout` into `count` fragments, or into fewer if the layout has fewer pieces.
    ///
    /// Tensors larger than `len / count` are first cut into pieces of whole rows of at most that size. If all tensors
    /// of an expert fit into that size, they form one piece. The pieces are then assigned greedily, the largest first,
    /// each to the smallest fragment, with ties by offset and by index. The largest fragment is therefore at most 4/3
    /// of the best possible size.
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
        let (parts, experts): (Vec<_>, Vec<_>) = parts.into_iter().map(sort_segments).unzip();
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

    /// Returns the hash of the layout and its split into fragments. Learners and the syncer must agree on it.
    #[must_use]
    pub fn hash(&self) -> LayoutHash {
        self.hash
    }

    /// Copies the values of `fragment` from the flat vector: `[layout.len()]` → `[fragment_len]`.
    #[must_use]
    pub fn gather(&self, fragment: FragmentId, flat: &[f32]) -> Vec<f32> {
        let mut values = Vec::with_capacity(self.len(fragment));
        for segment in self.segments(fragment).unwrap_or_default() {
            values.extend_from_slice(&flat[segment.range()]);
        }
        values
    }

    /// Copies `values`, `[fragment_len]`, into the flat vector, `[layout.len()]`.
    pub fn scatter(&self, fragment: FragmentId, values: &[f32], flat: &mut [f32]) {
        let mut rest = values;
        for segment in self.segments(fragment).unwrap_or_default() {
            let (head, tail) = rest.split_at(segment.len as usize);
            flat[segment.range()].copy_from_slice(head);
            rest = tail;
        }
    }
}

/// Segment before its assignment to a fragment, with its expert.
#[derive(Clone, Copy)]
struct Piece {
    segment: Segment,
    expert: Option<FragmentExpert>,
}

/// Returns each tensor of `layout` with its offset in the flat vector and its expert, if it belongs to one.
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

/// Returns the segments of a fragment by ascending start, and their experts by ascending index.
fn sort_segments(mut part: Vec<Piece>) -> (Vec<Segment>, Vec<FragmentExpert>) {
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

/// Cuts `tensor` at row borders into segments of nearly equal size, at most `target` values or one row.
fn split_rows(start: u32, tensor: &Tensor, target: u32) -> impl Iterator<Item = Segment> + use<> {
    let (rows, cols, merge) = (tensor.rows, tensor.cols, tensor.merge);
    let map_cols = if is_table(&tensor.name) { 0 } else { cols };
    let rows_max = (target / cols).max(1);
    let count = rows.div_ceil(rows_max);
    let (each, extra) = (rows / count, rows % count);
    (0..count).map(move |i| {
        let first = i * each + i.min(extra);
        let taken = each + u32::from(i < extra);
        Segment { start: start + first * cols, len: taken * cols, merge, cols: map_cols, expert: None }
    })
}

/// Returns true if the rows of the tensor with this name are separate vectors: an embedding, a head or a router. The
/// names are those of `transformers` checkpoints.
pub(crate) fn is_table(tensor: &str) -> bool {
    const TABLES: [&str; 6] = ["embed_tokens", "wte", "wpe", "lm_head", "gate", "router"];
    tensor.split('.').any(|part| TABLES.contains(&part))
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

/// One expert with tensors in a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentExpert {
    /// Index among all experts of the layout, in the order of their first tensors, from 0.
    pub index: u32,
    /// Index of the expert's layer among the layers with experts, from 0.
    pub layer: u32,
}

/// Merge weights of the updates of one merge for one expert.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExpertWeights {
    /// Weight of each update, ordered by learner id; 0 if no token was routed to the expert.
    pub weights: Vec<f64>,
    /// Weight that enters the mean as zeros: that of missing established learners and of updates without routed tokens.
    pub absent: f64,
}

/// Returns the name prefixes of a tensor's layer and expert; `None` if the tensor belongs to no expert.
pub(super) fn expert_of(tensor: &str) -> Option<(&str, &str)> {
    const MARK: &str = ".experts.";
    let start = tensor.find(MARK)?;
    let number = start + MARK.len();
    let len = tensor[number..].find('.')?;
    let is_number = len > 0 && tensor[number..][..len].bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| (&tensor[..start], &tensor[..number + len]))
}

/// Returns the credited tokens of an update for each expert of a fragment, `[experts]`. The update claims `claimed`
/// tokens, and `counted` of them are credited. It also reports `seen`, the tokens routed to each expert, `[experts]` or
/// empty. `mixture` is `None` for a model that does not declare its experts.
///
/// A token is routed at most once to an expert, and to `per_token` experts of a layer. At most `counted` tokens are
/// therefore credited for an expert, and at most `counted · per_token` for all experts of a layer. If `seen` is empty,
/// the tokens are assumed to be routed evenly.
pub(super) fn credited_tokens(
    experts: &[FragmentExpert],
    mixture: Option<Mixture>,
    seen: &[u64],
    claimed: u64,
    counted: u64,
) -> Vec<u64> {
    let part = |of: u64, times: u64, over: u64| {
        (u128::from(of) * u128::from(times) / u128::from(over.max(1))).min(u128::from(counted)) as u64
    };
    if seen.len() != experts.len() {
        let even = mixture.map_or(counted, |mixture| {
            part(counted, mixture.per_token.into(), mixture.count.into()).max(u64::from(counted > 0))
        });
        return vec![even; experts.len()];
    }
    let mut credited_tokens: Vec<u64> =
        seen.iter().map(|&seen| part(seen.min(claimed), counted.min(claimed), claimed)).collect();
    let Some(mixture) = mixture else { return credited_tokens };
    let most = counted.saturating_mul(mixture.per_token.into());
    let mut start = 0;
    // Experts of a layer are adjacent.
    for layer in experts.chunk_by(|a, b| a.layer == b.layer) {
        let of_layer = &mut credited_tokens[start..start + layer.len()];
        let sum = of_layer.iter().fold(0_u64, |sum, seen| sum.saturating_add(*seen));
        if sum > most {
            of_layer.iter_mut().for_each(|seen| *seen = part(*seen, most, sum));
        }
        start += layer.len();
    }
    credited_tokens
}

#[cfg(test)]
mod tests {
    //! Tests that fragments cover each parameter once, are balanced, and keep experts whole.

    use super::*;
    use crate::model::{ExpertSpec, ModelSpec, Preset, layout};
    use proptest::prelude::*;

    fn tensor(name: &str, rows: u32, cols: u32) -> Tensor {
        Tensor { name: name.into(), rows, cols, merge: MergeClass::Radial }
    }

    fn sizes(fragments: &Fragments) -> Vec<usize> {
        fragments.ids().map(|p| fragments.len(p)).collect()
    }

    #[test]
    fn invalid_layouts_are_refused() {
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
    fn matrix_rows_are_known_for_linear_maps_only() {
        let mut tensors = vec![
            tensor("model.embed_tokens.weight", 8, 4),
            tensor("model.layers.0.block_sparse_moe.gate.weight", 3, 4),
            tensor("model.layers.0.mlp.gate_proj.weight", 6, 4),
            tensor("model.layers.0.self_attn.q_proj.weight", 4, 4),
            tensor("model.layers.0.self_attn.q_proj.lora_A.weight", 2, 4),
            tensor("model.norm.weight", 1, 4),
            tensor("scales", 4, 1),
            tensor("lm_head.weight", 8, 4),
        ];
        tensors[4].merge = MergeClass::Mean;
        let rows = |count| {
            let layout = Layout::new(tensors.clone()).unwrap();
            let fragments = Fragments::plan(&layout, NonZeroU16::new(count).unwrap());
            let mut segments: Vec<_> =
                fragments.ids().flat_map(|id| fragments.segments(id).unwrap().to_vec()).collect();
            segments.sort_by_key(|segment| segment.start);
            segments.iter().map(Segment::matrix_rows).collect::<Vec<_>>()
        };
        assert_eq!(rows(1), [None, None, Some(6), Some(4), None, None, None, None]);
        // Fragments of 19 values: the embedding, the head and the largest matrix are cut.
        assert_eq!(rows(7), [None, None, None, Some(3), Some(3), Some(4), None, None, None, None, None]);
    }

    /// Goal: an expert that fits into a fragment lies in one fragment, and exactly its segments name it.
    #[test]
    fn an_expert_stays_together() {
        let experts = Some(ExpertSpec { count: 4, per_token: 2, aux_loss: 0.0 });
        let layout = layout(&ModelSpec { experts, ..Preset::Tiny.model(256) }).unwrap();
        let fragments = Fragments::plan(&layout, NonZeroU16::new(6).unwrap());
        let mut found = Vec::new();
        for p in fragments.ids() {
            let experts = fragments.experts(p);
            for (at, expert) in experts.iter().enumerate() {
                let is_its = |segment: &&Segment| segment.expert == Some(at as u16);
                let starts = fragments.segments(p).unwrap().iter().filter(is_its).map(|s| s.start);
                let names =
                    starts.map(|start| layout.offsets().find(|o| o.0 == start).unwrap().1.name.clone());
                let names: Vec<String> = names.collect();
                let stem =
                    format!("model.layers.{}.block_sparse_moe.experts.{}", expert.layer, expert.index % 4);
                assert_eq!(names, ["w1", "w3", "w2"].map(|name| format!("{stem}.{name}.weight")));
                found.push(expert.index);
            }
            let count = fragments.segments(p).unwrap().iter().filter(|s| s.expert.is_some()).count();
            assert_eq!(count, 3 * experts.len());
        }
        found.sort_unstable();
        assert_eq!(found, (0..8).collect::<Vec<u32>>());
    }

    #[test]
    fn hash_differs_between_layouts_and_splits() {
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

            // The greedy split exceeds the mean by at most one piece, and a piece is at most the mean or one row.
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

    const MIXTURE: Mixture = Mixture { count: 4, per_token: 2 };

    fn experts(layers: &[u32]) -> Vec<FragmentExpert> {
        layers.iter().zip(0..).map(|(&layer, index)| FragmentExpert { index, layer }).collect()
    }

    #[test]
    fn experts_are_known_by_the_names_of_their_tensors() {
        let layer = "model.layers.1.block_sparse_moe";
        let expert = "model.layers.1.block_sparse_moe.experts.12";
        assert_eq!(expert_of(&format!("{expert}.w2.weight")), Some((layer, expert)));
        assert_eq!(expert_of("model.layers.1.block_sparse_moe.gate.weight"), None);
        assert_eq!(expert_of("model.experts.weight"), None);
        assert_eq!(expert_of("model.experts.all.weight"), None);
        assert_eq!(expert_of("model.experts.3"), None, "no tensor of one");
    }

    #[test]
    fn expert_tokens_are_credited_in_proportion_to_the_update() {
        let two = experts(&[0, 1]);
        let check = |seen: &[u64], counted, expected: &[u64]| {
            assert_eq!(
                credited_tokens(&two, Some(MIXTURE), seen, 100, counted),
                expected,
                "{seen:?} {counted}"
            );
        };
        check(&[30, 0], 100, &[30, 0]);
        check(&[30, 0], 50, &[15, 0]);
        check(&[u64::MAX, 7], 100, &[100, 7]);
        check(&[], 100, &[50, 50]);
        check(&[], 1, &[1, 1]);
        assert_eq!(credited_tokens(&two, None, &[], 100, 80), [80, 80], "nothing is known of the model");
    }

    proptest! {
        /// Goal: whatever an update reports, an expert is credited at most the tokens of the update, and a layer at
        /// most `per_token` times as many.
        #[test]
        fn expert_tokens_are_bounded_by_the_update(
            seen in prop::collection::vec(prop_oneof![0_u64..1_000, Just(u64::MAX)], 6),
            claimed in prop_oneof![1_u64..500, Just(u64::MAX)],
            counted in 1_u64..500,
        ) {
            let experts = experts(&[0, 0, 0, 3, 3, 3]);
            let found = credited_tokens(&experts, Some(MIXTURE), &seen, claimed, counted);
            prop_assert!(found.iter().all(|&seen| seen <= counted), "{found:?}");
            for layer in found.chunks(3) {
                prop_assert!(layer.iter().sum::<u64>() <= 2 * counted, "{found:?}");
            }
        }

        #[test]
        fn honest_reports_are_credited(seen in prop::collection::vec(0_u64..=100, 2), tokens in 100_u64..500) {
            let found = credited_tokens(&experts(&[0, 0]), Some(MIXTURE), &seen, tokens, tokens);
            prop_assert_eq!(found, seen);
        }
    }
}
