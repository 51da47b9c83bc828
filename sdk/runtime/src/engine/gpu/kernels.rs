//! Table of the kernels, one row each. The source of a kernel is `kernels/NAME.wgsl`; source that several kernels share
//! is in `kernels/parts/`.
//!
//! Binding 0 is the uniform `Params` with the fields of the struct that the row names. The storage buffers follow in
//! the order of the row.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::num::NonZeroU64;
use std::sync::Mutex;

use wgpu::{BindGroupLayoutEntry, BindingType, BufferBinding, BufferBindingType, ShaderStages};

use super::params::{self, Params};

/// Access of a kernel to a storage buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    Write,
}

/// One kernel.
#[derive(Debug)]
pub struct Kernel {
    /// Name of the kernel and of its file.
    pub name: &'static str,
    /// Names of the shared sources before the kernel's own, in `kernels/parts/`.
    #[cfg(test)]
    pub parts: &'static [&'static str],
    /// WGSL source, shared sources included.
    pub source: &'static str,
    /// Fields of `Params`.
    pub fields: &'static [params::Field],
    /// Access to the storage buffers, from binding 1 on.
    pub storage: &'static [Access],
}

/// Kernel with uniform parameters of type `P`.
#[derive(Clone, Copy, Debug)]
pub struct KernelOf<P> {
    kernel: &'static Kernel,
    params: PhantomData<P>,
}

impl<P: Params> KernelOf<P> {
    /// Combines the kernel with the values of its parameters.
    pub fn with(self, params: P) -> Call {
        Call { kernel: self.kernel, params: params.words() }
    }
}

/// A kernel with its parameters, created by [`KernelOf::with`].
#[derive(Clone, Debug)]
pub struct Call {
    kernel: &'static Kernel,
    params: Vec<u32>,
}

impl Call {
    /// Returns the kernel.
    pub fn kernel(&self) -> &'static Kernel {
        self.kernel
    }

    /// Returns the words of the uniform parameters.
    pub fn params(&self) -> &[u32] {
        &self.params
    }
}

macro_rules! kernels {
    ($($const:ident = $name:literal $(after $part:literal)*, $params:ident, [$($access:ident),*];)*) => {
        $(
            pub const $const: KernelOf<params::$params> = KernelOf {
                kernel: &Kernel {
                    name: $name,
                    #[cfg(test)]
                    parts: &[$($part),*],
                    source: concat!(
                        $(include_str!(concat!("kernels/parts/", $part, ".wgsl")), "\n",)*
                        include_str!(concat!("kernels/", $name, ".wgsl")),
                    ),
                    fields: params::$params::FIELDS,
                    storage: &[$(Access::$access),*],
                },
                params: PhantomData,
            };
        )*
        /// All kernels.
        #[cfg(test)]
        pub const ALL: &[&Kernel] = &[$($const.kernel),*];
    };
}

