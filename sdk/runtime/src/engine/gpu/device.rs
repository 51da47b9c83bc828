//! List of GPU adapters, choice of one, and the device opened on it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use archipelago_core::bytes::from_f32s;
use wgpu::{
    Backends, DeviceType, ErrorFilter, ExperimentalFeatures, Features, Instance, InstanceDescriptor, Limits,
};

use super::GpuError;
use super::kernels::{Pipelines, Slice};

/// WebGPU limit: its name, the minimum value that the kernels need, and its accessor.
type Limit = (&'static str, u64, fn(&Limits) -> u64);

/// Size of the test buffers that probe for free memory, in bytes.
const BLOCK_BYTES: u64 = 128 << 20;

/// Limits that the kernels need. WebGPU guarantees all of them by default.
const NEEDED: &[Limit] = &[
    ("maxStorageBuffersPerShaderStage", 8, |limits| limits.max_storage_buffers_per_shader_stage.into()),
    ("maxComputeInvocationsPerWorkgroup", 256, |limits| limits.max_compute_invocations_per_workgroup.into()),
    ("maxComputeWorkgroupStorageSize", 16 << 10, |limits| limits.max_compute_workgroup_storage_size.into()),
    ("maxComputeWorkgroupsPerDimension", 65_535, |limits| limits.max_compute_workgroups_per_dimension.into()),
    ("maxStorageBufferBindingSize", 128 << 20, |limits| limits.max_storage_buffer_binding_size),
];

/// Device features that the kernels on matrix units need.
const MATRICES: Features =
    Features::EXPERIMENTAL_COOPERATIVE_MATRIX.union(Features::SHADER_F16).union(Features::SUBGROUP);
/// Lanes of a subgroup on a GPU whose matrix units are used.
const SUBGROUP: u32 = 32;
const MATRICES_BYTES: u32 = 32 << 10;

/// Returns true if the kernels `matmul_matrix.wgsl` and `parts/strips.wgsl` can use matrices of this kind.
fn is_ours(found: &wgpu::CooperativeMatrixProperties) -> bool {
    [found.m_size, found.n_size, found.k_size] == [16; 3]
        && found.ab_type == wgpu::CooperativeScalarType::F16
        && found.cr_type == wgpu::CooperativeScalarType::F32
}

/// Properties of an adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterFacts {
    /// Name reported by the driver.
    pub name: String,
    /// Type of device: "discrete GPU", "integrated GPU", "virtual GPU", "software" or "unknown".
    pub kind: &'static str,
    /// API of the driver: "vulkan", "metal" or "webgpu".
    pub backend: &'static str,
    /// Name and version of the driver.
    pub driver: String,
    /// Whether it is a software GPU, which runs on the CPU.
    pub software: bool,
    /// Largest binding of a kernel, in bytes.
    pub binding_bytes_max: u64,
    /// Largest buffer, in bytes.
    pub buffer_bytes_max: u64,
    /// Whether the adapter supports 16-bit floats.
    pub f16: bool,
    /// Whether the adapter can time kernels.
    pub timestamps: bool,
    /// Whether the adapter supports subgroup operations.
    pub subgroups: bool,
    /// Whether the adapter has matrix units that our kernels can use: 16 × 16 matrices of 16-bit floats with 32-bit
    /// sums, and subgroups of 32 lanes.
    pub matrices: bool,
    /// The first limit that is too low for the kernels; `None` if the adapter is usable.
    pub unfit: Option<GpuError>,
}

/// Choice of an adapter, and restrictions on its use.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// Substring of the name of the adapter to use. `None` selects the best adapter.
    pub adapter: Option<String>,
    /// Accepts a software GPU too.
    pub software: bool,
    /// Uses WebGPU's default limits, even if the adapter allows more.
    pub default_limits: bool,
    /// Multiplies only 32-bit floats, even if the adapter has matrix units.
    pub whole_products: bool,
    /// Maximum size of a binding in bytes, if it is below the adapter's limit.
    pub binding_bytes_max: Option<u64>,
}

