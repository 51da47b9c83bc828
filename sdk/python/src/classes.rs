//! Native classes of the Python package: one class and one function, with numbers, texts and bytes as arguments. The
//! package's public API is Python code on top of them.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::bridge::{Batch, NextItem, ProgramError, ProgramRequest, Task};
use crate::file::{TensorValues, WriteError, write};
use crate::learner::{LearnerHandle, LearnerSettings, StartError};
use crate::tensors::{TensorShape, TensorSlice};

/// Part of a tensor: index of the tensor, index of the first value, and index after the last value.
type TensorRange = (usize, usize, usize);

/// Running learner's loop with its bridge.
#[pyclass(frozen, module = "archipelago_train._native")]
struct Link(LearnerHandle);

#[pymethods]
impl Link {
    #[new]
    #[pyo3(signature = (url, tensors, *, name, device, identity, batch, contact_s, measures))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword in Python")]
    fn new(
        url: String,
        tensors: Vec<(String, Vec<u64>)>,
        name: String,
        device: String,
        identity: Option<PathBuf>,
        batch: Option<u32>,
        contact_s: f64,
        measures: bool,
    ) -> PyResult<Self> {
        let settings = LearnerSettings {
            url,
            tensors: tensors.into_iter().map(|(name, shape)| TensorShape { name, shape }).collect(),
            name,
            device,
            measures,
            identity,
            batch,
            contact_ms_max: (contact_s.max(0.0) * 1e3) as u64,
        };
        Ok(Self(LearnerHandle::start(settings).map_err(refused)?))
    }

    /// Returns the next item, waiting at most `wait_s` seconds. It is a tuple whose first element names the kind.
    fn next<'py>(&self, py: Python<'py>, wait_s: f64) -> PyResult<Bound<'py, PyTuple>> {
        let wait = Duration::from_secs_f64(wait_s.clamp(0.0, 60.0));
        match py.detach(|| self.0.bridge.next(wait)) {
            Err(fault) => fault_tuple(py, &fault),
            Ok(NextItem::Nothing) => ("nothing",).into_pyobject(py),
            Ok(NextItem::Over) => ("over",).into_pyobject(py),
            Ok(NextItem::Request(ProgramRequest::Step(Batch { id, tokens, windows, learning_rate }))) => {
                let bytes: Vec<u8> = tokens.into_iter().flat_map(u32::to_le_bytes).collect();
                ("step", id, PyBytes::new(py, &bytes), windows, learning_rate).into_pyobject(py)
            }
            Ok(NextItem::Request(ProgramRequest::Read { id, places })) => {
                ("read", id, parts(&places)).into_pyobject(py)
            }
            Ok(NextItem::Request(ProgramRequest::Measure(Task { id, values, places, tokens, windows }))) => {
                let values: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
                let tokens: Vec<u8> = tokens.into_iter().flat_map(u32::to_le_bytes).collect();
                let (values, tokens) = (PyBytes::new(py, &values), PyBytes::new(py, &tokens));
                ("measure", id, values, parts(&places), tokens, windows).into_pyobject(py)
            }
            Ok(NextItem::Request(ProgramRequest::Change { kept, values, places })) => {
                let bytes = PyBytes::new_with(py, 4 * values.len(), |bytes| {
                    bytes
                        .as_chunks_mut()
                        .0
                        .iter_mut()
                        .zip(&values)
                        .for_each(|(at, value)| *at = value.to_le_bytes());
                    Ok(())
                })?;
                ("change", kept, bytes, parts(&places)).into_pyobject(py)
            }
        }
    }

    /// Reports the end of the step on the batch `id`. Returns a fault in the form of `next`, if there is one.
    fn done<'py>(
        &self,
        py: Python<'py>,
        id: u64,
        loss: f32,
        tokens: Option<u64>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.0.bridge.done(id, loss, tokens).err().map(|fault| fault_tuple(py, &fault)).transpose()
    }

    /// Delivers the values requested under `id`, one buffer for each part.
    fn give(&self, py: Python<'_>, id: u64, parts: Vec<PyBuffer<f32>>) -> PyResult<()> {
        let mut values = vec![0.0; parts.iter().map(|part| part.item_count()).sum()];
        let mut rest = values.as_mut_slice();
        for part in &parts {
            let (head, tail) = rest.split_at_mut(part.item_count());
            part.copy_to_slice(py, head)?;
            rest = tail;
        }
        self.0.bridge.give(id, values);
        Ok(())
    }

    /// Delivers the loss requested under `id`, or None if it cannot be measured.
    fn measured(&self, id: u64, loss: Option<f32>) {
        self.0.bridge.measured(id, loss);
    }

    /// Returns true if all parameters of the run are loaded.
    fn is_loaded(&self) -> bool {
        self.0.bridge.is_loaded()
    }

    /// Returns the log entries since the last call, each with a flag that is true for warnings.
    fn notes(&self) -> Vec<(bool, String)> {
        self.0.bridge.take_notes().into_iter().map(|note| (note.is_warning, note.text)).collect()
    }

    /// Returns the last report as JSON.
    fn report(&self) -> Option<String> {
        self.0.bridge.report().and_then(|report| serde_json::to_string(&report).ok())
    }

    /// Stops training, and leaves the run gracefully.
    fn leave(&self) {
        self.0.bridge.leave();
        self.0.control.stop();
    }

    /// Stops carrying out requests, and ends the learner.
    fn let_go(&self) {
        self.0.control.stop();
        self.0.bridge.let_go();
    }
}

/// Writes the file with the initial parameters for a run of a custom model.
#[pyfunction]
fn write_params(
    py: Python<'_>,
    path: PathBuf,
    tensors: Vec<(String, Vec<u64>, PyBuffer<f32>)>,
    mean: Vec<String>,
) -> PyResult<()> {
    let mut filled = Vec::new();
    for (name, shape, values) in tensors {
        let bytes = values.to_vec(py)?.into_iter().flat_map(f32::to_le_bytes).collect();
        filled.push(TensorValues { shaped: TensorShape { name, shape }, bytes });
    }
    write(&path, &filled, &mean.into_iter().collect()).map_err(|error| match error {
        WriteError::Mean { .. } => PyValueError::new_err(error.to_string()),
        WriteError::File(_) => PyOSError::new_err(format!("{}: {error}", path.display())),
    })
}

fn parts(places: &[TensorSlice]) -> Vec<TensorRange> {
    places.iter().map(|place| (place.tensor, place.start, place.stop)).collect()
}

/// Converts a fault to a tuple of "fault", its kind and a sentence.
fn fault_tuple<'py>(py: Python<'py>, fault: &ProgramError) -> PyResult<Bound<'py, PyTuple>> {
    let kind = match fault {
        ProgramError::NotFinite { .. } => "not finite",
        ProgramError::Unreachable(_) => "unreachable",
        ProgramError::Layout(_) => "layout",
        ProgramError::Refused(_) => "refused",
        ProgramError::Failed(_) => "failed",
    };
    ("fault", kind, fault.to_string()).into_pyobject(py)
}

fn refused(error: StartError) -> PyErr {
    let text = error.to_string();
    match error {
        StartError::Address(_) | StartError::Batch(_) => PyValueError::new_err(text),
        StartError::Identity(_) | StartError::Thread(_) => PyOSError::new_err(text),
    }
}

#[pymodule(name = "_native")]
mod native {
    /// Bit set in a masked token, which is read and not predicted.
    #[pymodule_export]
    const MASKED: u32 = archipelago::data::token::MASKED;

    #[pymodule_export]
    use super::{Link, write_params};
}
