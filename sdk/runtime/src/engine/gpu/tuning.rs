//! Kernels of matrix products that suit a model on a device, measured once.

use serde::{Deserialize, Serialize};

use super::Gpu;
use super::attention::{self, Sizes};
use super::matmul::{Choice, ChoiceError, Form, Matmul, Trial};
use crate::engine::EngineError;
use crate::model::ModelSpec;
use crate::wire::RunSpec;

/// Fastest kernels for products of one shape on one device, and whether attention is faster on matrix units. Stored for
/// later sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// Number of tokens in a step.
    pub rows: u32,
    /// C.
    pub width: u32,
    /// F.
    pub ff: u32,
    /// Device and chosen kernels.
    pub choice: Choice,
}

/// Kernels of an engine's products.
#[derive(Debug)]
pub struct TunedKernels {
    /// Matrix products of the engine.
    pub matmul: Matmul,
    /// Tuning to store for later sessions.
    pub tuning: Tuning,
    /// Measurements; empty if the choice was already known.
    pub trials: Vec<Trial>,
    /// Reason why an earlier choice for products of this shape cannot be used on this device.
    pub stale: Option<ChoiceError>,
}

impl Tuning {
    /// Returns true if both have the same shape and adapter.
    #[must_use]
    pub fn is_replaced_by(&self, newer: &Self) -> bool {
        self.shape() == newer.shape() && self.choice.adapter == newer.choice.adapter
    }

    fn shape(&self) -> [u32; 3] {
        [self.rows, self.width, self.ff]
    }
}

/// Returns the sizes of attention for a step of `model` on `batch` windows.
fn attention_sizes(model: &ModelSpec, batch: u32) -> Sizes {
    let ModelSpec { context, heads, kv_heads, d_model, .. } = *model;
    Sizes { windows: batch, context, heads, kv_heads, head: d_model / heads }
}

/// Takes the `known` tuning for a step of `spec` on `gpu`, if its matrix-unit kernels are still correct; otherwise
/// measures. `now_us` returns microseconds since an arbitrary time.
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
    // The widest matrix of a layer and a square one represent all.
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
    let matmul = matmul.with_strips(attention::wins(gpu, sizes, now_us).await?);
    let choice = matmul.choice(gpu);
    Ok(TunedKernels { matmul, tuning: Tuning { rows, width, ff, choice }, trials, stale })
}
