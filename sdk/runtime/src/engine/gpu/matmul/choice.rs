//! What a trial found out, to be kept.

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
    /// For `A Bᵀ`, one for each size of a product of the model, of which as much was tried as is worth it.
    pub nt: Vec<Best>,
    /// For `A B`.
    pub nn: Vec<Best>,
    /// For `Aᵀ B`.
    pub tn: Vec<Best>,
    /// Whether those on units for matrices were tried.
    pub matrices: bool,
    /// Whether attention won on them.
    pub strips: bool,
    /// What the slowest form reached, in 10⁹ floating-point operations a second.
    pub gflops: u32,
}

/// Why a choice says nothing about a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// It was made on another adapter.
    #[error("the kernels were chosen for {chosen:?}, and this is {found:?}: choose again")]
    Adapter {
        /// The one that it was made on.
        chosen: String,
        /// The one here.
        found: String,
    },
    /// The driver has changed since.
    #[error("the kernels were chosen with driver {chosen:?}, and this is {found:?}: choose again")]
    Driver {
        /// The one that it was made with.
        chosen: String,
        /// The one here.
        found: String,
    },
    /// Units for matrices may be used now, and might not then; or the other way around.
    #[error("the kernels were chosen {} units for matrices: choose again", if *.tried { "with" } else { "without" })]
    Matrices {
        /// Whether they were tried.
        tried: bool,
    },
    /// No trial leads to it: it says nothing of a form, or has kernels for units for matrices that were not tried. Or
    /// what was chosen is not right on the device any more.
    #[error("the kernels that were chosen make no sense, or give wrong results here: choose again")]
    Wrong,
}

impl Matmul {
    /// As `choice` says.
    ///
    /// # Errors
    /// [`ChoiceError::Adapter`] and [`ChoiceError::Driver`]: it was made on another device than `gpu`.
    /// [`ChoiceError::Matrices`]: among other kernels. [`ChoiceError::Wrong`]: it makes no sense.
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

    /// Whether the variants that round to 16 bits are still right on `gpu`: drivers and kernels change.
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

    /// What to keep, for [`Self::from_choice`].
    #[must_use]
    pub fn choice(&self, gpu: &Gpu) -> Choice {
        let (adapter, driver) = (gpu.facts().name.clone(), gpu.facts().driver.clone());
        let ([nt, nn, tn], strips, gflops) = (self.best.clone(), self.strips, self.gflops);
        Choice { adapter, driver, nt, nn, tn, matrices: gpu.has_matrices(), strips, gflops }
    }
}
