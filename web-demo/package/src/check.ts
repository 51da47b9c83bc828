/** Browser capabilities, read without computing anything. */

/** A WebGPU adapter, as far as browsers describe it. */
export interface AdapterFacts {
  /** The vendor's name for it; empty where the browser gives none. */
  readonly name: string;
  /** Whether it is emulated on the CPU. */
  readonly software: boolean;
  /** Largest binding of a kernel, in bytes. */
  readonly bindingBytesMax: number;
}

/** Capabilities of a browser that matter to a learner. */
export interface Capabilities {
  /** The adapter; undefined without WebGPU or without a usable adapter. */
  readonly adapter: AdapterFacts | undefined;
  /** Reason for a missing adapter. */
  readonly reason: string | undefined;
  /** Whether WebAssembly has vectors of four lanes, which every engine needs. */
  readonly simd: boolean;
  /** Whether it also has fused multiply-adds. */
  readonly relaxedSimd: boolean;
  /** Logical processors; 1 if the browser does not say. */
  readonly processors: number;
  /** Approximate memory of the machine in bytes, if the browser reports it. */
  readonly memoryBytes: number | undefined;
  /** The better engine for {@link join}: a software adapter is slower than the CPU engine. */
  readonly engine: "gpu" | "cpu";
}

/** The part of WebGPU that this file calls. */
interface Gpu {
  requestAdapter(options: { powerPreference: string }): Promise<{
    readonly info?: { vendor?: string; architecture?: string; description?: string; isFallbackAdapter?: boolean };
    readonly limits: { readonly maxStorageBufferBindingSize: number };
  } | null>;
}

/** Reports what this browser offers. Never fails; computes nothing. */
export async function capabilities(): Promise<Capabilities> {
  const { adapter, reason } = await findAdapter();
  const simd = validates([65, 1, 253, 17]);
  const memory = (navigator as { deviceMemory?: number }).deviceMemory;
  return {
    adapter,
    reason,
    simd,
    relaxedSimd: hasRelaxedSimd(),
    processors: navigator.hardwareConcurrency || 1,
    memoryBytes: memory === undefined ? undefined : memory * 2 ** 30,
    engine: adapter && !adapter.software ? "gpu" : "cpu",
  };
}

/** Whether fused multiply-adds of four lanes are available. */
export function hasRelaxedSimd(): boolean {
  // Three splats and f32x4.relaxed_madd.
  return validates([65, 1, 253, 17, 65, 2, 253, 17, 65, 3, 253, 17, 253, 133, 2]);
}

/** Whether a function with body `code` that returns a vector is valid WebAssembly here. */
function validates(code: number[]): boolean {
  const body = [0, ...code, 11];
  const magic = [0, 97, 115, 109, 1, 0, 0, 0];
  const types = [1, 5, 1, 96, 0, 1, 123];
  const functions = [3, 2, 1, 0];
  return WebAssembly.validate(
    new Uint8Array([...magic, ...types, ...functions, 10, body.length + 2, 1, body.length, ...body]),
  );
}

async function findAdapter(): Promise<{ adapter: AdapterFacts | undefined; reason: string | undefined }> {
  const none = (reason: string) => ({ adapter: undefined, reason });
  const gpu = (navigator as { gpu?: Gpu }).gpu;
  if (!gpu) {
    return none(
      isSecureContext
        ? "this browser has no WebGPU"
        : "browsers give WebGPU to pages over https or on this machine only",
    );
  }
  try {
    const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
    if (!adapter) return none("WebGPU is available, but it offers no adapter");
    const { vendor = "", architecture = "", description = "", isFallbackAdapter = false } = adapter.info ?? {};
    const software = isFallbackAdapter || /swiftshader|llvmpipe|software|warp/i.test(`${architecture} ${description}`);
    const name = description || [vendor, architecture].filter(Boolean).join(" ");
    return {
      adapter: { name, software, bindingBytesMax: adapter.limits.maxStorageBufferBindingSize },
      reason: undefined,
    };
  } catch (error) {
    return none(`WebGPU failed: ${error instanceof Error ? error.message : error}`);
  }
}
