// Inputs and results of lessons, and the figures of the paper's models.
//
// Generated from Rust types. Do not edit: change those, then run
// cargo xtask test --bless types
import type { LateReason, Refusal } from "@archipelago-train/learner";

/** The code of one value within its block. */
export type Code = "int4" | "e3m0" | "int2" | "int1" | "f32";

/** Rules by which updates are averaged. */
export type MergeRule = "radial" | "radial-all" | "flat" | "mean";

/** Whether one island's influence on a merge is bounded, as the syncer bounds it by default. */
export type Bounds = "on" | "off";

/** [`archipelago_core::wire::ApplyPolicy`] by name; a blend keeps half. */
export type Apply = "keep" | "keepResidue" | "overwrite" | "blend";

/** The two kinds of lockstep training. */
export type Lockstep = "waits" | "elastic";

/** All inputs of a lesson except the actions on its islands: see [`Action`].  *
 The text is already on every island: links carry only the model and its changes, decoupled and in lockstep alike. */
export type LessonSpec = {
  /** Seed of the parameters, the text, the order of the data, and all random numbers. */
  seed: number,
  /** M, the islands: 1 to 8. */
  islands: number,
  /** K, the updates that a merge needs: at least 1. */
  quorum: number,
  /** γ, the share of the slack that the syncer waits after the quorum, 0 to 1; 0 means no grace window. */
  grace: number,
  /** H, steps between two rounds of the same fragment: 1 to 1,000. */
  syncEvery: number,
  /** P, the fragments: 1 to 24. */
  fragments: number,
  /** τ, rounds in flight: 1 to 8. */
  roundsInFlight: number,
  /** The code of values in both directions. */
  code: Code,
  /** The merge rule. */
  merge: MergeRule,
  /** Whether one island's influence on a merge is bounded. */
  bounds: Bounds,
  /** Treatment of an island's own progress when it applies a merged fragment. */
  apply: Apply,
  /** Reaction of the lockstep twin to a missing island. */
  lockstep: Lockstep,
  /** Step time of the fastest island, in milliseconds: 10 to 10,000. */
  stepMs: number,
  /** The slowest island's steps take `1 + spread` times as long, with the others spaced evenly between: 0 to 10. */
  spread: number,
  /** Random variation of a step's duration, as a share of it: 0 to 1. */
  jitter: number,
  /** One-way latency between an island and the syncer, in milliseconds: 0 to 10,000. */
  latencyMs: number,
  /** Rate of each direction of an island's link, in kB/s; 0 is unlimited. */
  kilobytesPerS: number,
  /** Share of transmissions that are lost and retransmitted: 0 to 0.5. */
  loss: number,
  /** Number of islands, the last ones, that start later: fewer than `islands`. */
  late: number,
  /** Their start time, in milliseconds. */
  lateMs: number,
};

/** The kind of an action on an island. */
export type Deed = "kill" | "restart" | "slow" | "far" | "partition" | "heal" | "poison" | "lie" | "cure";

/** An action on an island. */
export type Action = {
  /** Time, in milliseconds from the beginning; a past time means now. */
  atMs: number,
  /** The island, from 0. */
  island: number,
  /** The kind of action. */
  deed: Deed,
  /** For [`Deed::Slow`]: factor on the duration of steps, 1 to 100; 1 is full speed. For [`Deed::Far`]: the one-way latency grows by 10 ms for each unit above 1, up to 100; 1 is the original latency. Otherwise unused. */
  factor: number,
};

/** A setting of a [`LessonSpec`] that may change while a lesson runs, with the same name and range. The other settings, such as the fragments or the code, are fixed when the run begins, or belong to its history. */
export type Setting = { "quorum": number } | { "grace": number } | { "roundsInFlight": number } | { "merge": MergeRule } | { "lockstep": Lockstep } | { "stepMs": number } | { "spread": number } | { "jitter": number } | { "latencyMs": number } | { "kilobytesPerS": number } | { "loss": number };

/** A change of a setting while a lesson runs. */
export type Change = {
  /** Time of the change, in milliseconds from the beginning; a past time means now. */
  atMs: number,
  /** The setting and its new value. */
  to: Setting,
};

/** The activity of an island. */
export type IslandState = "expected" | "training" | "joining" | "offline" | "dead";

