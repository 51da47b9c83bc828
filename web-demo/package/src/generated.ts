// Settings and messages of a learner.
//
// Generated from Rust types. Do not edit: change those, then run
// cargo xtask test --bless types

/** Id of a learner in a run. The syncer numbers identities in the order in which they first joined. */
export type LearnerId = number;

/** Id of a fragment, one of the `P` parts of the parameters. */
export type FragmentId = number;

/** Id of a round of one fragment, unique in a run, also across restarts. */
export type Round = string;

/** Number of a state of one fragment. It grows with each merge. After a restart from a snapshot it jumps to an unused range, so that a version never names two states. */
export type Version = string;

/** Reason why an update is late. */
export type LateReason = "round_over" | "stale_base";

/** Reason why an update was refused. */
export type Refusal = "not_invited" | "unsettled" | "empty" | "shape" | "checksum" | "not_finite" | "norm" | "unleased";

/** Outcome of an update. Every update has exactly one. */
export type Fate = { "merged": {
  /** Version that contains the update. */
  version: Version,
  /** Relative weight of the update in the merge, 0 to 1. */
  weight: number,
  /** Tokens of the update that were credited. */
  tokens: number,
} } | { "late": LateReason } | { "refused": Refusal };

/** Activity of a learner. */
export type Doing = "connecting" | "joining" | "starved" | "held" | "training" | "paused" | "leaving";

/** Reason for the missing connection, and the time until the next attempt. */
export type Offline = {
  /** Reason in words. */
  reason: string,
  /** Close code, if the syncer gave one; 4014 if the run's owner dropped this learner. */
  code: number | null,
  /** Time until the next attempt, in milliseconds; 0 while an attempt is in progress. */
  retryMs: number,
};

/** State and counters of a learner. */
export type Report = {
  /** Time since the start of the learner, in milliseconds. */
  elapsedMs: number,
  /** Current activity. */
  doing: Doing,
  /** Reason for the missing connection; none while the learner is connected. */
  offline: Offline | null,
  /** Part of the training time that the run's owner allows, 0.001 to 1. */
  share: number,
  /** Training steps. */
  steps: number,
  /** Tokens trained on. */
  tokensTrained: number,
  /** Merged tokens by receipt: the mean over fragments, weighted by their numbers of values. */
  tokensMerged: number,
  /** Tokens of updates that the syncer received and that have no fate yet: the mean over fragments, weighted by their numbers of values. */
  tokensUnsettled: number,
  /** Merged updates, by receipt. */
  updatesMerged: number,
  /** Late updates, by receipt. */
  updatesLate: number,
  /** Refused updates, by receipt. */
  updatesRefused: number,
  /** Merged tokens of the run that are credited to its schedule, as last reported by the syncer. */
  clockTokens: number,
  /** Mean loss over the tokens since the last report, in nats per token; none without tokens. */
  loss: number | null,
  /** Learning rate of the last step. */
  learningRate: number,
  /** Tokens per second over the last 10 s, including pauses. */
  tokensPerS: number,
  /** Duration of the last step, in milliseconds. */
  stepMs: number,
  /** Fraction of time lost to the exchange and to missing data: their time divided by that time plus the training time, from the first step on; 0 to 1. */
  syncRatio: number,
  /** Time in training steps, in milliseconds. */
  trainMs: number,
  /** Time for messages and for encoding and applying parameters after the first step, in milliseconds. */
  exchangeMs: number,
  /** Time without training data after the first step, in milliseconds. */
  starvedMs: number,
  /** Payload bytes sent on sockets. */
  sentBytes: number,
  /** Payload bytes received on sockets. */
  receivedBytes: number,
  /** Bytes of parameters and text fetched over HTTP. */
  fetchedBytes: number,
  /** Bytes of the run's frozen weights that are present, from the cache or fetched. */
  frozenBytes: number,
  /** Bytes of all frozen weights; 0 if the run has no frozen weights. */
  frozenBytesTotal: number,
};