kernels! {
    MATMUL_REGISTER = "matmul_register" after "frozen" after "matmul", Product, [Read, Read, Read, Read, Write];
    MATMUL_TILE = "matmul_tile" after "frozen" after "matmul", Product, [Read, Read, Read, Read, Write];
    MATMUL_MATRIX = "matmul_matrix" after "matrices" after "frozen" after "matmul", Product,
        [Read, Read, Read, Read, Write];
    MATMUL_SUM = "matmul_sum" after "frozen" after "matmul", Product, [Read, Read, Read, Read, Write];
    HALVE = "halve", Halve, [Read, Write];
    CLEAR = "clear", Clear, [Write];
    EMBED = "embed" after "frozen", Embed, [Read, Read, Read, Write];
    EMBED_GRAD = "embed_grad", Embed, [Read, Read, Read, Write];
    NORM = "norm" after "total", Norm, [Read, Read, Write, Write];
    NORM_GRAD = "norm_grad" after "total", NormGrad, [Read, Read, Read, Read, Write, Write];
    COLUMN_SUM = "column_sum", ColumnSum, [Read, Write];
    ROTARY = "rotary", Rotary, [Read, Read, Write];
    ATTENTION = "attention" after "bands", Attention, [Read, Write, Write];
    ATTENTION_DOTS = "attention_dots", AttentionDots, [Read, Read, Write];
    ATTENTION_GRAD_Q = "attention_grad_q" after "bands", Attention, [Read, Read, Read, Read, Write];
    ATTENTION_GRAD_KV = "attention_grad_kv" after "bands", Attention, [Read, Read, Read, Read, Write];
    ATTENTION_MATRIX = "attention_matrix" after "matrices" after "strips", AttentionMatrix, [Read, Write, Write];
    ATTENTION_MATRIX_GRAD_Q = "attention_matrix_grad_q" after "matrices" after "strips" after "strips_grad",
        AttentionMatrix, [Read, Read, Read, Read, Write];
    ATTENTION_MATRIX_GRAD_KV = "attention_matrix_grad_kv" after "matrices" after "strips" after "strips_grad",
        AttentionMatrix, [Read, Read, Read, Read, Write];
    SWIGLU = "swiglu", Swiglu, [Read, Write];
    SWIGLU_GRAD = "swiglu_grad", Swiglu, [Write, Write];
    ROUTE = "route", Route, [Read, Write, Write];
    EXPERT_COUNT = "expert_count", ExpertCount, [Read, Read, Read, Write, Write];
    EXPERT = "expert", Expert, [Read, Read, Write];
    EXPERT_GRAD = "expert_grad" after "total", Expert, [Read, Write, Write, Write];
    ROUTE_GRAD = "route_grad", RouteGrad, [Read, Read, Read, Read, Write];
    CROSS_ENTROPY = "cross_entropy", CrossEntropy, [Read, Read, Write, Write];
    SQUARES = "squares" after "total", Squares, [Read, Write];
    FINISH = "finish", Finish, [Read, Read, Write];
    ADAMW = "adamw" after "hyper" after "adamw", AdamW, [Read, Read, Write, Read, Write, Write];
    ADAMW_HALVES = "adamw_halves" after "hyper" after "adamw", AdamWHalves, [Read, Read, Write, Read, Write];
    MUON_MOMENTUM = "muon_momentum" after "hyper", MuonMomentum, [Read, Read, Read, Write, Write];
    MUON_SCALE = "muon_scale" after "total", MuonScale, [Read, Write];
    MUON_POLYNOMIAL = "muon_polynomial", MuonPolynomial, [Read, Write];
    MUON_APPLY = "muon_apply" after "hyper", MuonApply, [Read, Read, Write, Read];
    DELTA_MAX = "delta_max" after "piece", Piece, [Read, Read, Write, Write];
    DELTA_CODE = "delta_code" after "piece", Piece, [Read, Read, Read, Write, Write];
    DECODE_ADD = "decode_add" after "piece" after "binary16", Piece, [Read, Read, Write];
    DIGEST = "digest" after "piece" after "binary16", Piece, [Read, Write];
    REBASE = "rebase", Rebase, [Read, Read, Write];
}

/// Alignment of a binding's start in bytes: the default of WebGPU, and a multiple of every other alignment that it
/// allows.
pub const ALIGN_BYTES: u64 = 256;

/// Part of a device buffer that is bound to a kernel.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Buffer that contains the slice.
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

    /// Returns the part of the slice that starts `values` 32-bit words after its start.
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

/// Compiled kernels of one device, by name and constants.
#[derive(Debug, Default)]
pub struct Pipelines(Mutex<BTreeMap<(&'static str, Vec<Constant>), Pipeline>>);

/// A compiled kernel.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// Pipeline to dispatch.
    pub pipeline: wgpu::ComputePipeline,
    /// Layout of the kernel's bindings.
    pub layout: wgpu::BindGroupLayout,
}

impl Pipelines {
    /// Returns `kernel` with `constants`, the values of its overrides. Compiles it on `device` on first use.
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
