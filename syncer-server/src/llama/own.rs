//! Layout of the tensors in parameter files of models other than the built-in decoder, derived from the files.

use archipelago_core::diloco::{Layout, MergeClass, Tensor};

use super::{LlamaError, Tensors};

/// Prefix of the metadata keys that set merge classes. The tensor's name follows it.
const MERGE: &str = "merge.";

/// Values of these metadata entries.
const CLASSES: [(&str, MergeClass); 2] = [("radial", MergeClass::Radial), ("mean", MergeClass::Mean)];

impl Tensors {
    /// Returns the layout of the tensors, ordered by name. Metadata entries set how a tensor is merged; the default is
    /// radial.
    ///
    /// # Errors
    /// - `Tensor`: a tensor is neither a vector nor a matrix, or its merge class is unknown.
    /// - `Form`: there are no tensors, or they have more than 2³² − 1 values together.
    pub fn layout(&self) -> Result<Layout, LlamaError> {
        let mut tensors = Vec::new();
        for (name, file, shape) in self.shapes() {
            let refused = |why: &str| LlamaError::tensor(name, file, why);
            let sizes: Option<Vec<u32>> = shape.iter().map(|&size| u32::try_from(size).ok()).collect();
            let (rows, cols) = match sizes.as_deref() {
                Some(&[cols]) => (1, cols),
                Some(&[1, _]) => return Err(refused("has one row: save it as a vector, with one dimension")),
                Some(&[rows, cols]) => (rows, cols),
                _ => {
                    let why = format!(
                        "has the shape {shape:?}: save it as a vector or a matrix, with one or two dimensions"
                    );
                    return Err(refused(&why));
                }
            };
            tensors.push(Tensor { name: name.to_owned(), rows, cols, merge: MergeClass::Radial });
        }
        for (key, value) in self.notes() {
            let Some(name) = key.strip_prefix(MERGE) else { continue };
            let refused = |why: &str| LlamaError::tensor(name, "the metadata", why);
            let tensor = tensors.iter_mut().find(|tensor| tensor.name == name);
            let tensor =
                tensor.ok_or_else(|| refused("has a merge rule in the metadata, but is not in the file"))?;
            let class = CLASSES.into_iter().find(|(known, _)| *known == value);
            tensor.merge = class.ok_or_else(|| refused("has an unknown merge rule: give radial or mean"))?.1;
        }
        Layout::new(tensors).map_err(|error| LlamaError::form("the file", error))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use safetensors::tensor::{Dtype, TensorView};

    use super::*;

    /// Returns the layout of a file whose tensors have these names and shapes, and with these metadata entries.
    fn layout(tensors: &[(&str, &[usize])], notes: &[(&str, &str)]) -> Result<Layout, LlamaError> {
        let dir = tempfile::tempdir().unwrap();
        let bytes = vec![0; 1 << 10];
        let views = tensors.iter().map(|(name, shape)| {
            let len = 4 * shape.iter().product::<usize>();
            (*name, TensorView::new(Dtype::F32, shape.to_vec(), &bytes[..len]).unwrap())
        });
        let notes = notes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        safetensors::serialize_to_file(views, Some(notes), &dir.path().join("a.safetensors")).unwrap();
        open(dir.path())?.layout()
    }

    fn open(dir: &Path) -> Result<Tensors, LlamaError> {
        Tensors::open(dir, vec!["a.safetensors".into()])
    }

    #[test]
    fn tensors_lie_in_the_order_of_their_names() {
        let found = layout(&[("w", &[2, 3]), ("b", &[5])], &[("merge.w", "mean"), ("format", "pt")]).unwrap();
        let found: Vec<_> = found
            .tensors()
            .iter()
            .map(|tensor| (&*tensor.name, tensor.rows, tensor.cols, tensor.merge))
            .collect();
        assert_eq!(found, [("b", 1, 5, MergeClass::Radial), ("w", 2, 3, MergeClass::Mean)]);
    }

    #[test]
    fn invalid_layouts_are_refused_with_a_sentence() {
        let check = |tensors: &[(&str, &[usize])], notes: &[(&str, &str)], part: &str| {
            let error = layout(tensors, notes).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        check(&[("w", &[2, 3, 2])], &[], "tensor w in a.safetensors has the shape [2, 3, 2]");
        check(&[("w", &[])], &[], "a vector or a matrix");
        check(&[("w", &[1, 3])], &[], "has one row: save it as a vector");
        check(&[("w", &[0, 3])], &[], "w");
        check(&[], &[], "cannot be used");
        check(&[("w", &[3])], &[("merge.w", "median")], "give radial or mean");
        check(&[("w", &[3])], &[("merge.v", "mean")], "is not in the file");
    }
}
