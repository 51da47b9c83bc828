//! Writing of parameters to a safetensors file.

use std::borrow::Cow;
use std::path::Path;

use archipelago_core::bytes::from_f32s;
use archipelago_core::diloco::Layout;
use half::{bf16, f16};
use safetensors::tensor::{Dtype, View};

/// Data type of the written parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// 32 bits, as in training.
    #[default]
    F32,
    /// 16 bits with 10 bits of fraction, rounded to nearest.
    F16,
    /// 16 bits with 7 bits of fraction, rounded to nearest.
    Bf16,
}

impl Precision {
    /// Returns PyTorch's name of this type.
    pub(super) fn torch_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
        }
    }
}

/// Writes `theta`, `[layout.len()]`, to the file `path` with the tensor names of `layout`. The file is not synced to
/// disk.
///
/// # Errors
/// The operating system's error.
pub fn write_tensors(
    path: &Path,
    layout: &Layout,
    theta: &[f32],
    precision: Precision,
) -> std::io::Result<()> {
    let tensors = layout.offsets().map(|(start, tensor)| {
        let values = &theta[start as usize..][..tensor.len() as usize];
        (tensor.name.clone(), Shaped { shape: shape(tensor), values, precision })
    });
    let metadata = [("format".to_owned(), "pt".to_owned())].into_iter().collect();
    safetensors::serialize_to_file(tensors, Some(metadata), path).map_err(std::io::Error::other)
}

/// Returns the shape of `tensor` in a file, where vectors have one dimension.
pub(super) fn shape(tensor: &archipelago_core::diloco::Tensor) -> Vec<usize> {
    match tensor.rows {
        1 => vec![tensor.cols as usize],
        rows => vec![rows as usize, tensor.cols as usize],
    }
}

/// Returns the nearest finite f16.
pub fn f16_of(value: f32) -> f16 {
    f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()))
}

struct Shaped<'a> {
    shape: Vec<usize>,
    values: &'a [f32],
    precision: Precision,
}

impl View for Shaped<'_> {
    fn dtype(&self) -> Dtype {
        match self.precision {
            Precision::F32 => Dtype::F32,
            Precision::F16 => Dtype::F16,
            Precision::Bf16 => Dtype::BF16,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self.precision {
            Precision::F32 => from_f32s(self.values).into(),
            Precision::F16 => {
                let words = self.values.iter().map(|value| f16_of(*value).to_le_bytes());
                words.collect::<Vec<_>>().into_flattened().into()
            }
            Precision::Bf16 => {
                let words = self.values.iter().map(|value| bf16::from_f32(*value).to_le_bytes());
                words.collect::<Vec<_>>().into_flattened().into()
            }
        }
    }

    fn data_len(&self) -> usize {
        self.values.len() * self.dtype().bitsize() / 8
    }
}
