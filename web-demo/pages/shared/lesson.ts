// What lessons are asked and what they show, and the figures of the paper's models.
//
// Generated from Rust types. Do not edit: change those, then run
// RENEW_TYPES=1 cargo test -p lesson types
import type { LateReason, Refusal } from "@archipelago-train/learner";

/** The code of one value within its block. */
export type Code = "int4" | "e3m0" | "int2" | "int1" | "f32";

/** How updates are merged. */
export type MergeRule = "radial" | "radial-all" | "mean";

/** Whether what one island can do to a merge is bounded, as the syncer bounds it by itself. */
export type Bounds = "on" | "off";

/** [`archipelago_core::wire::ApplyPolicy`] by name; a blend keeps half. */
export type Apply = "keep" | "keepResidue" | "overwrite" | "blend";

/** The two kinds of training in lock-step. */
export type Lockstep = "waits" | "elastic";

/** Everything that decides a lesson but what is done to its islands: see [`Action`].  *
 The text lies on every island already: what a link carries is the model and its changes, decoupled and in lock-step alike. */
export type LessonSpec = {
  /** Seed of the parameters, the text, the order of the data, and all chance. */
  seed: number,
  /** M, the islands: 1 to 8. */
  islands: number,
  /** K, the updates without which nothing is merged: at least 1. */
  quorum: number,
  /** γ, the share of the slack that the syncer waits after the quorum, 0 to 1; 0 is no grace. */
  grace: number,
  /** H, steps between two rounds of the same fragment: 1 to 1,000. */
  syncEvery: number,
  /** P, the fragments: 1 to 24. */
  fragments: number,
  /** τ, rounds in flight: 1 to 8. */
  roundsInFlight: number,
  /** How values travel, both ways. */
  code: Code,
  /** How updates are merged. */
  merge: MergeRule,
  /** Whether what one island can do to a merge is bounded. */
  bounds: Bounds,
  /** What an island does with a merged fragment. */
  apply: Apply,
  /** What the twin in lock-step does when an island is gone. */
  lockstep: Lockstep,
  /** Time of a step of the fastest island, in milliseconds: 10 to 10,000. */
  stepMs: number,
  /** The slowest island's steps take `1 + spread` times as long, the others' evenly between: 0 to 10. */
  spread: number,
  /** Each step takes up to this share more or less: 0 to 1. */
  jitter: number,
  /** One way between an island and the syncer, in milliseconds: 0 to 10,000. */
  latencyMs: number,
  /** Each way of an island's link, in kB/s; 0 is without limit. */
  kilobytesPerS: number,
  /** Share of transmissions that are lost and sent anew: 0 to 0.5. */
  loss: number,
  /** Islands that come later, the last ones: fewer than `islands`. */
  late: number,
  /** When they come, in milliseconds. */
  lateMs: number,
};

/** What can be done to an island. */
export type Deed = "kill" | "restart" | "slow" | "far" | "partition" | "heal" | "poison" | "lie" | "cure";

/** Something done to an island. */
export type Action = {
  /** When, in milliseconds from the beginning; what has passed is done now. */
  atMs: number,
  /** To which island, from 0. */
  island: number,
  /** What. */
  deed: Deed,
  /** For [`Deed::Slow`]: steps take so many times as long, 1 to 100; 1 is full speed. For [`Deed::Far`]: one way takes 10 ms longer for each unit above 1, up to 100; 1 is where the island was. Otherwise unused. */
  factor: number,
};

/** One setting of a [`LessonSpec`] that a lesson can take while it goes on, under the name and in the range that it has there. What is not here, such as the fragments or the code, was agreed on when the run began, or is the run's history. */
export type Setting = { "quorum": number } | { "grace": number } | { "roundsInFlight": number } | { "merge": MergeRule } | { "lockstep": Lockstep } | { "stepMs": number } | { "spread": number } | { "jitter": number } | { "latencyMs": number } | { "kilobytesPerS": number } | { "loss": number };

/** A setting that changes while a lesson goes on. */
export type Change = {
  /** When, in milliseconds from the beginning; what has passed changes now. */
  atMs: number,
  /** What, and to which value. */
  to: Setting,
};

/** What an island does. */
export type IslandState = "expected" | "training" | "joining" | "offline" | "dead";

/** One island at one moment. */
export type Island = {
  /** What it does. */
  state: IslandState,
  /** Cut off from the syncer. */
  partitioned: boolean,
  /** Its updates are forged. */
  poisoned: boolean,
  /** It sends the opposite of what it learnt. */
  lies: boolean,
  /** Its steps take so many times as long as usual. */
  slow: number,
  /** One way of its link, in milliseconds. */
  latencyMs: number,
  /** Why it stays away for good, if it does. */
  stopped: string | null,
  /** Steps so far. */
  steps: number,
  /** Tokens of those steps. */
  tokens: number,
  /** Its tokens that are merged. */
  merged: number,
  /** Training loss of its last step, in nats per token. */
  loss: number | null,
  /** Usual time of its steps, in milliseconds. */
  stepMs: number,
  /** Steps that it could have taken since it was to come, at full speed and without a pause. */
  possibleSteps: number,
};

/** A run at one moment. */
export type Totals = {
  /** Last measured loss of Θ on text that nobody trains on, in nats per token. */
  heldOut: number | null,
  /** The entropy of the text: no model's loss goes below it. */
  floor: number,
  /** Tokens trained on. */
  tokensTrained: number,
  /** Tokens merged. */
  tokensMerged: number,
  /** Merged of trained, 0 to 1. */
  participation: number,
  /** Trained, of what the islands would have trained at full speed without a pause, 0 to 1. */
  goodput: number,
  /** Rounds merged. */
  rounds: number,
  /** Islands that take part in rounds. */
  live: number,
  /** Bytes from the islands to the syncer. */
  bytesUp: number,
  /** Bytes from the syncer to the islands. */
  bytesDown: number,
  /** Longest wait after the quorum at present, in milliseconds. */
  graceMs: number,
  /** Usual time from the start of a round to its quorum, in milliseconds. */
  quorumMs: number,
  /** Updates refused. */
  refused: number,
  /** Updates that came late. */
  late: number,
};

