// Inputs and results of lessons, and the figures of the paper's models.
//
// Generated from Rust types. Do not edit: change those, then run
// cargo xtask test --bless types
import type { LateReason, Refusal } from "@archipelago-train/learner";

/** Code of one value within its block. */
export type Code = "int4" | "e3m0" | "int2" | "int1" | "f32";

/** Rules by which updates are averaged. */
export type MergeRule = "radial" | "radial-all" | "flat" | "mean";

/** Whether an island's influence on a merge is bounded. */
export type Bounds = "on" | "off";

/** Variants of [`archipelago_core::wire::ApplyPolicy`] by name. `Blend` keeps half. */
export type Apply = "keep" | "keepResidue" | "overwrite" | "blend";

/** Reaction of lockstep training to a missing island. */
export type Lockstep = "waits" | "elastic";

/** Settings of a lesson, without the actions on its islands (see [`Action`]).  *
 Every island already has the text. Links transfer only parameters and changes, or gradients in lockstep. */
export type LessonSpec = {
  /** Seed of the parameters, the text, the order of the data, and all random numbers. */
  seed: number,
  /** Number of islands, M: 1 to 8. */
  islands: number,
  /** Number of updates that a merge needs, K: at least 1. */
  quorum: number,
  /** Fraction of the slack that the syncer waits after the quorum, γ: 0 to 1; 0 means no grace window. */
  grace: number,
  /** Number of steps between two rounds of the same fragment, H: 1 to 1,000. */
  syncEvery: number,
  /** Number of fragments, P: 1 to 24. */
  fragments: number,
  /** Maximum number of rounds in flight, τ: 1 to 8. */
  roundsInFlight: number,
  /** Code of updates and changes. */
  code: Code,
  /** Merge rule. */
  merge: MergeRule,
  /** Whether one island's influence on a merge is bounded. */
  bounds: Bounds,
  /** Treatment of an island's unmerged progress when it applies a merged change. */
  apply: Apply,
  /** Reaction of the lockstep twin to a missing island. */
  lockstep: Lockstep,
  /** Mean step time of the fastest island, in milliseconds: 10 to 10,000. */
  stepMs: number,
  /** Additional step time of the slowest island, as a fraction of the fastest island's: 0 to 10. The others are spaced evenly. */
  spread: number,
  /** Random variation of a step's duration, as a fraction of it: 0 to 1. */
  jitter: number,
  /** One-way latency between an island and the syncer, in milliseconds: 0 to 10,000. */
  latencyMs: number,
  /** Rate of an island's link in each direction, in kB/s; 0 means unlimited. */
  kilobytesPerS: number,
  /** Probability that a transmission is lost and repeated: 0 to 0.5. */
  loss: number,
  /** Number of islands that start later, the last ones: fewer than `islands`. */
  late: number,
  /** Start time of these islands, in milliseconds. */
  lateMs: number,
};

/** Kind of action on an island. */
export type Deed = "kill" | "restart" | "slow" | "far" | "partition" | "heal" | "poison" | "lie" | "cure";

/** Action on an island. */
export type Action = {
  /** Time of the action, in milliseconds since the beginning; a time in the past means now. */
  atMs: number,
  /** Number of the island, from 0. */
  island: number,
  /** Kind of action. */
  deed: Deed,
  /** Strength of the action. For [`Deed::Slow`], factor on the duration of steps, 1 to 100; 1 is full speed. For [`Deed::Far`], each unit above 1 adds 10 ms to the one-way latency, 1 to 100; 1 is the original latency. Otherwise unused. */
  factor: number,
};

/** Setting of a [`LessonSpec`] that may change during a lesson, with the field's name and range. Other settings, such as the number of fragments or the code, cannot change during a run. */
export type Setting = { "quorum": number } | { "grace": number } | { "roundsInFlight": number } | { "merge": MergeRule } | { "lockstep": Lockstep } | { "stepMs": number } | { "spread": number } | { "jitter": number } | { "latencyMs": number } | { "kilobytesPerS": number } | { "loss": number };

/** Change of a setting during a lesson. */
export type Change = {
  /** Time of the change, in milliseconds since the beginning; a time in the past means now. */
  atMs: number,
  /** Setting with its new value. */
  to: Setting,
};

/** Activity of an island. */
export type IslandState = "expected" | "training" | "joining" | "offline" | "dead";

