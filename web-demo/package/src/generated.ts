// Settings and messages of a learner.
//
// Generated from Rust types. Do not edit: change those, then run
// cargo xtask test --bless types

/** A learner, for the whole run: the syncer numbers identities in the order they first came. */
export type LearnerId = number;

/** One of the `P` parts that the parameters are exchanged in. */
export type FragmentId = number;

/** One collect-and-merge of one fragment; unique in a run, across restarts too. */
export type Round = string;

/** A state of one fragment. Grows with each merge; after a restart from a snapshot it jumps to a fresh range, so that a version never names two contents. */
export type Version = string;

/** Why an update came late. */
export type LateReason = "round_over" | "stale_base";

/** Why an update was refused. */
export type Refusal = "not_invited" | "unsettled" | "empty" | "shape" | "checksum" | "not_finite" | "norm" | "unleased";

/** What became of an update. Every update meets exactly one. */
export type Fate = { "merged": {
  /** The version that it led to. */
  version: Version,
  /** Its share of the merge, 0 to 1. */
  weight: number,
  /** Its tokens, as counted. */
  tokens: number,
} } | { "late": LateReason } | { "refused": Refusal };

/** What a learner is doing. */
export type Doing = "connecting" | "joining" | "starved" | "held" | "training" | "paused" | "leaving";

/** Why there is no connection, and when there may be one. */
export type Offline = {
  /** Why. */
  reason: string,
  /** The close code, if the syncer said why; 4014 if the run's owner dropped this learner. */
  code: number | null,
  /** Time to the next attempt, in milliseconds; 0 while one is under way. */
  retryMs: number,
};

/** How things stand. */
export type Report = {
  /** Time since the run began, in milliseconds. */
  elapsedMs: number,
  /** What it is doing. */
  doing: Doing,
  /** Why there is no connection, if there is none. */
  offline: Offline | null,
  /** The part of the time it would train that the run's owner has it train, 0.001 to 1. */
  share: number,
  /** Steps done. */
  steps: number,
  /** Tokens trained on. */
  tokensTrained: number,
  /** Tokens that receipts said were merged: the mean over fragments, weighted by their sizes. */
  tokensMerged: number,
  /** Tokens that the syncer has got and that have no fate yet: the mean over fragments, weighted by their sizes. */
  tokensUnsettled: number,
  /** Updates merged, by receipt. */
  updatesMerged: number,
  /** Updates that came late, by receipt. */
  updatesLate: number,
  /** Updates refused, by receipt. */
  updatesRefused: number,
  /** Merged tokens of the whole run that count for its schedule, as last heard. */
  clockTokens: number,
  /** Mean loss of the tokens since the last report, in nats per token; none without any. */
  loss: number | null,
  /** Learning rate of the last step. */
  learningRate: number,
  /** Tokens per second over the last 10 s, pauses included. */
  tokensPerS: number,
  /** Time of the last step, in milliseconds. */
  stepMs: number,
  /** Time spent on exchange or without data, as a share of that and training; from the first step on. */
  syncRatio: number,
  /** Time in steps, in milliseconds. */
  trainMs: number,
  /** Time spent on messages and on coding and taking in parameters after the first step, in milliseconds. */
  exchangeMs: number,
  /** Time without data after the first step, in milliseconds. */
  starvedMs: number,
  /** Payload bytes sent on sockets. */
  sentBytes: number,
  /** Payload bytes received on sockets. */
  receivedBytes: number,
  /** Bytes of parameters and text fetched over HTTP. */
  fetchedBytes: number,
  /** Bytes of the run's frozen weights that are here, kept by an earlier start or fetched by this one. */
  frozenBytes: number,
  /** Bytes of all of them; 0 where the run trains all its weights. */
  frozenBytesTotal: number,
};

