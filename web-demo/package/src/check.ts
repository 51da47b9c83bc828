/** What a browser has, asked without computing anything. */

/** A WebGPU adapter, as far as browsers tell. */
export interface AdapterFacts {
  /** As its maker calls it; empty where the browser does not say. */
  readonly name: string;
  /** Whether it is a program on the CPU. */
  readonly software: boolean;
  /** Largest binding of a kernel, in bytes. */
  readonly bindingBytesMax: number;
}

/** What a browser offers a learner. */
export interface Capabilities {
  /** The adapter; undefined where there is no WebGPU, or none of use. */
  readonly adapter: AdapterFacts | undefined;
  /** Why there is no adapter, if there is none. */
  readonly reason: string | undefined;
  /** Whether WebAssembly has vectors of four lanes, without which nothing runs. */
  readonly simd: boolean;
  /** Whether it has fused multiply-adds too. */
  readonly relaxedSimd: boolean;
  /** Logical processors, if the browser says. */
  readonly processors: number;
  /** Memory of the machine in bytes, roughly, if the browser says. */
  readonly memoryBytes: number | undefined;
  /** What {@link join} would better train with: software that pretends to be a GPU is slower than the CPU. */
  readonly engine: "gpu" | "cpu";
}

/** The little of WebGPU that is asked here. */
interface Gpu {
  requestAdapter(options: { powerPreference: string }): Promise<{
    readonly info?: { vendor?: string; architecture?: string; description?: string; isFallbackAdapter?: boolean };
    readonly limits: { readonly maxStorageBufferBindingSize: number };
  } | null>;
}

/** Looks at what this browser offers. Never fails; computes nothing. */
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

/** Whether fused multiply-adds of four lanes are there. */
export function hasRelaxedSimd(): boolean {
  // Three splats and f32x4.relaxed_madd.
  return validates([65, 1, 253, 17, 65, 2, 253, 17, 65, 3, 253, 17, 253, 133, 2]);
}

/** Whether a function of `code` that returns a vector is valid WebAssembly here. */
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
    if (!adapter) return none("WebGPU is there, but no adapter of it");
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