/** State of one island at one time. */
export type Island = {
  /** Current activity. */
  state: IslandState,
  /** Whether the island is disconnected from the syncer. */
  partitioned: boolean,
  /** Whether the island sends updates of impossible size. */
  poisoned: boolean,
  /** Whether the island sends the opposite of its progress. */
  lies: boolean,
  /** Factor on the duration of the island's steps. */
  slow: number,
  /** One-way latency of the island's link, in milliseconds. */
  latencyMs: number,
  /** Reason why the island stopped for good, if it did. */
  stopped: string | null,
  /** Number of steps taken. */
  steps: number,
  /** Number of tokens in these steps. */
  tokens: number,
  /** Number of the island's merged tokens. */
  merged: number,
  /** Training loss of the last step, in nats per token. */
  loss: number | null,
  /** Mean step time at full speed, in milliseconds. */
  stepMs: number,
  /** Number of steps that the island could have taken since it started, at full speed and without a pause. */
  possibleSteps: number,
};

/** State of a run at one time. */
export type Totals = {
  /** Latest measured loss of Θ on held-out text, in nats per token. */
  heldOut: number | null,
  /** Entropy of the text in nats per token, a lower bound of any model's loss. */
  floor: number,
  /** Number of trained tokens. */
  tokensTrained: number,
  /** Number of merged tokens. */
  tokensMerged: number,
  /** Merged over trained tokens, 0 to 1. */
  participation: number,
  /** Trained tokens over the tokens that the islands could have trained at full speed without a pause, 0 to 1. */
  goodput: number,
  /** Number of merged rounds. */
  rounds: number,
  /** Number of islands that take part in rounds. */
  live: number,
  /** Bytes sent from the islands to the syncer. */
  bytesUp: number,
  /** Bytes sent from the syncer to the islands. */
  bytesDown: number,
  /** Longest current grace window of any round, in milliseconds. */
  graceMs: number,
  /** Typical time from the launch of a round to its quorum, in milliseconds. */
  quorumMs: number,
  /** Number of refused updates. */
  refused: number,
  /** Number of late updates. */
  late: number,
};

/** Kind of a message about a fragment. */
export type ParcelKind = "collect" | "update" | "merged" | "whole";

/** Weight of an island in a merge. */
export type Share = {
  /** Number of the island. */
  island: number,
  /** Fraction of the total weight, 0 to 1. */
  share: number,
};

/** Event of a lesson. Islands are numbered from 0, and times are in milliseconds since the beginning. */
export type Mark = { "kind": "step",
  /** Number of the island. */
  island: number,
  /** Start time of the step. */
  fromMs: number,
  /** End time of the step. */
  untilMs: number,
} | { "kind": "parcel",
  /** Island that sends or receives the message; the syncer is at the other end. */
  island: number,
  /** Whether the message goes to the syncer. */
  up: boolean,
  /** Kind of message. */
  what: ParcelKind,
  /** Round of the message, if it has one. */
  round: number | null,
  /** Fragment of the message. */
  fragment: number,
  /** Size of the message, in bytes. */
  bytes: number,
  /** Time at which the message was sent. */
  fromMs: number,
  /** Time at which the message arrives, unless the link is cut. */
  untilMs: number,
  /** The first values as codes from −7 to 7, at most 32; empty if the message has no coded values. */
  glimpse: Array<number>,
} | { "kind": "launched",
  /** Number of the round. */
  round: number,
  /** Fragment of the round. */
  fragment: number,
  /** Time of the launch. */
  atMs: number,
} | { "kind": "answered",
  /** Round of the update; `null` if no round of its fragment was open. */
  round: number | null,
  /** Number of the island. */
  island: number,
  /** Time of arrival. */
  atMs: number,
  /** Number of tokens in the update; 0 if there was no progress. */
  tokens: number,
} | { "kind": "quorum",
  /** Number of the round. */
  round: number,
  /** Time of the quorum. */
  atMs: number,
} | { "kind": "grace",
  /** Number of the round. */
  round: number,
  /** Start of the grace window. */
  atMs: number,
  /** Latest end of the grace window. */
  untilMs: number,
} | { "kind": "merged",
  /** Number of the round. */
  round: number,
  /** Fragment of the round. */
  fragment: number,
  /** Time of the merge. */
  atMs: number,
  /** Islands whose updates were merged, with their weights. */
  shares: Array<Share>,
  /** L2 norm of the merged change, divided by the weighted mean norm of its updates. It is 1 if updates and change are equally long, and 1/√M for the mean of M orthogonal updates. */
  length: number,
} | { "kind": "abandoned",
  /** Number of the round. */
  round: number,
  /** Time of the decision. */
  atMs: number,
} | { "kind": "refused",
  /** Round of the update; `null` if no round of its fragment was open. */
  round: number | null,
  /** Number of the island. */
  island: number,
  /** Time of the decision. */
  atMs: number,
  /** Reason of the refusal. */
  why: Refusal,
} | { "kind": "late",
  /** Round of the update; `null` if no round of its fragment was open. */
  round: number | null,
  /** Number of the island. */
  island: number,
  /** Time of the decision. */
  atMs: number,
  /** Reason why the update was late. */
  why: LateReason,
} | { "kind": "applied",
  /** Number of the island. */
  island: number,
  /** Fragment of the change. */
  fragment: number,
  /** Time of the change. */
  atMs: number,
} | { "kind": "live",
  /** Number of the island. */
  island: number,
  /** Time of the event. */
  atMs: number,
} | { "kind": "left",
  /** Number of the island. */
  island: number,
  /** Time of the event. */
  atMs: number,
} | { "kind": "heldOut",
  /** Time of the measurement. */
  atMs: number,
  /** Loss in nats per token. */
  loss: number,
  /** Number of merged tokens at that time. */
  tokens: number,
};

