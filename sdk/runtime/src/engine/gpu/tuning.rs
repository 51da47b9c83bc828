//! Tuning: the choice of kernels for a model on a device, measured once.

use serde::{Deserialize, Serialize};

use super::Gpu;
use super::attention::{self, Sizes};
use super::matmul::{Choice, ChoiceError, Form, Matmul, Trial};
use crate::engine::EngineError;
use crate::model::ModelSpec;
use crate::wire::RunSpec;

/// Tuning result for one model shape on one device: the fastest kernels of matrix products, and whether attention is
/// faster on matrix units. Programs store it for later sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// Number of tokens in a batch.
    pub rows: u32,
    /// Width of the model, C.
    pub width: u32,
    /// Width of the feed-forward layer, F.
    pub ff: u32,
    /// Device, and the kernels chosen for it.
    pub choice: Choice,
}

/// Kernels for an engine, and how they were chosen.
#[derive(Debug)]
pub struct TunedKernels {
    /// Matrix products with the chosen kernels.
    pub matmul: Matmul,
    /// Tuning result to store for later sessions.
    pub tuning: Tuning,
    /// Measurements; empty if a stored result was used.
    pub trials: Vec<Trial>,
    /// Reason why a stored result for this shape cannot be used on this device, if there was one.
    pub stale: Option<ChoiceError>,
}

impl Tuning {
    /// Returns true if `newer` has the same shape and adapter.
    #[must_use]
    pub fn is_replaced_by(&self, newer: &Self) -> bool {
        self.shape() == newer.shape() && self.choice.adapter == newer.choice.adapter
    }

    fn shape(&self) -> [u32; 3] {
        [self.rows, self.width, self.ff]
    }
}

/// Returns the sizes of attention for a step of `model` with `batch` windows.
fn attention_sizes(model: &ModelSpec, batch: u32) -> Sizes {
    let ModelSpec { context, heads, kv_heads, d_model, .. } = *model;
    Sizes { windows: batch, context, heads, kv_heads, head: d_model / heads }
}

/// Chooses the kernels for the run that `spec` describes on `gpu`. Uses a result in `known` if it applies and its
/// kernels on matrix units are still correct; otherwise measures. `now_us` returns microseconds since an arbitrary
/// origin.
///
/// # Errors
/// - [`EngineError::Model`]: the model of `spec` is invalid.
/// - [`EngineError::Gpu`], [`EngineError::Lost`]: those of [`Matmul::choose`].
pub async fn tune(
    gpu: &Gpu,
    spec: &RunSpec,
    known: &[Tuning],
    now_us: &dyn Fn() -> u64,
) -> Result<TunedKernels, EngineError> {
    let model = ModelSpec::of(&spec.model)?;
    let rows = spec.inner.batch.saturating_mul(model.context).max(1);
    let (width, ff) = (model.d_model, model.d_ff);
    let mut stale = None;
    let sizes = attention_sizes(&model, spec.inner.batch);
    for tuning in known.iter().filter(|tuning| tuning.shape() == [rows, width, ff]) {
        match Matmul::from_choice(gpu, &tuning.choice) {
            Ok(matmul) => {
                let attends = !matmul.strips || attention::agrees(gpu, sizes).await?;
                if attends && matmul.agrees(gpu).await? {
                    return Ok(TunedKernels {
                        matmul,
                        tuning: tuning.clone(),
                        trials: Vec::new(),
                        stale: None,
                    });
                }
                stale = Some(ChoiceError::Wrong);
            }
            Err(error) => stale = Some(error),
        }
    }
    // The products of the widest matrix of a layer and of a square matrix represent all products.
    let (square, wide) = (width, 2 * ff);
    let shapes = [
        (Form::Nt, rows, wide, width),
        (Form::Nt, rows, square, width),
        (Form::Nn, rows, width, wide),
        (Form::Nn, rows, width, square),
        (Form::Tn, wide, width, rows),
        (Form::Tn, square, width, rows),
    ];
    let (matmul, trials) = Matmul::choose(gpu, &shapes, now_us).await?;
    let matmul = matmul.with_strips(attention::is_faster(gpu, sizes, now_us).await?);
    let choice = matmul.choice(gpu);
    Ok(TunedKernels { matmul, tuning: Tuning { rows, width, ff, choice }, trials, stale })
}
