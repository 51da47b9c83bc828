//! File with the initial parameters of a custom model's run: `syncer-server serve --params FILE`.

use std::collections::BTreeSet;
use std::path::Path;

use safetensors::tensor::{SafeTensorError, TensorView};
use safetensors::{Dtype, serialize_to_file};

use crate::tensors::{TensorShape, matrix, unwrapped};

/// Tensor with its values as 32-bit little-endian floats.
#[derive(Clone, Debug)]
pub struct TensorValues {
    /// Name and shape.
    pub shaped: TensorShape,
    /// Values, row-major.
    pub bytes: Vec<u8>,
}

/// Reason why the file cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A tensor in `mean` does not exist.
    #[error("`mean` names {name}, which is not among the tensors")]
    Mean {
        /// Name in `mean`.
        name: String,
    },
    /// The file cannot be written.
    #[error("cannot write the file of tensors: {0}")]
    File(#[from] SafeTensorError),
}

/// Writes `tensors` to `path`, each as a vector or a matrix, in the format that syncer and learners read. Tensors
/// named in `mean` are merged by the mean, all others radially. Prefixes of PyTorch's wrappers ([`unwrapped`]) are
/// removed from names, unless two tensors would then have the same name.
///
/// # Errors
/// Each variant of [`WriteError`].
pub fn write(path: &Path, tensors: &[TensorValues], mean: &BTreeSet<String>) -> Result<(), WriteError> {
    let bare: BTreeSet<String> = tensors.iter().map(|tensor| unwrapped(&tensor.shaped.name)).collect();
    let is_unique = bare.len() == tensors.len();
    let written = |name: &str| if is_unique { unwrapped(name) } else { name.to_owned() };
    let names: BTreeSet<String> = tensors.iter().map(|tensor| written(&tensor.shaped.name)).collect();
    if let Some(name) = mean.iter().find(|name| !names.contains(&written(name))) {
        return Err(WriteError::Mean { name: name.clone() });
    }
    let mut views = Vec::new();
    for TensorValues { shaped, bytes } in tensors {
        let [rows, cols] = matrix(&shaped.shape).map(|size| size as usize);
        let sizes = if rows == 1 { vec![cols] } else { vec![rows, cols] };
        views.push((written(&shaped.name), TensorView::new(Dtype::F32, sizes, bytes)?));
    }
    let notes = mean.iter().map(|name| (format!("merge.{}", written(name)), "mean".to_owned())).collect();
    Ok(serialize_to_file(views, Some(notes), path)?)
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;

    fn filled(name: &str, shape: &[u64]) -> TensorValues {
        let len = 4 * shape.iter().product::<u64>() as usize;
        TensorValues { shaped: TensorShape { name: name.into(), shape: shape.into() }, bytes: vec![0; len] }
    }

    #[test]
    fn holds_vectors_and_matrices_and_how_they_are_merged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let tensors = [filled("module.conv", &[4, 3, 2]), filled("row", &[1, 5]), filled("scale", &[])];
        write(&path, &tensors, &["row".to_owned()].into()).unwrap();

        let bytes = std::fs::read(&path).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        let shape = |name: &str| read.tensor(name).unwrap().shape().to_vec();
        assert_eq!([shape("conv"), shape("row"), shape("scale")], [vec![4, 6], vec![5], vec![1]]);
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(header.metadata().as_ref().unwrap()["merge.row"], "mean");

        let nobody = write(&path, &tensors, &["column".to_owned()].into());
        assert!(matches!(nobody, Err(WriteError::Mean { .. })), "{nobody:?}");
    }
}
