//! Tensors of a program, and the positions of a run's parameters in them.

use std::ops::Range;

use archipelago::model::{Fragments, Layout, LayoutError, Model, Tensor};
use archipelago::wire::FragmentId;

/// Maximum number of names in one sentence; further names are counted.
const NAMED_MAX: usize = 3;

/// Name and shape of a tensor of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorShape {
    /// Name, unique within the program.
    pub name: String,
    /// Sizes, outermost first.
    pub shape: Vec<u64>,
}

/// Mismatch between a program's tensors and a run's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// The program's tensors are not those of the run.
    #[error("{}", names_differ(.missing, .unknown))]
    Names {
        /// Names that only the run has, in the run's order.
        missing: Vec<String>,
        /// Names that only the program has, in the program's order.
        unknown: Vec<String>,
    },
    /// A tensor has another shape in the run.
    #[error("tensor {name} is {found:?}, but {wanted:?} in the run: build the model with the run's sizes")]
    Shape {
        /// Name of the tensor in the program.
        name: String,
        /// Shape in the program.
        found: Vec<u64>,
        /// Shape in the run.
        wanted: Vec<u64>,
    },
    /// The run's tensors do not form a valid layout.
    #[error("the run's tensors cannot be laid out: {0}")]
    Layout(#[from] LayoutError),
}

/// Part of one of the program's tensors, as a range of row-major indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorSlice {
    /// Index of the tensor, in the order of the program.
    pub tensor: usize,
    /// Index of the first value.
    pub start: usize,
    /// Index after the last value.
    pub stop: usize,
}

/// Position where one of the run's tensors starts.
#[derive(Clone, Copy, Debug)]
struct TensorStart {
    /// Index of the program's tensor, in the order of the program.
    tensor: usize,
    /// Index of the first value in this tensor, row-major.
    start: usize,
}

impl TensorStart {
    /// Returns the slice for `range`, which is relative to this start.
    fn place(self, range: Range<usize>) -> TensorSlice {
        TensorSlice { tensor: self.tensor, start: self.start + range.start, stop: self.start + range.end }
    }
}

/// Positions of a run's parameters in a program's tensors.
#[derive(Clone, Debug)]
pub struct ParameterMap {
    /// Layout of the run.
    pub layout: Layout,
    /// Start of each tensor of the layout, in the order of the layout.
    starts: Vec<TensorStart>,
}

impl ParameterMap {
    /// Maps `tensors` to the parameters of `model`, the model of a run. Names may have the prefixes of PyTorch's
    /// wrappers ([`unwrapped`]). In a model with experts, the tensors may be those of `transformers`, which keeps all
    /// experts of a layer in two tensors ([`FusedMatrix`]). A tensor with more than two sizes corresponds to a matrix
    /// of the run ([`matrix`]).
    ///
    /// # Errors
    /// Each variant of [`FitError`].
    pub fn new(tensors: &[TensorShape], model: &Model) -> Result<Self, FitError> {
        let layout = Layout::new(model.tensors.clone())?;
        let experts = model.experts.map_or(0, |experts| experts.count.into());
        let (mut missing, mut misshapen, mut starts) = (Vec::new(), None, Vec::new());
        for tensor in layout.tensors() {
            let Some((start_at, fits, wanted)) = find(tensors, tensor, experts) else {
                missing.push(tensor.name.clone());
                continue;
            };
            if !fits {
                let TensorShape { name, shape } = tensors[start_at.tensor].clone();
                misshapen.get_or_insert(FitError::Shape { name, found: shape, wanted });
            }
            starts.push(start_at);
        }
        let is_used = |at: usize| starts.iter().any(|start_at: &TensorStart| start_at.tensor == at);
        let unknown = tensors.iter().enumerate().filter(|(at, _)| !is_used(*at));
        let unknown: Vec<String> = unknown.map(|(_, tensor)| tensor.name.clone()).collect();
        if !missing.is_empty() || !unknown.is_empty() {
            return Err(FitError::Names { missing, unknown });
        }
        misshapen.map_or(Ok(Self { layout, starts }), Err)
    }

    /// Returns the slices with all values, in the order of the layout.
    #[must_use]
    pub fn whole(&self) -> Vec<TensorSlice> {
        let tensors = self.layout.tensors().iter().zip(&self.starts);
        tensors.map(|(of, start_at)| start_at.place(0..of.len() as usize)).collect()
    }

    /// Returns the slices with the values of `fragment`, in the order of these values.
    #[must_use]
    pub fn places(&self, fragments: &Fragments, fragment: FragmentId) -> Vec<TensorSlice> {
        let starts: Vec<usize> = self.layout.offsets().map(|(start, _)| start as usize).collect();
        let segments = fragments.segments(fragment).unwrap_or_default();
        let place = |range: Range<usize>| {
            // A segment is a tensor, or some rows of one.
            let at = starts.partition_point(|start| *start <= range.start) - 1;
            self.starts[at].place(range.start - starts[at]..range.end - starts[at])
        };
        segments.iter().map(|segment| place(segment.range())).collect()
    }

