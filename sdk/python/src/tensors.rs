//! The tensors of a program, and where the parameters of a run lie in them.

use std::collections::BTreeSet;
use std::ops::Range;

use archipelago::model::{Fragments, Layout, LayoutError, MergeClass, Model, ModelSpec, Tensor, layout};
use archipelago::wire::FragmentId;

use crate::fused::Part;

/// Names in one sentence at most; the others are counted.
const NAMED_MAX: usize = 3;

/// A tensor as the program has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shaped {
    /// Its name, unique within the program.
    pub name: String,
    /// Its sizes, outermost first.
    pub shape: Vec<u64>,
}

/// Why tensors are not those of a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// Some that the run has are not there.
    #[error("the run also has the {}: pass every parameter of the model", listed(.names))]
    Missing {
        /// Their names, in the run's order.
        names: Vec<String>,
    },
    /// Some that are there the run does not have.
    #[error("the run has no {}: leave out what it does not train", listed(.names))]
    Unknown {
        /// Their names, in the program's order.
        names: Vec<String>,
    },
    /// One has another shape.
    #[error("tensor {name} is {found:?}, and {wanted:?} in the run: build the model with the run's sizes")]
    Shape {
        /// Its name.
        name: String,
        /// Its shape here.
        found: Vec<u64>,
        /// Its shape in the run.
        wanted: Vec<u64>,
    },
    /// One that is merged by the plain mean is not there.
    #[error("`mean` names {name}, which is not among the tensors")]
    Mean {
        /// Its name.
        name: String,
    },
    /// They are no layout.
    #[error("these tensors cannot be laid out: {0}")]
    Layout(#[from] LayoutError),
}

/// A part of one of the program's tensors, flat and row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which tensor, in the program's order.
    pub tensor: usize,
    /// Its first value.
    pub start: usize,
    /// The value after its last.
    pub stop: usize,
}

/// Where one of the run's tensors begins.
#[derive(Clone, Copy, Debug)]
struct Spot {
    /// In which of the program's tensors, in the program's order.
    tensor: usize,
    /// At which of its values, row-major.
    start: usize,
}

impl Spot {
    /// Some of the values of what lies here.
    fn place(self, range: Range<usize>) -> Place {
        Place { tensor: self.tensor, start: self.start + range.start, stop: self.start + range.end }
    }
}

/// How the parameters of a run lie in a program's tensors.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The run's layout.
    pub layout: Layout,
    /// For each tensor of the layout, in its order, where it lies.
    spots: Vec<Spot>,
}

impl Fit {
    /// Lays `tensors` out for a run of `model`. If one of them has a name of the built-in decoder, they have to be that
    /// decoder's; with experts they may be those of `transformers`, which holds all experts of a layer in two tensors
    /// ([`Part`]). If none has, the run is one of a model of its own: its tensors lie in the order of their names, each
    /// merged radially unless `mean` names it, as those of the file that such a run begins with.
    ///
    /// # Errors
    /// Each variant of [`FitError`].
    pub fn new(tensors: &[Shaped], mean: &BTreeSet<String>, model: &Model) -> Result<Self, FitError> {
        let known = |name: &String| tensors.iter().any(|tensor| tensor.name == *name);
        if let Some(name) = mean.iter().find(|name| !known(name)) {
            return Err(FitError::Mean { name: name.clone() });
        }
        let decoder = ModelSpec::of(model).and_then(|spec| Ok((layout(&spec)?, spec)));
        match decoder {
            Ok((decoder, spec)) if decoder.tensors().iter().any(|tensor| known(&tensor.name)) => {
                Self::decoder(tensors, decoder, spec.experts.map_or(0, |experts| experts.count.into()))
            }
            _ => Self::own(tensors, mean),
        }
    }