/** State of a lesson at one time. */
export type Frame = {
  /** Time since the beginning, in milliseconds. */
  nowMs: number,
  /** State of each island, in order. */
  islands: Array<Island>,
  /** State of the run. */
  run: Totals,
  /** Events since the previous frame. */
  marks: Array<Mark>,
};

/** Event of the twin. Times are in milliseconds since the beginning. */
export type TwinMark = { "kind": "step",
  /** Start time of the step. */
  fromMs: number,
  /** Time at which the slowest island had computed its gradient. */
  computedMs: number,
  /** Time at which all islands had received the sum of gradients. */
  untilMs: number,
} | { "kind": "stall",
  /** The first missing island. */
  island: number,
  /** Start of the wait. */
  fromMs: number,
  /** End of the wait; `null` while it lasts. */
  untilMs: number | null,
} | { "kind": "heldOut",
  /** Time of the measurement. */
  atMs: number,
  /** Loss in nats per token. */
  loss: number,
  /** Number of trained tokens at that time. */
  tokens: number,
};

/** State of the synchronous twin at one time. */
export type TwinFrame = {
  /** Time since the beginning, in milliseconds. */
  nowMs: number,
  /** Islands for which all others wait. */
  stalledBy: Array<number>,
  /** Number of steps, which all islands take together. */
  steps: number,
  /** Number of tokens in these steps. */
  tokens: number,
  /** Trained tokens over the tokens that the islands could have trained at full speed without a pause, 0 to 1. */
  goodput: number,
  /** Bytes sent to and from all islands. */
  bytes: number,
  /** Training loss of the last step, in nats per token. */
  loss: number | null,
  /** Latest measured loss on held-out text, in nats per token. */
  heldOut: number | null,
  /** Events since the previous frame. */
  marks: Array<TwinMark>,
};

/** Machine of many chips. */
export type ClusterSpec = {
  /** Total number of chips, N. */
  chips: number,
  /** Mean time between interruptions of one chip, in years. */
  mtbiYears: number,
  /** Number of learners that share the chips, M. */
  learners: number,
  /** Whether a learner continues without chips that it lost. */
  elastic: boolean,
  /** Seed of all random numbers. */
  seed: number,
};

/** Result of simulating a machine. */
export type Yield = {
  /** Fraction of the chip time that was spent training, 0 to 1. */
  goodput: number,
  /** Fraction of the time in which at least one learner trained, 0 to 1. */
  uptime: number,
  /** Number of interruptions per hour. */
  interruptionsPerHour: number,
};

/** Exchange method. */
export type Way = "dataParallel" | "diloco" | "streaming" | "decoupled";

/** Training over several data centres. */
export type LinkNeed = {
  /** Number of parameters, in billions. */
  paramsBillion: number,
  /** Bits per exchanged value. */
  bits: number,
  /** Time of an inner step, in seconds. */
  stepS: number,
  /** Number of data centres. */
  dataCentres: number,
  /** Exchange method. */
  method: Way,
  /** Number of steps between two exchanges, H. */
  syncEvery: number,
  /** Number of fragments, P. */
  fragments: number,
  /** Number of steps that an exchange may take, τ. */
  roundsInFlight: number,
  /** Required compute utilisation, 0 to 1. */
  utilisation: number,
};

/** Longest lesson, in milliseconds of its own time. */
export const LESSON_MS_MAX = 86400000;

/** What each data centre adds to an exchange of Decoupled DiLoCo, in milliseconds. */
export const DATA_CENTRE_LATENCY_MS = 32;
