/** Options and events of a learner. */
import type { Event, Notice } from "./generated.js";

export type * from "./generated.js";

/** "auto" uses the GPU if the model fits there, else the CPU. */
export type EngineKind = "auto" | "gpu" | "cpu";

/** Locations of the code that a Worker loads. Bundlers that understand `new URL(…, import.meta.url)` need none. */
export interface Sources {
  /** Address of this package's `worker.js`. */
  readonly workerUrl?: string | URL;
  /** Folder with the `plain/` and `relaxed/` of this package's `dist/wasm`. */
  readonly wasmUrl?: string | URL;
}

/** Options of {@link join}. */
export interface JoinOptions extends Sources {
  /** A display name; cut to 64 bytes. */
  readonly name?: string;
  /** The engine to train with. */
  readonly engine?: EngineKind;
  /** Workers of a CPU engine, at least 1; by default the cores less one (all if at most two), at most 8. */
  readonly workers?: number;
  /** Share of the time to compute, above 0 and at most 1. */
  readonly share?: number;
  /**
   * Windows in one step, 1 to 4096. By default the run's batch, or less if a step would take longer than 2 s on this
   * device.
   */
  readonly batch?: "auto" | number;
  /** Longest time to wait for the first admission, in milliseconds. */
  readonly contactMsMax?: number;
  /**
   * Whether this browser stores the identity, the optimiser's moments and the frozen weights of LoRA runs. If false,
   * each start is a newcomer's.
   */
  readonly remember?: boolean;
  /** Ends the learner gracefully when it fires. */
  readonly signal?: AbortSignal;
}

/** Options of {@link measure}. */
export interface MeasureOptions extends Sources {
  /** The engine to measure; it must be available. */
  readonly engine: "gpu" | "cpu";
  /** "tiny", "small", "medium", "base", "llama-135m" or "llama-360m". */
  readonly preset: string;
  /** Workers of a CPU engine, at least 1; by default the cores less one (all if at most two), at most 8. */
  readonly workers?: number;
  /** Time to train after the first step, in milliseconds; at least one more step. */
  readonly trainMs?: number;
  /** Cancels the measurement when it fires. */
  readonly signal?: AbortSignal;
}

/** Events of the package itself. */
export type PackageEvent =
  /** Another page of this browser trains in the same run; this one begins when that one ends. */
  | { readonly event: "standby" }
  /** The browser stores nothing; the next start is a newcomer's. */
  | { readonly event: "forgetful"; readonly reason: string }
  /** The browser is old or the page insecure, so it cannot hold a key: scripts of the page could read the secret. */
  | { readonly event: "softKey" };

/** All events of a learner. */
export type LearnerEvent = Event | Notice | PackageEvent;

/** Events by name. */
export type LearnerEventMap = { [K in LearnerEvent["event"]]: Extract<LearnerEvent, { event: K }> };

/** Reason why a learner cannot run or had to end; see {@link LearnerError.code}. */
export type ErrorCode =
  /** An option is invalid. */
  | "options"
  /** No engine can train the model here, or training failed repeatedly. */
  | "engine"
  /** There is no usable GPU. */
  | "gpu"
  /** The syncer did not answer for too long. */
  | "unreachable"
  /** The syncer refused this learner. */
  | "refused"
  /** The run requires an invite, and the given one is missing, wrong, used up or expired. */
  | "invite"
  /** Another learner with the same identity took over, for example in another tab of this browser. */
  | "replaced"
  /** The browser provided no random bytes. */
  | "random"
  /** The code could not be loaded. */
  | "load"
  /** The Worker crashed: a bug of this package. */
  | "worker"
  /** The caller's signal aborted it. */
  | "aborted";

/** An error with a stable code. */
export class LearnerError extends Error {
  override readonly name = "LearnerError";
  constructor(
    /** Names the cause; stable between versions. */
    readonly code: ErrorCode,
    message: string,
  ) {
    super(message);
  }
}
