//! Tests of the split: each parameter once, balanced fragments, and whole experts.

use proptest::prelude::*;

use super::*;
use crate::model::{ExpertSpec, ModelSpec, Preset, layout};

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

/// Goal: an expert that fits a fragment lies in one fragment, and exactly its segments name it.
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
            let names = starts.map(|start| layout.offsets().find(|o| o.0 == start).unwrap().1.name.clone());
            let names: Vec<String> = names.collect();
            let stem = format!("model.layers.{}.block_sparse_moe.experts.{}", expert.layer, expert.index % 4);
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