/** Something that a watcher may want to show. As JSON each has its name under `event`. */
export type Event = { "event": "connecting",
  /** Where to. */
  address: string,
} | { "event": "preparing",
  /** The run, as 16 hex digits. */
  run: string,
} | { "event": "welcomed",
  /** The run, as 16 hex digits. */
  run: string,
  /** This learner's id in it. */
  learner: LearnerId,
  /** Parameters of the model. */
  params: number,
  /** What it is computed with. */
  device: string,
  /** Windows of the text in one step. */
  batch: number,
  /** Tokens that this identity trained on before this process, as far as the syncer knows. */
  tokensTrained: number,
  /** Those of them that are merged. */
  tokensMerged: number,
} | { "event": "firstStep",
  /** Time since the run began, in milliseconds. */
  elapsedMs: number,
} | { "event": "disconnected",
  /** Why. */
  reason: string,
  /** When the next attempt is, in milliseconds from now. */
  retryMs: number,
} | { "event": "afresh",
  /** Why. */
  reason: string,
} | { "event": "receipt",
  /** The fragment. */
  fragment: FragmentId,
  /** What became of it. */
  fate: Fate,
} | { "event": "merged",
  /** The fragment. */
  fragment: FragmentId,
  /** Its version from now on. */
  version: Version,
} | { "event": "trouble",
  /** What and why. */
  reason: string,
} | { "event": "progress" } & Report;

/** How to take part in a run. */
export type RawJoin = {
  /** Address of the syncer, with or without what follows `#`. */
  syncer: string,
  /** The learner's key, 64 hex digits, the same at each start: its public half if `browser_signs`, else its secret. */
  identity: string,
  /** Whether the browser holds the secret and signs. */
  browserSigns: boolean,
  /** Its name for people. */
  name: string,
  /** "auto", "gpu" or "cpu". */
  engine: string,
  /** Workers that help a CPU engine, at most; 0 for none. */
  helpers: number,
  /** Share of time to compute, above 0 and at most 1. */
  share: number,
  /** Windows of the text in one step, 1 to 4096; `null` for as many as the run says or as fit this device. */
  batch: number | null,
  /** How long to try to be taken in for the first time, in milliseconds. */
  contactMsMax: number,
  /** Steps between two savings of the optimiser's moments; 0 for never. */
  saveSteps: number,
  /** Whether the Worker keeps the frozen weights of runs. */
  keeps: boolean,
};

/** What to measure. */
export type RawMeasure = {
  /** "gpu" or "cpu". */
  engine: string,
  /** Workers that help a CPU engine, at most; 0 for none. */
  helpers: number,
  /** Name of a preset: "tiny", "small", "medium", "base", "llama-135m" or "llama-360m". */
  preset: string,
  /** How long to train after the first step, in milliseconds. */
  trainMs: number,
};

/** What [`crate::wire::http::MODEL`] answers: the model as whoever writes with it must know it. */
export type ModelView = {
  /** The shape, for an engine; a page need not look into it. */
  model: unknown,
  /** Fragments that the parameters are fetched in. */
  fragments: number,
  /** Whether a token is a byte, so that nobody need be asked what it means. */
  tokenIsByte: boolean,
  /** Tokens at which the model stops writing; they are no part of the text. */
  stops: Array<number>,
};

/** What a preset asks of this browser. */
export type PresetFacts = {
  /** Its name. */
  name: string,
  /** Parameters of the model. */
  params: number,
  /** Parameters, gradient, moments and what the exchange holds, in bytes; activations not included. */
  stateBytes: number,
  /** Tokens trained on per second at the rate of operations that was measured: an estimate but for the preset that was measured. */
  tokensPerS: number,
};

/** What training here comes to. */
export type Measured = {
  /** What it was computed with: "cpu wasm simd128", "gpu, …". */
  device: string,
  /** Parameters of the model. */
  params: number,
  /** Tokens trained on per second. */
  tokensPerS: number,
  /** From looking for the device to the end of the first step, in milliseconds. */
  firstStepMs: number,
  /** Mean loss of the last step, in nats per token. */
  loss: number,
  /** Steps measured. */
  steps: number,
  /** Memory that WebAssembly holds, in bytes; buffers of the GPU not included. */
  memoryBytes: number,
  /** Largest binding of a kernel on the GPU, in bytes. */
  bindingBytesMax: number | null,
  /** What that means for each preset, smallest first. */
  presets: Array<PresetFacts>,
};

/** Something that a page may want to show. As JSON each has its name under `event`. */
export type Notice = { "event": "engine",
  /** "gpu" or "cpu". */
  engine: string,
  /** Engine and device, for people. */
  device: string,
  /** Why it is not the GPU, if one was wanted. */
  fallback: string | null,
  /** Whether it goes on with moments from an earlier page. */
  restored: boolean,
};
