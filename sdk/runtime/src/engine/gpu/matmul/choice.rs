//! What a trial found out, to be kept.

use serde::{Deserialize, Serialize};

use super::{Best, Matmul};
use crate::engine::gpu::Gpu;

/// The best variants for each form on one device with one driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Name of the adapter.
    pub adapter: String,
    /// Driver and version.
    pub driver: String,
    /// For `A Bᵀ`, one for each size that was tried.
    pub nt: Vec<Best>,
    /// For `A B`.
    pub nn: Vec<Best>,
    /// For `Aᵀ B`.
    pub tn: Vec<Best>,
    /// Whether those on units for matrices were tried.
    pub matrices: bool,
    /// Whether attention is right on them.
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
    /// A form without a variant, as no trial leaves it.
    #[error("the kernels of a form of products are missing: choose again")]
    Empty,
}

impl Matmul {
    /// As `choice` says.
    ///
    /// # Errors
    /// [`ChoiceError::Adapter`] and [`ChoiceError::Driver`]: it was made on another device than `gpu`.
    /// [`ChoiceError::Matrices`]: among other kernels. [`ChoiceError::Empty`]: it says nothing of a form.
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
        if best.iter().any(Vec::is_empty) {
            return Err(ChoiceError::Empty);
        }
        Ok(Self::of(best).at(*gflops).suited(gpu).with_strips(*strips))
    }

    /// What to keep, for [`Self::from_choice`].
    #[must_use]
    pub fn choice(&self, gpu: &Gpu) -> Choice {
        let (adapter, driver) = (gpu.facts().name.clone(), gpu.facts().driver.clone());
        let ([nt, nn, tn], strips, gflops) = (self.best.clone(), self.strips, self.gflops);
        Choice { adapter, driver, nt, nn, tn, matrices: gpu.has_matrices(), strips, gflops }
    }
}