/** Event that an observer may want to show. In JSON its name is under `event`. */
export type Event = { "event": "connecting",
  /** Address of the syncer. */
  address: string,
} | { "event": "preparing",
  /** The run, as 16 hex digits. */
  run: string,
} | { "event": "welcomed",
  /** The run, as 16 hex digits. */
  run: string,
  /** Id of this learner in the run. */
  learner: LearnerId,
  /** Number of parameters of the model. */
  params: number,
  /** Description of the engine's device. */
  device: string,
  /** Windows in one training step. */
  batch: number,
  /** Tokens that this identity had trained on before this process, according to the syncer. */
  tokensTrained: number,
  /** Merged tokens among these. */
  tokensMerged: number,
} | { "event": "firstStep",
  /** Time since the start of the learner, in milliseconds. */
  elapsedMs: number,
} | { "event": "disconnected",
  /** Reason in words. */
  reason: string,
  /** Time until the next attempt, in milliseconds. */
  retryMs: number,
} | { "event": "afresh",
  /** Reason in words. */
  reason: string,
} | { "event": "receipt",
  /** Fragment of the update. */
  fragment: FragmentId,
  /** Outcome of the update. */
  fate: Fate,
} | { "event": "merged",
  /** Fragment that changes. */
  fragment: FragmentId,
  /** Resulting version. */
  version: Version,
} | { "event": "trouble",
  /** Fault in words. */
  reason: string,
} | { "event": "progress" } & Report;

/** Options for taking part in a run. */
export type RawJoin = {
  /** Address of the syncer, with or without the part from `#` on. */
  syncer: string,
  /** Half of the learner's key, as 64 hex digits: the public half if `browser_signs`, otherwise the secret half. It must be the same at each start. */
  identity: string,
  /** Whether the browser holds the secret half of the key and signs. */
  browserSigns: boolean,
  /** Name of the learner, for display. */
  name: string,
  /** Choice of the engine: "auto", "gpu" or "cpu". */
  engine: string,
  /** Maximum number of Workers that help a CPU engine; 0 for none. */
  helpers: number,
  /** Duty cycle: fraction of the time spent training, above 0 and at most 1. */
  share: number,
  /** Number of windows in a batch, 1 to 4096; `null` for as many as the run specifies or as fit this device. */
  batch: number | null,
  /** Maximum time to try to join for the first time, in milliseconds. */
  contactMsMax: number,
  /** Number of steps between two saves of the optimiser's moments; 0 for never. */
  saveSteps: number,
  /** Whether the Worker stores the frozen weights of runs. */
  keeps: boolean,
};

/** Options for a measurement of the training speed. */
export type RawMeasure = {
  /** Choice of the engine: "gpu" or "cpu". */
  engine: string,
  /** Maximum number of Workers that help a CPU engine; 0 for none. */
  helpers: number,
  /** Name of a preset: "tiny", "small", "medium", "base", "llama-135m" or "llama-360m". */
  preset: string,
  /** Time to train after the first step, in milliseconds. */
  trainMs: number,
};

/** Answer of [`crate::wire::http::MODEL`]: properties of the model for a program that writes text with it. */
export type ModelView = {
  /** Shape of the model, for an engine; a page need not interpret it. */
  model: unknown,
  /** Number of fragments in which the parameters are fetched. */
  fragments: number,
  /** True if each token is a byte, so that a page can decode tokens without a request. */
  tokenIsByte: boolean,
  /** Tokens at which the model stops writing; they are not part of the text. */
  stops: Array<number>,
};

/** Estimated memory and speed of a preset in this browser. */
export type PresetFacts = {
  /** Name of the preset. */
  name: string,
  /** Number of the model's parameters. */
  params: number,
  /** Size of parameters, gradient, moments and exchange state, in bytes, without activations. */
  stateBytes: number,
  /** Trained tokens per second. It is measured for one preset and estimated from the number of operations for the others. */
  tokensPerS: number,
};

/** Result of a measurement of the training speed. */
export type Measured = {
  /** Engine and device, such as "cpu wasm simd128" or "gpu …". */
  device: string,
  /** Number of the model's parameters. */
  params: number,
  /** Trained tokens per second. */
  tokensPerS: number,
  /** Time from the search for a device to the end of the first step, in milliseconds. */
  firstStepMs: number,
  /** Mean loss of the last step, in nats per token. */
  loss: number,
  /** Number of measured steps. */
  steps: number,
  /** Memory that WebAssembly holds, in bytes, without buffers of the GPU. */
  memoryBytes: number,
  /** Maximum size of a binding on the GPU, in bytes; `null` on the CPU. */
  bindingBytesMax: number | null,
  /** Estimated memory and speed of each preset, smallest first. */
  presets: Array<PresetFacts>,
};

/** Notice that a page may show. As JSON it has its name under `event`. */
export type Notice = { "event": "engine",
  /** Kind of engine: "gpu" or "cpu". */
  engine: string,
  /** Engine and device, for display. */
  device: string,
  /** Reason for a CPU engine, if a GPU was wanted. */
  fallback: string | null,
  /** Whether the engine continues with moments that an earlier page saved. */
  restored: boolean,
};