/** One island at one moment. */
export type Island = {
  /** Current activity. */
  state: IslandState,
  /** Whether it is cut off from the syncer. */
  partitioned: boolean,
  /** Whether its updates are forged. */
  poisoned: boolean,
  /** Whether it sends the opposite of its progress. */
  lies: boolean,
  /** Factor on the duration of its steps. */
  slow: number,
  /** One-way latency of its link, in milliseconds. */
  latencyMs: number,
  /** Reason of its permanent stop, if any. */
  stopped: string | null,
  /** Steps so far. */
  steps: number,
  /** Tokens of those steps. */
  tokens: number,
  /** Its merged tokens. */
  merged: number,
  /** Training loss of its last step, in nats per token. */
  loss: number | null,
  /** Mean time of its steps, in milliseconds. */
  stepMs: number,
  /** Steps that it could have taken since its start time, at full speed and without a pause. */
  possibleSteps: number,
};

/** A run at one moment. */
export type Totals = {
  /** Last measured loss of Θ on held-out text, in nats per token. */
  heldOut: number | null,
  /** The entropy of the text, a lower bound of any model's loss. */
  floor: number,
  /** Tokens trained. */
  tokensTrained: number,
  /** Tokens merged. */
  tokensMerged: number,
  /** Merged over trained tokens, 0 to 1. */
  participation: number,
  /** Trained tokens over those that the islands could have trained at full speed without a pause, 0 to 1. */
  goodput: number,
  /** Rounds merged. */
  rounds: number,
  /** Islands that take part in rounds. */
  live: number,
  /** Bytes from the islands to the syncer. */
  bytesUp: number,
  /** Bytes from the syncer to the islands. */
  bytesDown: number,
  /** Longest current wait after the quorum, in milliseconds. */
  graceMs: number,
  /** Typical time from the start of a round to its quorum, in milliseconds. */
  quorumMs: number,
  /** Updates refused. */
  refused: number,
  /** Updates that came late. */
  late: number,
};

/** The kind of a travelling message. */
export type ParcelKind = "collect" | "update" | "merged" | "whole";

/** An island's part in a merge. */
export type Share = {
  /** The island. */
  island: number,
  /** Its share of the total weight, 0 to 1. */
  share: number,
};

/** An event. Islands count from 0, times are in milliseconds. */
export type Mark = { "kind": "step",
  /** The island. */
  island: number,
  /** Beginning. */
  fromMs: number,
  /** End. */
  untilMs: number,
} | { "kind": "parcel",
  /** The island at one end; the syncer is at the other. */
  island: number,
  /** Whether it goes to the syncer. */
  up: boolean,
  /** The kind of message. */
  what: ParcelKind,
  /** The round of the message. */
  round: number | null,
  /** The fragment. */
  fragment: number,
  /** Size in bytes. */
  bytes: number,
  /** Beginning. */
  fromMs: number,
  /** End, unless the link is cut. */
  untilMs: number,
  /** Its first values as codes from −7 to 7, at most 32; empty if the message carries no code. */
  glimpse: Array<number>,
} | { "kind": "launched",
  /** Its number. */
  round: number,
  /** The fragment. */
  fragment: number,
  /** Time. */
  atMs: number,
} | { "kind": "answered",
  /** The round; `null` if none was collecting. */
  round: number | null,
  /** The island. */
  island: number,
  /** Time. */
  atMs: number,
  /** Tokens of progress; 0 for no progress. */
  tokens: number,
} | { "kind": "quorum",
  /** The round. */
  round: number,
  /** Time. */
  atMs: number,
} | { "kind": "grace",
  /** The round. */
  round: number,
  /** Beginning. */
  atMs: number,
  /** Latest end. */
  untilMs: number,
} | { "kind": "merged",
  /** The round. */
  round: number,
  /** The fragment. */
  fragment: number,
  /** Time. */
  atMs: number,
  /** The islands in the merge, with their weights. */
  shares: Array<Share>,
  /** L2 norm of the merged change over the weighted mean norm of its updates: 1 if they are equally long, and 1/√M under a plain mean of M orthogonal updates. */
  length: number,
} | { "kind": "abandoned",
  /** The round. */
  round: number,
  /** Time. */
  atMs: number,
} | { "kind": "refused",
  /** The round; `null` if none was collecting. */
  round: number | null,
  /** The island. */
  island: number,
  /** Time. */
  atMs: number,
  /** The reason. */
  why: Refusal,
} | { "kind": "late",
  /** The round; `null` if none was collecting. */
  round: number | null,
  /** The island. */
  island: number,
  /** Time. */
  atMs: number,
  /** The reason. */
  why: LateReason,
} | { "kind": "applied",
  /** The island. */
  island: number,
  /** The fragment. */
  fragment: number,
  /** Time. */
  atMs: number,
} | { "kind": "live",
  /** The island. */
  island: number,
  /** Time. */
  atMs: number,
} | { "kind": "left",
  /** The island. */
  island: number,
  /** Time. */
  atMs: number,
} | { "kind": "heldOut",
  /** Time. */
  atMs: number,
  /** In nats per token. */
  loss: number,
  /** Tokens merged at that time. */
  tokens: number,
};

