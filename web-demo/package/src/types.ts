/** What a page asks of a learner, and what it hears. */
import type { Event, Notice } from "./generated.js";

export type * from "./generated.js";

/** "auto" takes the GPU if there is one that the model fits, the CPU otherwise. */
export type EngineKind = "auto" | "gpu" | "cpu";

/** Where the code is that a Worker loads. Bundlers that understand `new URL(…, import.meta.url)` need none of it. */
export interface Sources {
  /** Address of `worker.js` of this package. */
  readonly workerUrl?: string | URL;
  /** Folder that holds `plain/` and `relaxed/` of this package's `dist/wasm`. */
  readonly wasmUrl?: string | URL;
}

/** How to take part in a run. */
export interface JoinOptions extends Sources {
  /** A name for people; cut to 64 bytes. */
  readonly name?: string;
  /** What to train with. */
  readonly engine?: EngineKind;
  /** Workers that a CPU engine trains with, 1 or more; by default as many as there are cores, less one where there are many. */
  readonly workers?: number;
  /** Share of time to compute, above 0 and at most 1. */
  readonly share?: number;
  /**
   * Windows of the text in one step, 1 to 4096; by default as many as the run says, fewer where a step would take longer
   * than 2 s on this device.
   */
  readonly batch?: "auto" | number;
  /** How long to try to be taken in for the first time, in milliseconds. */
  readonly contactMsMax?: number;
  /**
   * Keeps the identity, the optimiser's moments and the frozen weights of runs of adapters in this browser. Without it
   * each start is a newcomer's.
   */
  readonly remember?: boolean;
  /** Ends the run politely when it fires. */
  readonly signal?: AbortSignal;
}

/** Options of {@link measure}. */
export interface MeasureOptions extends Sources {
  /** Which engine; it must be there. */
  readonly engine: "gpu" | "cpu";
  /** "tiny", "small", "medium", "base", "llama-135m" or "llama-360m". */
  readonly preset: string;
  /** Workers that a CPU engine trains with, 1 or more; by default as many as there are cores, less one where there are many. */
  readonly workers?: number;
  /** How long to train after the first step, in milliseconds; one more step at least. */
  readonly trainMs?: number;
  /** Gives up when it fires. */
  readonly signal?: AbortSignal;
}

/** What the package itself tells. */
export type PackageEvent =
  /** Another page of this browser takes part in the same run; this one begins when that ends. */
  | { readonly event: "standby" }
  /** The browser keeps nothing; the next start is a newcomer's. */
  | { readonly event: "forgetful"; readonly reason: string }
  /** The browser cannot hold a key itself, for it is old or the page is not secure: scripts of the page could read it. */
  | { readonly event: "softKey" };

/** Everything that a learner tells. */
export type LearnerEvent = Event | Notice | PackageEvent;

/** The events by name. */
export type LearnerEventMap = { [K in LearnerEvent["event"]]: Extract<LearnerEvent, { event: K }> };

/** Why a learner cannot run, or no longer; see {@link LearnerError.code}. */
export type ErrorCode =
  /** An option makes no sense. */
  | "options"
  /** No engine can train the model here, or it failed again and again. */
  | "engine"
  /** There is no GPU, or it cannot be used. */
  | "gpu"
  /** The syncer did not answer for too long. */
  | "unreachable"
  /** The syncer will not have this learner. */
  | "refused"
  /** The run requires an invite, and the given one is missing, wrong, used up or expired. */
  | "invite"
  /** Another learner with the same identity took its place: another tab of this browser, say. */
  | "replaced"
  /** The browser gave no random bytes. */
  | "random"
  /** The code could not be loaded. */
  | "load"
  /** The Worker broke down: a fault of ours. */
  | "worker"
  /** It was given up by its signal. */
  | "aborted";

/** An error with a stable code. */
export class LearnerError extends Error {
  override readonly name = "LearnerError";
  constructor(
    /** Names the cause; it does not change between versions. */
    readonly code: ErrorCode,
    message: string,
  ) {
    super(message);
  }
}