/// Device with the record of its first fault. Clones share both.
#[derive(Clone, Debug)]
pub struct Gpu {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) pipelines: Arc<Pipelines>,
    facts: Arc<AdapterFacts>,
    binding_bytes_max: u64,
    has_matrices: bool,
    fault: Arc<Mutex<Option<GpuError>>>,
    allocated: Arc<AtomicU64>,
}

/// Returns the properties of all adapters, best first.
pub async fn adapters() -> Vec<AdapterFacts> {
    found().await.iter().map(facts).collect()
}

async fn found() -> Vec<wgpu::Adapter> {
    let instance = Instance::new(InstanceDescriptor::new_without_display_handle());
    let mut adapters = instance.enumerate_adapters(Backends::PRIMARY).await;
    adapters.retain(|adapter| adapter.get_info().backend != wgpu::Backend::Noop);
    adapters.sort_by_key(|adapter| match adapter.get_info().device_type {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        // Browsers do not report the type of the device.
        DeviceType::Other | DeviceType::VirtualGpu => 2,
        DeviceType::Cpu => 3,
    });
    adapters
}

fn facts(adapter: &wgpu::Adapter) -> AdapterFacts {
    let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
    let lacking = NEEDED.iter().find(|(_, needed, found)| found(&limits) < *needed);
    let unfit = lacking.map(|&(limit, needed, found)| GpuError::Limit {
        adapter: info.name.clone(),
        limit,
        found: found(&limits),
        needed,
    });
    AdapterFacts {
        kind: match info.device_type {
            DeviceType::DiscreteGpu => "discrete GPU",
            DeviceType::IntegratedGpu => "integrated GPU",
            DeviceType::VirtualGpu => "virtual GPU",
            DeviceType::Cpu => "software",
            DeviceType::Other => "unknown",
        },
        backend: info.backend.to_str(),
        driver: [info.driver.as_str(), &info.driver_info].join(" ").trim().to_owned(),
        software: info.device_type == DeviceType::Cpu,
        binding_bytes_max: limits.max_storage_buffer_binding_size,
        buffer_bytes_max: limits.max_buffer_size,
        f16: features.contains(Features::SHADER_F16),
        timestamps: features.contains(Features::TIMESTAMP_QUERY),
        subgroups: features.contains(Features::SUBGROUP),
        matrices: features.contains(MATRICES)
            && info.subgroup_min_size == SUBGROUP
            && info.subgroup_max_size == SUBGROUP
            && adapter.cooperative_matrix_properties().iter().any(is_ours),
        unfit,
        name: info.name,
    }
}

impl Gpu {
    /// Opens a device on the best adapter that `options` allow.
    ///
    /// # Errors
    /// - [`GpuError::NoAdapter`], [`GpuError::NotNamed`], [`GpuError::SoftwareOnly`], [`GpuError::Limit`]: no adapter
    ///   is suitable.
    /// - [`GpuError::NoDevice`]: the adapter provides no device.
    pub async fn open(options: &GpuOptions) -> Result<Self, GpuError> {
        let adapters = found().await;
        let all: Vec<AdapterFacts> = adapters.iter().map(facts).collect();
        let index = choose(&all, options)?;
        Self::on(&adapters[index], all[index].clone(), options).await
    }

