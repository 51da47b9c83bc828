//! The tensors of a model that only learners know the meaning of.

use archipelago_core::diloco::{Layout, MergeClass, Tensor};
use serde::{Deserialize, Serialize};

use crate::errors::ServerError;

/// A tensor of a model that is not the built-in decoder. See [`Tensor`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedTensor {
    /// Unique within the model.
    pub name: String,
    /// Rows; a vector has one.
    pub rows: u32,
    /// Columns.
    pub cols: u32,
    /// How its updates are merged.
    pub merge: MergeClass,
}

impl NamedTensor {
    /// The tensors of `layout`, in order.
    #[must_use]
    pub fn all(layout: &Layout) -> Vec<Self> {
        let of = |tensor: &Tensor| Self {
            name: tensor.name.clone(),
            rows: tensor.rows,
            cols: tensor.cols,
            merge: tensor.merge,
        };
        layout.tensors().iter().map(of).collect()
    }

    /// Where each parameter of a model of these tensors lies.
    ///
    /// # Errors
    /// `Internal`: they are no model.
    pub(super) fn layout(tensors: &[Self]) -> Result<Layout, ServerError> {
        let of = |tensor: &Self| Tensor {
            name: tensor.name.clone(),
            rows: tensor.rows,
            cols: tensor.cols,
            merge: tensor.merge,
        };
        Layout::new(tensors.iter().map(of).collect())
            .map_err(|error| ServerError::Internal { what: format!("the run has no model: {error}") })
    }
}