    fn decoder(tensors: &[Shaped], decoder: Layout, experts: u64) -> Result<Self, FitError> {
        let find = |name: &str| tensors.iter().position(|tensor| tensor.name == name);
        let (mut missing, mut misshapen, mut spots) = (Vec::new(), None, Vec::new());
        for Tensor { name, rows, cols, .. } in decoder.tensors() {
            let part = Part::of(name, *rows, *cols, experts);
            let fused = || part.and_then(|part| Some((find(&part.whole)?, part.start, part.shape)));
            let shape =
                || if *rows == 1 { vec![(*cols).into()] } else { vec![(*rows).into(), (*cols).into()] };
            let plain = find(name).map(|tensor| (tensor, 0, shape()));
            let Some((tensor, start, wanted)) = plain.or_else(fused) else {
                missing.push(name.clone());
                continue;
            };
            let Shaped { name, shape: found } = &tensors[tensor];
            if *found != wanted {
                misshapen.get_or_insert(FitError::Shape { name: name.clone(), found: found.clone(), wanted });
            }
            spots.push(Spot { tensor, start });
        }
        if !missing.is_empty() {
            return Err(FitError::Missing { names: missing });
        }
        let is_used = |at: usize| spots.iter().any(|spot| spot.tensor == at);
        let unknown = tensors.iter().enumerate().filter(|(at, _)| !is_used(*at));
        let unknown: Vec<String> = unknown.map(|(_, tensor)| tensor.name.clone()).collect();
        if !unknown.is_empty() {
            return Err(FitError::Unknown { names: unknown });
        }
        misshapen.map_or(Ok(Self { layout: decoder, spots }), Err)
    }

    fn own(tensors: &[Shaped], mean: &BTreeSet<String>) -> Result<Self, FitError> {
        let mut order: Vec<usize> = (0..tensors.len()).collect();
        order.sort_by_key(|&at| &tensors[at].name);
        let laid_out = |&at: &usize| {
            let Shaped { name, shape } = &tensors[at];
            let [rows, cols] = matrix(shape).map(|size| u32::try_from(size).ok());
            let (rows, cols) = rows.zip(cols).ok_or(LayoutError::TooLarge)?;
            let merge = if mean.contains(name) { MergeClass::Mean } else { MergeClass::Radial };
            Ok(Tensor { name: name.clone(), rows, cols, merge })
        };
        let found: Result<Vec<Tensor>, LayoutError> = order.iter().map(laid_out).collect();
        let spots = order.into_iter().map(|tensor| Spot { tensor, start: 0 }).collect();
        Ok(Self { layout: Layout::new(found?)?, spots })
    }

    /// Where all values lie, in the order of the layout.
    #[must_use]
    pub fn whole(&self) -> Vec<Place> {
        let tensors = self.layout.tensors().iter().zip(&self.spots);
        tensors.map(|(of, spot)| spot.place(0..of.len() as usize)).collect()
    }

    /// Where the values of `fragment` lie, in its order.
    #[must_use]
    pub fn places(&self, fragments: &Fragments, fragment: FragmentId) -> Vec<Place> {
        let starts: Vec<usize> = self.layout.offsets().map(|(start, _)| start as usize).collect();
        let segments = fragments.segments(fragment).unwrap_or_default();
        let place = |range: Range<usize>| {
            // A segment is a tensor, or rows of one.
            let at = starts.partition_point(|start| *start <= range.start) - 1;
            self.spots[at].place(range.start - starts[at]..range.end - starts[at])
        };
        segments.iter().map(|segment| place(segment.range())).collect()
    }

    /// The name of the tensor that holds the value at `index` of `fragment`.
    #[must_use]
    pub fn name(&self, fragments: &Fragments, fragment: FragmentId, index: usize) -> &str {
        let segments = fragments.segments(fragment).unwrap_or_default();
        let mut left = index;
        for segment in segments {
            if left < segment.len as usize {
                let at = segment.start as usize + left;
                let holder = self.layout.offsets().take_while(|(start, _)| *start as usize <= at).last();
                return holder.map_or("", |(_, tensor)| &tensor.name);
            }
            left -= segment.len as usize;
        }
        ""
    }
}

/// A shape as rows and columns: a number or a vector has one row, and of more than two sizes all but the first are one.
#[must_use]
pub fn matrix(shape: &[u64]) -> [u64; 2] {
    match shape {
        [] => [1, 1],
        [cols] => [1, *cols],
        [rows, cols @ ..] => [*rows, cols.iter().product()],
    }
}