    /// Returns the name of the run's tensor that has the value at `index` of `fragment`.
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

/// Finds the run's tensor `wanted` in `tensors`. Returns its start, whether its shape is right, and the right shape.
/// An exactly equal name has priority over one that is equal without wrappers.
fn find(tensors: &[TensorShape], wanted: &Tensor, experts: u64) -> Option<(TensorStart, bool, Vec<u64>)> {
    let Tensor { name, rows, cols, .. } = wanted;
    let position = |name: &str| {
        let bare = unwrapped(name);
        let exact = tensors.iter().position(|tensor| tensor.name == name);
        exact.or_else(|| tensors.iter().position(|tensor| unwrapped(&tensor.name) == bare))
    };
    if let Some(tensor) = position(name) {
        let sizes = [u64::from(*rows), u64::from(*cols)];
        let fits = matrix(&tensors[tensor].shape) == sizes;
        return Some((TensorStart { tensor, start: 0 }, fits, sizes[usize::from(*rows == 1)..].to_vec()));
    }
    let FusedMatrix { whole, shape, start } = FusedMatrix::of(name, *rows, *cols, experts)?;
    let tensor = position(&whole)?;
    Some((TensorStart { tensor, start }, tensors[tensor].shape == shape, shape))
}

/// Components that `torch.compile`, FSDP and activation checkpointing insert anywhere in names of parameters.
const WRAPPERS: &[&str] = &["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"];

/// Component that DDP and `DataParallel` add at the front of names of parameters.
const FRONT_WRAPPER: &str = "module";

/// Components that PEFT adds at the front of names of parameters.
const PEFT_WRAPPERS: [&str; 2] = ["base_model", "model"];

/// Name of a factor of an adapter, which PEFT follows with the adapter's name.
const FACTORS: [&str; 2] = ["lora_A", "lora_B"];

/// Returns `name` without the components that PEFT and PyTorch's module wrappers add.
#[must_use]
pub fn unwrapped(name: &str) -> String {
    let mut parts: Vec<&str> = name.split('.').filter(|part| !WRAPPERS.contains(part)).collect();
    if let [.., factor, _, _] = parts[..]
        && FACTORS.contains(&factor)
    {
        parts.remove(parts.len() - 2);
    }
    if let Some(at) = parts.windows(2).position(|pair| pair == PEFT_WRAPPERS) {
        parts.drain(..at + 2);
    }
    let front = parts.iter().take_while(|part| **part == FRONT_WRAPPER).count();
    parts.drain(..front.min(parts.len().saturating_sub(1)));
    parts.join(".")
}

/// Returns the rows and columns that correspond to `shape`. A scalar or a vector has one row. If there are more than
/// two sizes, all but the first are multiplied.
#[must_use]
pub fn matrix(shape: &[u64]) -> [u64; 2] {
    match shape {
        [] => [1, 1],
        [cols] => [1, *cols],
        [rows, cols @ ..] => [*rows, cols.iter().product()],
    }
}

/// Returns the message of [`FitError::Names`].
fn names_differ(missing: &[String], unknown: &[String]) -> String {
    match (missing, unknown) {
        (_, []) => format!("the run also has the {}: pass every parameter of the model", listed(missing)),
        ([], _) => format!("the run has no {}: leave out parameters that it does not train", listed(unknown)),
        _ => format!(
            "the run has the {}, which you did not give, and it has no {}: build the model that the run trains, and \
             pass its parameters under the run's names",
            listed(missing),
            listed(unknown)
        ),
    }
}

/// Returns "tensor" or "tensors" and the first few names.
fn listed(names: &[String]) -> String {
    let what = if names.len() == 1 { "tensor" } else { "tensors" };
    let shown = names.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => format!("{what} {shown}"),
        more => format!("{what} {shown} and {more} more"),
    }
}

/// Position of one of the run's matrices in a tensor with another name and shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusedMatrix {
    /// Name of the whole tensor.
    pub whole: String,
    /// Shape of the whole tensor.
    pub shape: Vec<u64>,
    /// Index of the matrix's first value in the whole tensor, row-major.
    pub start: usize,
}

