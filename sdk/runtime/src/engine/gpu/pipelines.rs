//! Compiled kernels of one device, and the buffer slices to which they are bound.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Mutex;

use wgpu::{BindGroupLayoutEntry, BindingType, BufferBinding, BufferBindingType, ShaderStages};

use super::kernels::{Access, Kernel};

/// Alignment of a binding's start, in bytes: WebGPU's default, and a multiple of any other.
pub const ALIGN_BYTES: u64 = 256;

/// A part of a device buffer, as a kernel sees it.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Containing buffer.
    pub buffer: wgpu::Buffer,
    /// First byte, a multiple of [`ALIGN_BYTES`].
    pub start_byte: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl Slice {
    /// Returns a slice of all of `buffer`.
    pub fn whole(buffer: &wgpu::Buffer) -> Self {
        Self { buffer: buffer.clone(), start_byte: 0, bytes: buffer.size() }
    }

    /// Returns the rest of the slice, starting `values` 32-bit words after its start.
    pub fn after(&self, values: u64) -> Self {
        let bytes = values * 4;
        Self { buffer: self.buffer.clone(), start_byte: self.start_byte + bytes, bytes: self.bytes - bytes }
    }

    pub(super) fn binding(&self) -> BufferBinding<'_> {
        let size = NonZeroU64::new(self.bytes);
        BufferBinding { buffer: &self.buffer, offset: self.start_byte, size }
    }
}

/// Name and value of an `override`.
pub type Constant = (&'static str, u32);

/// Compiled kernels of one device, by name and constants. Each is compiled only once.
#[derive(Debug, Default)]
pub struct Pipelines(Mutex<BTreeMap<(&'static str, Vec<Constant>), Pipeline>>);

/// A compiled kernel.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// Pipeline to dispatch.
    pub pipeline: wgpu::ComputePipeline,
    /// Layout of its bindings.
    pub layout: wgpu::BindGroupLayout,
}

impl Pipelines {
    /// Returns `kernel` with these values of its `override`s, compiled on `device` on first use.
    pub fn get(&self, device: &wgpu::Device, kernel: &Kernel, constants: &[Constant]) -> Pipeline {
        let mut all = self.0.lock().expect("no thread panics with the lock");
        all.entry((kernel.name, constants.to_vec()))
            .or_insert_with(|| compile(device, kernel, constants))
            .clone()
    }
}

fn compile(device: &wgpu::Device, kernel: &Kernel, constants: &[Constant]) -> Pipeline {
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: Some(kernel.name),
        source: wgpu::ShaderSource::Wgsl(kernel.source.into()),
    });
    let storage =
        kernel.storage.iter().map(|access| BufferBindingType::Storage { read_only: *access == Access::Read });
    let params_bytes = NonZeroU64::new(kernel.fields.len() as u64 * 4);
    let entries: Vec<_> = std::iter::once((BufferBindingType::Uniform, params_bytes))
        .chain(storage.map(|ty| (ty, None)))
        .zip(0..)
        .map(|((ty, min_binding_size), binding)| BindGroupLayoutEntry {
            binding,
            visibility: ShaderStages::COMPUTE,
            ty: BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size },
            count: None,
        })
        .collect();
    let label = Some(kernel.name);
    let layout =
        device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label, entries: &entries });
    let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label,
        bind_group_layouts: &[Some(&layout)],
        ..Default::default()
    });
    let constants: Vec<_> = constants.iter().map(|&(name, value)| (name, f64::from(value))).collect();
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label,
        layout: Some(&pipeline_layout),
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions {
            constants: &constants,
            // Each kernel writes its workgroup memory before it reads it.
            zero_initialize_workgroup_memory: false,
        },
        cache: None,
    });
    Pipeline { pipeline, layout }
}
