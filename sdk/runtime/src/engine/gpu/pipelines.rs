//! Kernels compiled for one device, and the parts of buffers that they are bound to.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Mutex;

use wgpu::{BindGroupLayoutEntry, BindingType, BufferBinding, BufferBindingType, ShaderStages};

use super::kernels::{Access, Kernel};

/// Bytes between two starts of a binding; WebGPU's default alignment, and a multiple of any other.
pub const ALIGN_BYTES: u64 = 256;

/// A part of a device buffer, as a kernel sees it.
#[derive(Clone, Debug)]
pub struct Slice {
    /// What it is a part of.
    pub buffer: wgpu::Buffer,
    /// Its first byte, a multiple of [`ALIGN_BYTES`].
    pub start_byte: u64,
    /// Its length.
    pub bytes: u64,
}

impl Slice {
    /// All of `buffer`.
    pub fn whole(buffer: &wgpu::Buffer) -> Self {
        Self { buffer: buffer.clone(), start_byte: 0, bytes: buffer.size() }
    }

    /// What lies `values` 32-bit words behind its start.
    pub fn after(&self, values: u64) -> Self {
        let bytes = values * 4;
        Self { buffer: self.buffer.clone(), start_byte: self.start_byte + bytes, bytes: self.bytes - bytes }
    }

    pub(super) fn binding(&self) -> BufferBinding<'_> {
        let size = NonZeroU64::new(self.bytes);
        BufferBinding { buffer: &self.buffer, offset: self.start_byte, size }
    }
}

/// The value of an `override`.
pub type Constant = (&'static str, u32);

/// Compiled kernels of one device, by name and constants: each is compiled once.
#[derive(Debug, Default)]
pub struct Pipelines(Mutex<BTreeMap<(&'static str, Vec<Constant>), Pipeline>>);

/// A compiled kernel.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// What is dispatched.
    pub pipeline: wgpu::ComputePipeline,
    /// How its buffers are bound.
    pub layout: wgpu::BindGroupLayout,
}

impl Pipelines {
    /// `kernel` with these values of its `override`s, compiled on `device` unless it was before.
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