/// Some names in words.
fn listed(names: &[String]) -> String {
    let what = if names.len() == 1 { "tensor" } else { "tensors" };
    let shown = names.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => format!("{what} {shown}"),
        more => format!("{what} {shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use archipelago::model::{ExpertSpec, Preset};

    use super::*;

    fn shaped(name: &str, shape: &[u64]) -> Shaped {
        Shaped { name: name.into(), shape: shape.into() }
    }

    /// The built-in decoder's, as a program has them: in another order, and vectors with one size.
    fn decoder() -> Vec<Shaped> {
        let layout = layout(&Preset::Tiny.model(256)).unwrap();
        let of = |tensor: &Tensor| {
            let sizes = [u64::from(tensor.rows), u64::from(tensor.cols)];
            shaped(&tensor.name, &sizes[usize::from(tensor.rows == 1)..])
        };
        layout.tensors().iter().rev().map(of).collect()
    }

    fn fit(tensors: &[Shaped], mean: &[&str]) -> Result<Fit, FitError> {
        let mean = mean.iter().map(ToString::to_string).collect();
        Fit::new(tensors, &mean, &Preset::Tiny.model(256).into())
    }

    #[test]
    fn tensors_of_ones_own_lie_in_the_order_of_their_names() {
        let tensors = [shaped("w", &[4, 3, 2]), shaped("b", &[5]), shaped("s", &[])];
        let fit = fit(&tensors, &["w"]).unwrap();
        let found: Vec<_> =
            fit.layout.tensors().iter().map(|t| (&*t.name, t.rows, t.cols, t.merge)).collect();
        let (mean, radial) = (MergeClass::Mean, MergeClass::Radial);
        assert_eq!(found, [("b", 1, 5, radial), ("s", 1, 1, radial), ("w", 4, 6, mean)]);

        let fragments = Fragments::plan(&fit.layout, NonZeroU16::new(3).unwrap());
        let mut seen: Vec<Place> = fragments.ids().flat_map(|id| fit.places(&fragments, id)).collect();
        seen.sort_by_key(|place| (place.tensor, place.start));
        let of = |tensor| seen.iter().filter(move |place| place.tensor == tensor);
        assert_eq!(of(0).map(|place| place.stop - place.start).sum::<usize>(), 24);
        assert!(of(0).count() > 1, "a large tensor is cut at rows: {seen:?}");
        assert_eq!(of(1).collect::<Vec<_>>(), [&Place { tensor: 1, start: 0, stop: 5 }]);
        assert_eq!(of(2).count(), 1);
        for id in fragments.ids() {
            let mut index = 0;
            for place in fit.places(&fragments, id) {
                for _ in place.start..place.stop {
                    assert_eq!(fit.name(&fragments, id, index), tensors[place.tensor].name);
                    index += 1;
                }
            }
        }
    }

    #[test]
    fn the_decoder_is_known_by_its_names() {
        let fit = fit(&decoder(), &[]).unwrap();
        assert_eq!(fit.layout, layout(&Preset::Tiny.model(256)).unwrap());
        let first = &decoder()[fit.spots[0].tensor];
        assert_eq!(first.name, "model.embed_tokens.weight");
    }

    /// The tensors of a Mixtral as `transformers` holds them.
    fn mixtral(model: &ModelSpec) -> Vec<Shaped> {
        let (c, f, experts) = (model.d_model.into(), model.d_ff.into(), 4);
        let mut tensors: Vec<Shaped> = Vec::new();
        for Tensor { name, rows, cols, .. } in layout(model).unwrap().tensors() {
            let Some((stem, rest)) = name.split_once(".block_sparse_moe.") else {
                let sizes = [u64::from(*rows), u64::from(*cols)];
                tensors.push(shaped(name, &sizes[usize::from(*rows == 1)..]));
                continue;
            };
            if rest == "gate.weight" {
                tensors.push(shaped(&format!("{stem}.mlp.gate.weight"), &[experts, c]));
                tensors.push(shaped(&format!("{stem}.mlp.experts.gate_up_proj"), &[experts, 2 * f, c]));
                tensors.push(shaped(&format!("{stem}.mlp.experts.down_proj"), &[experts, c, f]));
            }
        }
        tensors
    }

    #[test]
    fn experts_lie_in_the_tensors_of_transformers() {
        let experts = Some(ExpertSpec { count: 4, per_token: 2, aux_loss: 0.0 });
        let spec = ModelSpec { experts, ..Preset::Tiny.model(256) };
        let tensors = mixtral(&spec);
        let fit = |tensors: &[Shaped]| Fit::new(tensors, &BTreeSet::new(), &spec.into());
        let found = fit(&tensors).unwrap();
        let fragments = Fragments::plan(&found.layout, NonZeroU16::new(5).unwrap());
        // Each value lies in one fragment, at one place.
        for places in [fragments.ids().flat_map(|id| found.places(&fragments, id)).collect(), found.whole()] {
            let mut seen: Vec<Vec<bool>> = tensors
                .iter()
                .map(|tensor| vec![false; tensor.shape.iter().product::<u64>() as usize])
                .collect();
            for Place { tensor, start, stop } in places {
                let part = &mut seen[tensor][start..stop];
                assert!(!part.contains(&true));
                part.fill(true);
            }
            assert!(!seen.concat().contains(&false));
        }
        // Of an expert the gate comes before the projection up, and both before those of the next one.
        let (c, f) = (spec.d_model as usize, spec.d_ff as usize);
        let spot = |name: &str| {
            let name = format!("model.layers.1.block_sparse_moe.{name}.weight");
            let at = found.layout.tensors().iter().position(|tensor| tensor.name == name).unwrap();
            (
                tensors[found.spots[at].tensor].name.trim_start_matches("model.layers.1."),
                found.spots[at].start,
            )
        };
        assert_eq!(spot("gate"), ("mlp.gate.weight", 0));
        assert_eq!(spot("experts.3.w1"), ("mlp.experts.gate_up_proj", 6 * f * c));
        assert_eq!(spot("experts.3.w3"), ("mlp.experts.gate_up_proj", 7 * f * c));
        assert_eq!(spot("experts.3.w2"), ("mlp.experts.down_proj", 3 * f * c));

        let at = tensors.iter().position(|tensor| tensor.name.ends_with("0.mlp.experts.down_proj")).unwrap();
        let mut wrong = tensors.clone();
        wrong[at].shape.swap(1, 2);
        let error = fit(&wrong).unwrap_err();
        let FitError::Shape { name, wanted, .. } = &error else { panic!("{error}") };
        assert_eq!((name, wanted), (&tensors[at].name, &tensors[at].shape));
        wrong.remove(at);
        assert!(matches!(fit(&wrong), Err(FitError::Missing { names }) if names.len() == 4));
        // A dense model has none of them.
        let extra = [decoder(), vec![tensors[at].clone()]].concat();
        let error = Fit::new(&extra, &BTreeSet::new(), &Preset::Tiny.model(256).into()).unwrap_err();
        assert_eq!(error, FitError::Unknown { names: vec![tensors[at].name.clone()] });
    }

    #[test]
    fn what_does_not_fit_is_told_in_a_sentence() {
        let check = |tensors: &[Shaped], mean: &[&str], part: &str| {
            let error = fit(tensors, mean).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        let whole = decoder();
        check(&whole[1..], &[], "also has the tensor model.norm.weight: pass");
        check(&whole[5..], &[], " and 2 more: pass every");
        check(
            &[&whole[..], &[shaped("lm_head.weight", &[256, 64])]].concat(),
            &[],
            "no tensor lm_head.weight",
        );
        let mut wide = whole.clone();
        wide[0].shape = vec![7];
        check(&wide, &[], "tensor model.norm.weight is [7], and [");
        check(&[shaped("w", &[2])], &["v"], "`mean` names v, which");
        check(&[shaped("w", &[2, 0])], &[], "tensor w has no values");
        check(&[shaped("w", &[1 << 33])], &[], "more than 4294967295 parameters");
        check(&[], &[], "at least one tensor");
    }
}
