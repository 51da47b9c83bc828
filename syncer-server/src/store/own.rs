//! The model of a run: the built-in decoder, or tensors that only learners know the meaning of.

use archipelago::diloco::{Layout, MergeClass, Tensor};
use archipelago::model;
use serde::{Deserialize, Serialize};

use super::Manifest;
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
}

impl Manifest {
    /// Whether the model is the built-in decoder, so that this program can compute with it.
    #[must_use]
    pub fn is_decoder(&self) -> bool {
        self.tensors.is_none()
    }

    /// Where each parameter of the model lies.
    ///
    /// # Errors
    /// `Internal`: what is kept is no model.
    pub fn layout(&self) -> Result<Layout, ServerError> {
        let no_model =
            |error: String| ServerError::Internal { what: format!("the run has no model: {error}") };
        let Some(tensors) = &self.tensors else {
            return model::layout(&self.spec.model).map_err(|error| no_model(error.to_string()));
        };
        let of = |tensor: &NamedTensor| Tensor {
            name: tensor.name.clone(),
            rows: tensor.rows,
            cols: tensor.cols,
            merge: tensor.merge,
        };
        Layout::new(tensors.iter().map(of).collect()).map_err(|error| no_model(error.to_string()))
    }
}