    async fn on(
        adapter: &wgpu::Adapter,
        facts: AdapterFacts,
        options: &GpuOptions,
    ) -> Result<Self, GpuError> {
        let limits = if options.default_limits { Limits::default() } else { adapter.limits() };
        let has_matrices = facts.matrices
            && !options.whole_products
            && limits.max_compute_workgroup_storage_size >= MATRICES_BYTES;
        let matrices = if has_matrices { MATRICES } else { Features::empty() };
        let wanted = Features::SHADER_F16 | Features::TIMESTAMP_QUERY | matrices;
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("archipelago"),
            required_features: adapter.features() & wanted,
            required_limits: limits.clone(),
            experimental_features: if has_matrices {
                experimental()
            } else {
                ExperimentalFeatures::disabled()
            },
            ..wgpu::DeviceDescriptor::default()
        };
        let refused = |error: wgpu::RequestDeviceError| GpuError::NoDevice {
            adapter: facts.name.clone(),
            reason: error.to_string(),
        };
        let (device, queue) = adapter.request_device(&descriptor).await.map_err(refused)?;
        let fault = Arc::new(Mutex::new(None));
        let (lost, refused) = (Arc::clone(&fault), Arc::clone(&fault));
        device.set_device_lost_callback(move |reason, message| {
            note(&lost, GpuError::Lost { reason: format!("{reason:?} {message}").trim().to_owned() });
        });
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            note(&refused, GpuError::Refused { reason: error.to_string() });
        }));
        let binding_bytes_max = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
        let binding_bytes_max = options.binding_bytes_max.unwrap_or(u64::MAX).min(binding_bytes_max);
        let (pipelines, facts) = (Arc::default(), Arc::new(facts));
        let allocated = Arc::default();
        Ok(Self { device, queue, pipelines, facts, binding_bytes_max, has_matrices, fault, allocated })
    }

    /// Returns true if kernels may use the device's matrix units.
    pub(in crate::engine) fn has_matrices(&self) -> bool {
        self.has_matrices
    }

    /// Makes the device claim matrix units, even if its driver does not list them.
    #[cfg(test)]
    pub(in crate::engine) fn with_matrices(self) -> Self {
        Self { has_matrices: true, ..self }
    }

    /// Returns the properties of the device's adapter.
    #[must_use]
    pub fn facts(&self) -> &AdapterFacts {
        &self.facts
    }

    /// Returns the maximum size of a binding, in bytes.
    #[must_use]
    pub fn binding_bytes_max(&self) -> u64 {
        self.binding_bytes_max
    }

    /// Checks that no error has been recorded since the device was opened.
    ///
    /// # Errors
    /// [`GpuError::Lost`] or [`GpuError::Refused`] if the device is no longer usable.
    pub fn check(&self) -> Result<(), GpuError> {
        match &*self.fault.lock().expect("no thread panics with the lock") {
            None => Ok(()),
            Some(fault) => Err(fault.clone()),
        }
    }

    /// Destroys the device, as a driver reset would do.
    pub fn lose(&self) {
        self.device.destroy();
        self.note_loss("destroyed on purpose");
    }

    /// Records a loss of the device, unless one is recorded. A failed operation may show the loss before the driver's
    /// callback does.
    pub(super) fn note_loss(&self, reason: &str) {
        note(&self.fault, GpuError::Lost { reason: reason.to_owned() });
    }

    /// Writes `values` to the start of `slice`. All later submissions see them.
    pub(super) fn write(&self, slice: &Slice, values: &[f32]) {
        self.queue.write_buffer(&slice.buffer, slice.start_byte, &from_f32s(values));
    }

    /// Returns the total size in bytes of all buffers created on the device, dropped ones included. The uniforms of
    /// dispatches (256 bytes each) do not count.
    pub(super) fn allocated_bytes(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    /// Adds a new buffer of `bytes` to the total that [`Self::allocated_bytes`] returns.
    pub(super) fn add_allocated(&self, bytes: u64) {
        self.allocated.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the error that the device has less than `bytes` of free memory.
    pub(super) fn out_of_memory(&self, bytes: u64) -> GpuError {
        GpuError::Memory { adapter: self.facts.name.clone(), needed_mib: bytes.div_ceil(1 << 20) }
    }

    /// Returns true if buffers of `bytes` in total can be allocated on the device.
    pub(super) async fn has_free(&self, bytes: u64) -> bool {
        let largest = self.binding_bytes_max.clamp(4, BLOCK_BYTES);
        let buffer = |size: u64| {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("room"),
                size: size.next_multiple_of(4),
                usage: wgpu::BufferUsages::STORAGE,
                mapped_at_creation: false,
            })
        };
        let make =
            || (0..bytes).step_by(largest as usize).map(|at| buffer(largest.min(bytes - at))).collect();
        let made: Result<Vec<wgpu::Buffer>, GpuError> = self.allocate(bytes, make).await;
        made.is_ok()
    }

    /// Runs `make`, which allocates buffers of about `bytes` in total.
    ///
    /// # Errors
    /// [`GpuError::Memory`] if the device lacks memory for them.
    pub(super) async fn allocate<T>(&self, bytes: u64, make: impl FnOnce() -> T) -> Result<T, GpuError> {
        let scope = self.device.push_error_scope(ErrorFilter::OutOfMemory);
        let made = make();
        match scope.pop().await {
            None => Ok(made),
            Some(_) => Err(self.out_of_memory(bytes)),
        }
    }
}