/** What travels. */
export type ParcelKind = "collect" | "update" | "merged" | "whole";

/** An island's part in a merge. */
export type Share = {
  /** Which island. */
  island: number,
  /** Its weight of all, 0 to 1. */
  share: number,
};

/** Something that happened. Islands count from 0, times are in milliseconds. */
export type Mark = { "kind": "step",
  /** Whose. */
  island: number,
  /** From when. */
  fromMs: number,
  /** Until when. */
  untilMs: number,
} | { "kind": "parcel",
  /** The island at one end; the syncer is at the other. */
  island: number,
  /** To the syncer. */
  up: boolean,
  /** What it is. */
  what: ParcelKind,
  /** The round that it belongs to. */
  round: number | null,
  /** The fragment. */
  fragment: number,
  /** Its bytes. */
  bytes: number,
  /** From when. */
  fromMs: number,
  /** Until when, unless the link is cut. */
  untilMs: number,
  /** Its first values as codes from −7 to 7, 32 at most; none for what carries no code. */
  glimpse: Array<number>,
} | { "kind": "launched",
  /** Its number. */
  round: number,
  /** The fragment. */
  fragment: number,
  /** When. */
  atMs: number,
} | { "kind": "answered",
  /** For which round; `null` if it came while none collected. */
  round: number | null,
  /** Whose. */
  island: number,
  /** When. */
  atMs: number,
  /** Tokens of progress; 0 if there was none. */
  tokens: number,
} | { "kind": "quorum",
  /** Which round. */
  round: number,
  /** When. */
  atMs: number,
} | { "kind": "grace",
  /** In which round. */
  round: number,
  /** From when. */
  atMs: number,
  /** Until when at most. */
  untilMs: number,
} | { "kind": "merged",
  /** Which round. */
  round: number,
  /** The fragment. */
  fragment: number,
  /** When. */
  atMs: number,
  /** Who is in it, and with which weight. */
  shares: Array<Share>,
  /** L2 length of the merged change over the mean length of the updates in it, weighted as they are: 1 if it is as long as they are, and 1/√M under a plain mean of M updates that have nothing in common. */
  length: number,
} | { "kind": "abandoned",
  /** Which round. */
  round: number,
  /** When. */
  atMs: number,
} | { "kind": "refused",
  /** For which round; `null` if it came while none collected. */
  round: number | null,
  /** Whose. */
  island: number,
  /** When. */
  atMs: number,
  /** Why. */
  why: Refusal,
} | { "kind": "late",
  /** For which round; `null` if it came while none collected. */
  round: number | null,
  /** Whose. */
  island: number,
  /** When. */
  atMs: number,
  /** Why. */
  why: LateReason,
} | { "kind": "applied",
  /** Which island. */
  island: number,
  /** The fragment. */
  fragment: number,
  /** When. */
  atMs: number,
} | { "kind": "live",
  /** Which. */
  island: number,
  /** When. */
  atMs: number,
} | { "kind": "left",
  /** Which. */
  island: number,
  /** When. */
  atMs: number,
} | { "kind": "heldOut",
  /** When. */
  atMs: number,
  /** In nats per token. */
  loss: number,
  /** Tokens merged then. */
  tokens: number,
};

/** A lesson at one moment. */
export type Frame = {
  /** Its time, in milliseconds. */
  nowMs: number,
  /** The islands, in order. */
  islands: Array<Island>,
  /** The run as a whole. */
  run: Totals,
  /** What happened since the last frame. */
  marks: Array<Mark>,
};

/** Something that happened to the twin. Times are in milliseconds. */
export type TwinMark = { "kind": "step",
  /** From when. */
  fromMs: number,
  /** When the slowest had its gradient. */
  computedMs: number,
  /** When all had the sum. */
  untilMs: number,
} | { "kind": "stall",
  /** The first one that they wait for. */
  island: number,
  /** From when. */
  fromMs: number,
  /** Until when, once that is known. */
  untilMs: number | null,
} | { "kind": "heldOut",
  /** When. */
  atMs: number,
  /** In nats per token. */
  loss: number,
  /** Tokens trained on then. */
  tokens: number,
};

/** The synchronous twin at one moment. */
export type TwinFrame = {
  /** Its time, in milliseconds. */
  nowMs: number,
  /** Islands that everybody waits for. */
  stalledBy: Array<number>,
  /** Steps that all took together. */
  steps: number,
  /** Tokens of those steps. */
  tokens: number,
  /** Trained, of what the islands would have trained at full speed without a pause, 0 to 1. */
  goodput: number,
  /** Bytes from and to the islands. */
  bytes: number,
  /** Training loss of the last step, in nats per token. */
  loss: number | null,
  /** Last measured loss on text that nobody trains on, in nats per token. */
  heldOut: number | null,
  /** What happened since the last frame. */
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

/** What a machine comes to. */
export type Yield = {
  /** Share of the chip time that trained, 0 to 1. */
  goodput: number,
  /** Share of the time in which anyone trained, 0 to 1. */
  uptime: number,
  /** Interruptions in an hour. */
  interruptionsPerHour: number,
};

/** Who exchanges what. */
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
  /** Who exchanges what. */
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