impl FusedMatrix {
    /// Returns the position of the run's matrix `name`, `[rows, cols]`, in a model with `experts` experts in each
    /// layer. Returns `None` if `transformers` has the matrix under the same name.
    ///
    /// `gate_up_proj` is `[experts, 2 F, C]`; for each expert, the first half is `w1` and the second half `w3`.
    /// `down_proj` is `[experts, C, F]`; the part of each expert is `w2`. The router, `[experts, C]`, has only
    /// another name.
    #[must_use]
    pub fn of(name: &str, rows: u32, cols: u32, experts: u64) -> Option<Self> {
        let (stem, of_layer) = name.split_once(".block_sparse_moe.")?;
        let (rows, cols) = (u64::from(rows), u64::from(cols));
        if of_layer == "gate.weight" {
            return Some(Self {
                whole: format!("{stem}.mlp.gate.weight"),
                shape: vec![rows, cols],
                start: 0,
            });
        }
        let (expert, matrix) = of_layer.strip_prefix("experts.")?.split_once('.')?;
        let expert: u64 = expert.parse().ok()?;
        let (whole, stacked, half) = match matrix {
            "w1.weight" => ("gate_up_proj", 2, 0),
            "w3.weight" => ("gate_up_proj", 2, 1),
            "w2.weight" => ("down_proj", 1, 0),
            _ => return None,
        };
        let start = usize::try_from((expert * stacked + half) * rows * cols).ok()?;
        let shape = vec![experts, stacked * rows, cols];
        Some(Self { whole: format!("{stem}.mlp.experts.{whole}"), shape, start })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use archipelago::model::{ExpertSpec, MergeClass, ModelSpec, Preset, layout};

    use super::*;

    fn shaped(name: &str, shape: &[u64]) -> TensorShape {
        TensorShape { name: name.into(), shape: shape.into() }
    }

    /// Returns the tensors of the built-in decoder as in a program: in another order, and vectors with one size.
    fn decoder() -> Vec<TensorShape> {
        let layout = layout(&Preset::Tiny.model(256)).unwrap();
        let of = |tensor: &Tensor| {
            let sizes = [u64::from(tensor.rows), u64::from(tensor.cols)];
            shaped(&tensor.name, &sizes[usize::from(tensor.rows == 1)..])
        };
        layout.tensors().iter().rev().map(of).collect()
    }

    fn fit(tensors: &[TensorShape]) -> Result<ParameterMap, FitError> {
        ParameterMap::new(tensors, &Preset::Tiny.model(256).into())
    }

    /// Returns a custom model with these tensors, each given by name, rows and columns.
    fn own(tensors: &[(&str, u32, u32)]) -> Model {
        let tensor = |&(name, rows, cols): &(&str, u32, u32)| Tensor {
            name: name.into(),
            rows,
            cols,
            merge: MergeClass::Radial,
        };
        Model {
            context: 4,
            vocab: 256,
            tensors: tensors.iter().map(tensor).collect(),
            architecture: archipelago::model::Architecture::default(),
            experts: None,
        }
    }

    #[test]
    fn tensors_are_mapped_in_the_order_of_the_run() {
        let tensors = [shaped("w", &[4, 3, 2]), shaped("b", &[5]), shaped("s", &[])];
        let model = own(&[("b", 1, 5), ("s", 1, 1), ("w", 4, 6)]);
        let fit = ParameterMap::new(&tensors, &model).unwrap();
        assert_eq!(fit.layout.tensors(), model.tensors);

        let fragments = Fragments::plan(&fit.layout, NonZeroU16::new(3).unwrap());
        let mut seen: Vec<TensorSlice> = fragments.ids().flat_map(|id| fit.places(&fragments, id)).collect();
        seen.sort_by_key(|place| (place.tensor, place.start));
        let of = |tensor| seen.iter().filter(move |place| place.tensor == tensor);
        assert_eq!(of(0).map(|place| place.stop - place.start).sum::<usize>(), 24);
        assert!(of(0).count() > 1, "a large tensor is cut at rows: {seen:?}");
        assert_eq!(of(1).collect::<Vec<_>>(), [&TensorSlice { tensor: 1, start: 0, stop: 5 }]);
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
        let fit = fit(&decoder()).unwrap();
        assert_eq!(fit.layout, layout(&Preset::Tiny.model(256)).unwrap());
        let first = &decoder()[fit.starts[0].tensor];
        assert_eq!(first.name, "model.embed_tokens.weight");
    }

    /// Returns the tensors of a Mixtral in `transformers`.
    fn mixtral(model: &ModelSpec) -> Vec<TensorShape> {
        let (c, f, experts) = (model.d_model.into(), model.d_ff.into(), 4);
        let mut tensors: Vec<TensorShape> = Vec::new();
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
        let fit = |tensors: &[TensorShape]| ParameterMap::new(tensors, &spec.into());
        let found = fit(&tensors).unwrap();
        let fragments = Fragments::plan(&found.layout, NonZeroU16::new(5).unwrap());
        // Each value is at exactly one position, and in one fragment.
        for places in [fragments.ids().flat_map(|id| found.places(&fragments, id)).collect(), found.whole()] {
            let mut seen: Vec<Vec<bool>> = tensors
                .iter()
                .map(|tensor| vec![false; tensor.shape.iter().product::<u64>() as usize])
                .collect();
            for TensorSlice { tensor, start, stop } in places {
                let part = &mut seen[tensor][start..stop];
                assert!(!part.contains(&true));
                part.fill(true);
            }
            assert!(!seen.concat().contains(&false));
        }
        // The gate of an expert comes before its up-projection, and both come before those of the next expert.
        let (c, f) = (spec.d_model as usize, spec.d_ff as usize);
        let start_at = |name: &str| {
            let name = format!("model.layers.1.block_sparse_moe.{name}.weight");
            let at = found.layout.tensors().iter().position(|tensor| tensor.name == name).unwrap();
            (
                tensors[found.starts[at].tensor].name.trim_start_matches("model.layers.1."),
                found.starts[at].start,
            )
        };
        assert_eq!(start_at("gate"), ("mlp.gate.weight", 0));
        assert_eq!(start_at("experts.3.w1"), ("mlp.experts.gate_up_proj", 6 * f * c));
        assert_eq!(start_at("experts.3.w3"), ("mlp.experts.gate_up_proj", 7 * f * c));
        assert_eq!(start_at("experts.3.w2"), ("mlp.experts.down_proj", 3 * f * c));

        let at = tensors.iter().position(|tensor| tensor.name.ends_with("0.mlp.experts.down_proj")).unwrap();
        let mut wrong = tensors.clone();
        wrong[at].shape.swap(1, 2);
        let error = fit(&wrong).unwrap_err();
        let FitError::Shape { name, wanted, .. } = &error else { panic!("{error}") };
        assert_eq!((name, wanted), (&tensors[at].name, &tensors[at].shape));
        wrong.remove(at);
        assert!(matches!(fit(&wrong), Err(FitError::Names { missing, .. }) if missing.len() == 4));
        // A dense model has no such tensors.
        let extra = [decoder(), vec![tensors[at].clone()]].concat();
        let error = ParameterMap::new(&extra, &Preset::Tiny.model(256).into()).unwrap_err();
        assert_eq!(error, FitError::Names { missing: vec![], unknown: vec![tensors[at].name.clone()] });
    }

    #[test]
    fn mismatches_name_the_tensors_and_the_remedy() {
        let check = |tensors: &[TensorShape], part: &str| {
            let error = fit(tensors).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        let whole = decoder();
        check(&whole[1..], "also has the tensor model.norm.weight: pass");
        check(&whole[5..], " and 2 more: pass every");
        let head = shaped("lm_head.weight", &[256, 64]);
        check(&[&whole[..], std::slice::from_ref(&head)].concat(), "no tensor lm_head.weight");
        check(
            &[&whole[1..], &[head]].concat(),
            "the tensor model.norm.weight, which you did not give, and it has no tensor lm_head",
        );
        let mut wide = whole.clone();
        wide[0].shape = vec![7];
        check(&wide, "tensor model.norm.weight is [7], but [");
        check(&[], "pass every parameter of the model");
        let error = ParameterMap::new(&[shaped("w", &[2])], &own(&[("w", 2, 0)])).unwrap_err();
        assert!(error.to_string().contains("tensor w has no values"), "{error}");
    }

    #[test]
    fn wrappers_of_modules_change_no_name() {
        for prefix in
            ["_orig_mod.", "module.", "module._orig_mod.", "_fsdp_wrapped_module.", "module.module."]
        {
            let wrapped = |tensor: &TensorShape| shaped(&format!("{prefix}{}", tensor.name), &tensor.shape);
            let wrapped: Vec<TensorShape> = decoder().iter().map(wrapped).collect();
            assert_eq!(fit(&wrapped).unwrap().layout, fit(&decoder()).unwrap().layout, "{prefix}");
        }
        assert_eq!(unwrapped("layers.0._checkpoint_wrapped_module.w"), "layers.0.w");
        assert_eq!(unwrapped("head.module.w"), "head.module.w");
        assert_eq!(unwrapped("module"), "module");
        let factor = "model.layers.0.mlp.up_proj.lora_B.weight";
        for prefix in ["", "base_model.model.", "module.base_model.model."] {
            assert_eq!(
                unwrapped(&format!("{prefix}{}", factor.replace(".weight", ".default.weight"))),
                factor
            );
            assert_eq!(unwrapped(&format!("{prefix}{factor}")), factor);
        }
        // The run's own names look like wrapped ones, because the model has a submodule named `module`.
        let model = own(&[("module.w", 1, 2), ("w", 1, 3)]);
        let fit = ParameterMap::new(&[shaped("w", &[3]), shaped("module.w", &[2])], &model).unwrap();
        assert_eq!(fit.starts.iter().map(|start_at| start_at.tensor).collect::<Vec<_>>(), [1, 0]);
    }
}
