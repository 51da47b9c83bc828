//! Result of a trial, in the form in which it is stored.

use serde::{Deserialize, Serialize};

use super::{Best, Form, Matmul, agrees};
use crate::engine::gpu::{Gpu, GpuError};

/// The best variants for each form on one device with one driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Name of the adapter.
    pub adapter: String,
    /// Driver and version.
    pub driver: String,
    /// For `A Bᵀ`, one entry for each size of a product of the model. Large products were tried only in part.
    pub nt: Vec<Best>,
    /// For `A B`.
    pub nn: Vec<Best>,
    /// For `Aᵀ B`.
    pub tn: Vec<Best>,
    /// Whether variants on matrix units were tried.
    pub matrices: bool,
    /// Whether attention is faster on matrix units.
    pub strips: bool,
    /// Rate of the slowest form, in 10⁹ floating-point operations per second.
    pub gflops: u32,
}

/// Reason why a choice does not apply to a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// It was made on another adapter.
    #[error("the kernels were chosen for {chosen:?}, but this is {found:?}: choose again")]
    Adapter {
        /// Adapter of the choice.
        chosen: String,
        /// Adapter of this device.
        found: String,
    },
    /// The driver has changed since.
    #[error("the kernels were chosen with driver {chosen:?}, but this is {found:?}: choose again")]
    Driver {
        /// Driver of the choice.
        chosen: String,
        /// Driver of this device.
        found: String,
    },
    /// Permission to use matrix units has changed since the choice.
    #[error("the kernels were chosen {} matrix units: choose again", if *.tried { "with" } else { "without" })]
    Matrices {
        /// Whether matrix units were tried.
        tried: bool,
    },
    /// No trial leads to this choice: a form is missing, or it uses matrix-unit kernels that were not tried.
    /// Alternatively, the chosen kernels are no longer correct on the device.
    #[error("the chosen kernels are invalid, or give wrong results on this machine: choose again")]
    Wrong,
}

impl Matmul {
    /// Creates matrix products according to `choice`.
    ///
    /// # Errors
    /// - [`ChoiceError::Adapter`] and [`ChoiceError::Driver`]: the choice was made on another device than `gpu`.
    /// - [`ChoiceError::Matrices`]: the choice was made among other kernels.
    /// - [`ChoiceError::Wrong`]: the choice is inconsistent.
    pub fn from_choice(gpu: &Gpu, choice: &Choice) -> Result<Self, ChoiceError> {
        let Choice { adapter, driver, nt, nn, tn, matrices, strips, gflops } = choice;
        let facts = gpu.facts();
        if *adapter != facts.name {
            return Err(ChoiceError::Adapter { chosen: adapter.clone(), found: facts.name.clone() });
        }
        if *driver != facts.driver {
            return Err(ChoiceError::Driver { chosen: driver.clone(), found: facts.driver.clone() });
        }
        if *matrices != gpu.has_matrices() {
            return Err(ChoiceError::Matrices { tried: *matrices });
        }
        let best = [nt, nn, tn].map(Clone::clone);
        let on_matrices = *strips || best.iter().flatten().any(|best| best.variant.is_half());
        if best.iter().any(Vec::is_empty) || on_matrices && !matrices {
            return Err(ChoiceError::Wrong);
        }
        Ok(Self::of(best).at(*gflops).suited(gpu).with_strips(*strips))
    }

    /// Returns true if the variants that round to 16 bits are still correct on `gpu`, because drivers and kernels
    /// change.
    ///
    /// # Errors
    /// [`GpuError::Lost`] and [`GpuError::Refused`].
    pub(in crate::engine::gpu) async fn agrees(&self, gpu: &Gpu) -> Result<bool, GpuError> {
        for (form, best) in Form::ALL.into_iter().zip(&self.best) {
            for best in best.iter().filter(|best| best.variant.is_half()) {
                if !agrees(gpu, best.variant, form).await? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Returns the choice to store, for [`Self::from_choice`].
    #[must_use]
    pub fn choice(&self, gpu: &Gpu) -> Choice {
        let (adapter, driver) = (gpu.facts().name.clone(), gpu.facts().driver.clone());
        let ([nt, nn, tn], strips, gflops) = (self.best.clone(), self.strips, self.gflops);
        Choice { adapter, driver, nt, nn, tn, matrices: gpu.has_matrices(), strips, gflops }
    }
}