/** A lesson at one moment. */
export type Frame = {
  /** Time, in milliseconds. */
  nowMs: number,
  /** The islands, in order. */
  islands: Array<Island>,
  /** The run as a whole. */
  run: Totals,
  /** Events since the last frame. */
  marks: Array<Mark>,
};

/** An event of the twin. Times are in milliseconds. */
export type TwinMark = { "kind": "step",
  /** Beginning. */
  fromMs: number,
  /** Time at which the slowest island had its gradient. */
  computedMs: number,
  /** Time at which all had the sum. */
  untilMs: number,
} | { "kind": "stall",
  /** The first island that they wait for. */
  island: number,
  /** Beginning. */
  fromMs: number,
  /** End, once it is known. */
  untilMs: number | null,
} | { "kind": "heldOut",
  /** Time. */
  atMs: number,
  /** In nats per token. */
  loss: number,
  /** Tokens trained at that time. */
  tokens: number,
};

/** The synchronous twin at one moment. */
export type TwinFrame = {
  /** Time, in milliseconds. */
  nowMs: number,
  /** Islands that all others wait for. */
  stalledBy: Array<number>,
  /** Common steps of all islands. */
  steps: number,
  /** Tokens of those steps. */
  tokens: number,
  /** Trained tokens over those that the islands could have trained at full speed without a pause, 0 to 1. */
  goodput: number,
  /** Bytes from and to the islands. */
  bytes: number,
  /** Training loss of the last step, in nats per token. */
  loss: number | null,
  /** Last measured loss on held-out text, in nats per token. */
  heldOut: number | null,
  /** Events since the last frame. */
  marks: Array<TwinMark>,
};

/** A machine of many chips. */
export type ClusterSpec = {
  /** N, chips in all. */
  chips: number,
  /** Mean time between interruptions of one chip, in years. */
  mtbiYears: number,
  /** M, learners that share them. */
  learners: number,
  /** Whether a learner goes on without the chips that it lost. */
  elastic: boolean,
  /** Seed of all chance. */
  seed: number,
};

/** Result for one machine. */
export type Yield = {
  /** Share of the chip time that trained, 0 to 1. */
  goodput: number,
  /** Share of the time in which anyone trained, 0 to 1. */
  uptime: number,
  /** Interruptions in an hour. */
  interruptionsPerHour: number,
};

/** Exchange method. */
export type Way = "dataParallel" | "diloco" | "streaming" | "decoupled";

/** A training over several data centres. */
export type LinkNeed = {
  /** Parameters, in billions. */
  paramsBillion: number,
  /** Bits of a value. */
  bits: number,
  /** Time of a step, in seconds. */
  stepS: number,
  /** Data centres. */
  dataCentres: number,
  /** Exchange method. */
  method: Way,
  /** H. */
  syncEvery: number,
  /** P. */
  fragments: number,
  /** τ. */
  roundsInFlight: number,
  /** Share of the time that is to be computing, 0 to 1. */
  utilisation: number,
};

/** Longest lesson, in milliseconds of its own time. */
export const LESSON_MS_MAX = 86400000;

/** What each data centre adds to an exchange of Decoupled DiLoCo, in milliseconds. */
export const DATA_CENTRE_LATENCY_MS = 32;