/// Enables the features that wgpu calls experimental.
#[allow(unsafe_code, reason = "what wgpu asks for; see below")]
fn experimental() -> ExperimentalFeatures {
    // SAFETY: wgpu warns of faults in unfinished features. Only cooperative matrices are used, by the kernels of
    // products and attention, and each device must first reproduce the results of other kernels. This check also covers
    // naga's barriers, which order fewer accesses than these kernels need (gfx-rs/wgpu issue 8805).
    unsafe { ExperimentalFeatures::enabled() }
}

/// Records a fault. The first fault stays, as the cause of later ones, but a loss replaces any other fault.
fn note(fault: &Mutex<Option<GpuError>>, found: GpuError) {
    let mut fault = fault.lock().expect("no thread panics with the lock");
    if fault.is_none()
        || matches!(found, GpuError::Lost { .. }) && !matches!(*fault, Some(GpuError::Lost { .. }))
    {
        *fault = Some(found);
    }
}

/// Returns the index of the adapter to use in `all`, which is sorted best first.
fn choose(all: &[AdapterFacts], options: &GpuOptions) -> Result<usize, GpuError> {
    let named = |facts: &&AdapterFacts| match &options.adapter {
        Some(part) => facts.name.to_lowercase().contains(&part.to_lowercase()),
        None => true,
    };
    let named: Vec<&AdapterFacts> = all.iter().filter(named).collect();
    let Some(first) = named.first() else {
        return Err(match &options.adapter {
            Some(wanted) if !all.is_empty() => GpuError::NotNamed {
                wanted: wanted.clone(),
                found: all.iter().map(|facts| facts.name.clone()).collect(),
            },
            _ => GpuError::NoAdapter,
        });
    };
    let allowed = |facts: &&&AdapterFacts| options.software || !facts.software;
    let Some(best) = named.iter().filter(allowed).find(|facts| facts.unfit.is_none()) else {
        let why = named.iter().filter(allowed).find_map(|facts| facts.unfit.clone());
        return Err(why.unwrap_or_else(|| GpuError::SoftwareOnly { adapter: first.name.clone() }));
    };
    Ok(all.iter().position(|facts| std::ptr::eq(facts, *best)).expect("it was taken from there"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(name: &str, software: bool, fits: bool) -> AdapterFacts {
        let unfit = GpuError::Limit { adapter: name.to_owned(), limit: "maxX", found: 1, needed: 2 };
        AdapterFacts {
            name: name.to_owned(),
            kind: "unknown",
            backend: "vulkan",
            driver: String::new(),
            software,
            binding_bytes_max: 1 << 27,
            buffer_bytes_max: 1 << 28,
            f16: false,
            timestamps: false,
            subgroups: false,
            matrices: false,
            unfit: (!fits).then_some(unfit),
        }
    }

    #[test]
    fn takes_the_best_that_is_allowed() {
        let all =
            [adapter("Old", false, false), adapter("New", false, true), adapter("llvmpipe", true, true)];
        let check = |all: &[AdapterFacts], name: Option<&str>, software, expected: Result<usize, &str>| {
            let options = GpuOptions { adapter: name.map(str::to_owned), software, ..GpuOptions::default() };
            let found = choose(all, &options).map_err(|error| error.to_string());
            match expected {
                Ok(index) => assert_eq!(found, Ok(index)),
                Err(part) => assert!(found.clone().is_err_and(|text| text.contains(part)), "{found:?}"),
            }
        };
        check(&all, None, false, Ok(1));
        check(&all, Some("LLVM"), true, Ok(2));
        check(&all, Some("llvm"), false, Err("the CPU engine is faster"));
        check(&all, Some("old"), true, Err("maxX = 1"));
        check(&all, Some("3090"), true, Err("Old, New, llvmpipe"));
        check(&all[2..], None, false, Err("the CPU engine is faster"));
        check(&all[..1], None, true, Err("maxX = 1"));
        check(&[], None, true, Err("no GPU was found"));
    }
}
