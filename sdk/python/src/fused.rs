//! Positions of the run's expert matrices in a Mixtral of `transformers` since its version 5. There the gates and
//! up-projections of all experts of a layer are one tensor, and the down-projections another one.

/// One of the run's matrices within a tensor of another name and shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusedMatrix {
    /// Name of the whole tensor.
    pub whole: String,
    /// Shape of the whole tensor.
    pub shape: Vec<u64>,
    /// Index of the first value there, row-major.
    pub start: usize,
}

impl FusedMatrix {
    /// Returns the position of the run's matrix `name`, `[rows, cols]`, in a model whose layers have `experts`. Returns
    /// `None` if the matrix is neither fused nor renamed.
    ///
    /// `gate_up_proj` is `[experts, 2 F, C]`; the upper half of each expert is `w1` and the lower one `w3`. `down_proj`
    /// is `[experts, C, F]`; each expert's part is `w2`. The router, `[experts, C]`, has another name.
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
