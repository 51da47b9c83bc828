// Answers of the syncer's routes.
//
// GET /v1/runs                 RunsView
// GET /v1/status               ServerStatus
// GET /v1/learners?offset=&limit=&sort=   LearnersPage
// GET /v1/series               SeriesView
// GET /v1/rounds               RoundsView
// GET /v1/log?name=&limit=     LogView
// GET /v1/settings             SettingsView
// GET /v1/invites              InviteView[], for the owner; POST makes one: MadeInvite
// GET /v1/bans                 BanView[], for the owner
// GET /v1/events               EventSource with the events of ServerEvents; their data is JSON
//
// Generated from Rust types. Do not edit: change those, then run
// cargo xtask test --bless types
import type { LearnerId, FragmentId, Round, Version, LateReason, Refusal } from "@archipelago-train/learner";

/** Status of a run, as in `/v1/status`, the event `status` and the last line of `--json`. */
export type ServerStatus = {
  /** WebSocket bits per uploaded parameter. */
  bitsPerParamUp: number | null,
  /** WebSocket bits per downloaded parameter. */
  bitsPerParamDown: number | null,
  /** Tokens that all learners together trained per second, over the last 10 seconds. */
  tokensPerS: number,
  /** Time since the newest merge in this process, in seconds. */
  lastMergeAgeS: number | null,
  /** Held-out loss before training, in nats per token. */
  valLossFirst: number | null,
  /** Newest held-out loss, in nats per token. */
  valLossLast: number | null,
  /** Trusted learner that measured the newest loss, if the syncer cannot measure it. */
  valMeasuredBy?: LearnerId,
  /** Newest text that the model generated. */
  sample: string,
  /** The most relevant learners, in order of number. Connected learners take precedence, then those with the most merged tokens. */
  learners: Array<LearnerView>,
  /** Number of learners in each state, of all learners ever seen. */
  learnersByState: LearnersByState,
  /** Open WebSockets, with or without a learner. */
  sockets: number,
  /** State of tape, snapshots and shared services. */
  disk: DiskView,
  /** Active alerts for the owner. */
  alerts: Array<AlertView>,
  /** Time since the server started, in seconds. */
  uptimeS: number,
  /** Total uptime of the run's syncers, in seconds, as in [`SeriesView::time_s`]. */
  runS: number,
  /** Id of the run, as 16 hex digits. */
  run: string,
  /** Hash of the run's layout, as 16 hex digits. */
  layout: string,
  /** Number of parameters that the run trains. */
  params: number,
  /** Connected learners. */
  connected: number,
  /** Connected learners that hold the parameters and take part in rounds. */
  live: number,
  /** All learners ever seen. */
  learnersTotal: number,
  /** Tokens trained by all learners. */
  tokensTrained: number,
  /** Merged tokens, which are also the clock of the learning-rate schedule. */
  tokensMerged: number,
  /** Participation: merged over trained tokens, 0 to 1. */
  participation: number,
  /** Rounds that ended with a merge. */
  rounds: number,
  /** Rounds that ended without a merge. */
  roundsAbandoned: number,
  /** Rounds in progress. */
  roundsOpen: number,
  /** Updates received. */
  updates: number,
  /** Updates without a fate, in rounds in progress. */
  updatesPending: number,
  /** Fates of all other updates. */
  fates: Fates,
  /** Number of the pass over the text, from 0. */
  epoch: number,
  /** Upper bound of the windows trained twice because a lease expired. */
  regrantedWindows: number,
  /** Measured times. */
  timing: Timing,
  /** Current maximum of the grace window, in milliseconds. */
  graceMs: number,
  /** Mean of the connected learners' last training losses, in nats per token. */
  trainLoss: number | null,
  /** Id, version and number of values of each fragment. */
  fragments: Array<[FragmentId, Version, number]>,
  /** True if the owner paused the run: no round is launched and no lease is granted. */
  paused: boolean,
  /** True once the last updates are being collected. */
  finishing: boolean,
  /** True if the run is complete: no learner trains any more, and the status stays constant. */
  finished: boolean,
  /** Name of the preset. */
  preset: string,
  /** Name of the folder whose model the run started from, if any. The run's model then has the size of that model. */
  init: string | null,
  /** Facts about adapters and frozen weights, if the run trains adapters. */
  adapters?: AdapterFacts,
  /** Name of the text. */
  corpus: string,
  /** Number of training tokens in the text. */
  corpusTokens: number,
  /** Bytes of text per token, on average. */
  bytesPerToken: number,
  /** True if each token is a byte, so that a page can decode tokens without a request. */
  tokenIsByte: boolean,
  /** Lower bound of the held-out loss of any model, in nats per token, if the text's distribution is known. */
  entropyFloor: number | null,
  /** Merged tokens at which the learning rate reaches its minimum. */
  totalTokens: number,
  /** True if learners must present an invite. */
  inviteRequired: boolean,
  /** True if the run is for a class: pages show how to join, and the owner controls single learners. */
  classroom: boolean,
  /** True if the names and devices of learners are hidden. */
  namesHidden: boolean,
  /** Links to the page for joining, best first, without the invite. */
  links: Array<string>,
  /** WebSocket bytes from learners while training, including frame headers and pings. */
  bytesUp: number,
  /** WebSocket bytes to learners while training, including frame headers and pings. */
  bytesDown: number,
  /** Parameters in all updates received. */
  valuesUp: number,
  /** Parameters in all merged fragments sent. */
  valuesDown: number,
  /** Bytes of handshakes and fetched parameters, in both directions. */
  joinBytes: number,
  /** Bytes of fetched shards. */
  dataBytes: number,
};

/** Adapters that a run trains, and the frozen weights below them. */
export type AdapterFacts = {
  /** Rank of each adapter. */
  rank: number,
  /** Scale: the product of an adapter is added with the factor alpha divided by rank. */
  alpha: number,
  /** Matrices in each layer that have an adapter, as in "q,k,v,o,gate,up,down". */
  targets: string,
  /** Number of weights that are not trained. */
  frozenParams: number,
  /** Size of the frozen weights, which a learner fetches once, in bytes. */
  frozenBytes: number,
  /** Format of the frozen weights for learners. */
  frozenForm: FrozenForm,
};

/** Format in which frozen weights are sent and stored. */
export type FrozenForm = "f16" | "int8";

/** State of the run's tape and snapshots on disk. */
export type DiskView = {
  /** Reason why the tape cannot be written. The run pauses until it can be written, and then resumes by itself. */
  tapeFault: string | null,
  /** Reason why the newest snapshot was not written. Decisions are still recorded. */
  snapshotFault: string | null,
  /** In a run on several machines, the fault of a shared service that stops merges, as this process sees it. Merges resume by themselves. */
  servicesFault: string | null,
  /** Number of decisions on disk since the run began. */
  decisions: number,
  /** Number of decisions that are not on disk yet. The status includes them, but a crash now would undo them. Learners are not informed of them yet. */
  unsaved: number,
  /** Time for which the oldest unwritten decision has waited for the disk, in seconds. */
  unsavedAgeS: number | null,
  /** Size of update bodies on disk, in bytes. */
  updateBytes: number,
  /** Age of the newest snapshot written by this process, in seconds. */
  snapshotAgeS: number | null,
};

/** State of one learner. */
export type LearnerView = {
  /** Number of the learner in the run. */
  learner: LearnerId,
  /** Fingerprint of the learner's key, 32 hex digits, as used in bans. */
  fingerprint: string,
  /** Display name of the learner. */
  name: string,
  /** The learner's own description of its device. */
  device: string,
  /** Kind of the learner's device. */
  kind: DeviceKind,
  /** Activity of the learner; `null` while it is not connected. */
  state: LearnerState | null,
  /** True if the learner takes part in rounds. */
  live: boolean,
  /** Time since the learner connected, in seconds; `null` while it is not connected. */
  connectedS: number | null,
  /** Duration of the learner's steps, in milliseconds; 0 if unknown. */
  stepMs: number,
  /** Windows in the learner's batch; 0 until it trains. */
  batch: number,
  /** Time from a request for an update to its arrival, in milliseconds; 0 if unknown. It includes the latency and the rest of the current step. */
  answerMs: number,
  /** True if the learner's link is too slow for every change. It then fetches whole fragments at its own pace. */
  thin: boolean,
  /** Tokens that the learner trained per second, over the last 10 seconds. */
  tokensPerS: number,
  /** Last training loss that the learner reported, in nats per token. */
  loss: number | null,
  /** Tokens that the learner trained. */
  tokensTrained: number,
  /** Merged tokens of the learner. */
  tokensMerged: number,
  /** The learner's share of all merged tokens, 0 to 1. */
  mergedShare: number,
  /** Number of updates from the learner. */
  updates: number,
  /** Fates of the learner's updates. */
  fates: Fates,
  /** Share of its pace that the owner allows the learner, 0.001 to 1. */
  share: number,
  /** Trust of the run in the learner. */
  trust: Trust,
  /** Reason why the learner is suspected of not training, as a sentence for people; `null` if it is not. */
  doubt: string | null,
  /** Time until the learner may return, in seconds, if the owner dropped it; `null` otherwise. */
  returnsS: number | null,
};

/** Kind of a learner's device. */
export type DeviceKind = "browser" | "gpu" | "cpu" | "other";

/** Trust of a run in a learner. */
export type Trust = "probation" | "trusted" | "suspect" | "out";

/** An invite without its text, as its owner sees it. */
export type InviteView = {
  /** Id of the invite. */
  id: string,
  /** The owner's note. */
  note: string,
  /** Number of new keys that it may admit. */
  uses: number,
  /** Number of keys that the invite has admitted. */
  used: number,
  /** Time of creation, in milliseconds since 1970. */
  madeMs: number,
  /** Time of expiry, in milliseconds since 1970; `null` if unlimited. */
  expiresMs: number | null,
  /** Time of revocation, in milliseconds since 1970; `null` if the invite is not revoked. */
  revokedMs: number | null,
};

/** A new invite. No other answer contains its text. */
export type MadeInvite = {
  /** Id of the invite in lists. */
  id: string,
  /** The invite's text, which learners present. */
  invite: string,
};

/** A banned key. */
export type BanView = {
  /** The key's fingerprint, as 32 hex digits. */
  fingerprint: string,
  /** The owner's note. */
  note: string,
  /** Time of the ban, in milliseconds since 1970. */
  atMs: number,
};

/** Current activity of a learner. */
export type LearnerState = "joining" | "training" | "paused" | "hidden" | "starved" | "held";

/** Number of learners in each state. */
export type LearnersByState = {
  /** Learners that fetch parameters or data. */
  joining: number,
  /** Learners that train. */
  training: number,
  /** Learners paused by their users. */
  paused: number,
  /** Learners in hidden browser tabs. */
  hidden: number,
  /** Learners without a lease to train on. */
  starved: number,
  /** Learners that wait because the run's owner paused the run. */
  held: number,
  /** Learners that are not connected. */
  away: number,
};

/** Number of updates by fate. */
export type Fates = {
  /** Merged updates. */
  merged: number,
  /** Late updates, by reason. */
  late: { [key in LateReason]?: number },
  /** Refused updates, by reason. */
  refused: { [key in Refusal]?: number },
};

/** Moving averages of measured times, in milliseconds; 0 until the first measurement. */
export type Timing = {
  /** ξ_step: duration of an inner step of the median live learner. */
  stepMs: number,
  /** ξ_launch: time from the launch of a round to the next launch: H/P steps, at least 1 step. */
  launchMs: number,
  /** ξ_quorum: time from the start of a round to its quorum. */
  quorumMs: number,
  /** ξ_sync: time from the end of collecting until the merged fragment is sent. */
  syncMs: number,
  /** Time from the start of a round until an update for it arrives, late ones included. */
  answerMs: number,
};

/** `/v1/learners`: one page of learners. */
export type LearnersPage = {
  /** Number of all learners ever seen. */
  total: number,
  /** Number of learners before this page. */
  offset: number,
  /** Sort order of the learners. */
  sort: Sort,
  /** The learners of this page. */
  learners: Array<LearnerView>,
};

/** Sort orders of learners. Ties are in order of number. */
export type Sort = "merged" | "speed" | "name" | "state";

/** `/v1/series`: columns of equal length, oldest point first, with measurements and texts. */
export type SeriesView = {
  /** Seconds per point. When it doubles, all points must be fetched again. */
  spanS: number,
  /** Total uptime of the run's syncers, in seconds. */
  timeS: Array<number>,
  /** Mean training loss, in nats per token. */
  trainLoss: Array<number | null>,
  /** Tokens trained per second. */
  tokensPerS: Array<number>,
  /** Participation so far: merged over trained tokens, 0 to 1. */
  participation: Array<number>,
  /** Learners in rounds. */
  live: Array<number>,
  /** Cumulative WebSocket bytes from learners while training. */
  bytesUp: Array<number>,
  /** Cumulative WebSocket bytes to learners while training. */
  bytesDown: Array<number>,
  /** Merged tokens. */
  tokensMerged: Array<number>,
  /** Merged rounds. */
  rounds: Array<number>,
  /** Measurements of the held-out loss. */
  evaluations: Array<Evaluation>,
  /** Texts generated over the run. */
  samples: Array<TextSample>,
};

/** One measurement of the held-out loss. */
export type Evaluation = {
  /** Merged tokens of the measured parameters. */
  tokensMerged: number,
  /** Merged rounds of the measured parameters. */
  rounds: number,
  /** Mean held-out loss, in nats per token; `null` in JSON if it is not finite. */
  loss: number,
  /** Total uptime of the run's syncers at the measurement, in seconds. */
  timeS: number,
  /** Trusted learner that measured the loss, if the syncer cannot. */
  measuredBy?: LearnerId,
};

/** A generated text, with the state of the run at that time. */
export type TextSample = {
  /** Total uptime of the run's syncers when the text was generated, in seconds. */
  timeS: number,
  /** Merged tokens of the parameters that generated the text. */
  tokensMerged: number,
  /** Held-out loss of those parameters, in nats per token; `null` in JSON if it is not finite. */
  loss: number,
  /** The text with its prompt. */
  text: string,
};

/** The event `point`: a new row for the columns of [`SeriesView`]. */
export type PointEvent = {
  /** Seconds per point from now on. */
  spanS: number,
  /** Total uptime of the run's syncers at the end of the interval, in seconds. */
  timeS: number,
  /** Mean training loss over the interval, in nats per token. */
  trainLoss: number | null,
  /** Mean of the tokens trained per second, over the interval. */
  tokensPerS: number,
  /** Participation at the end of the interval: merged over trained tokens, 0 to 1. */
  participation: number,
  /** Mean number of learners in rounds, over the interval. */
  live: number,
  /** Cumulative WebSocket bytes from learners while training, at the end of the interval. */
  bytesUp: number,
  /** Cumulative WebSocket bytes to learners while training, at the end of the interval. */
  bytesDown: number,
  /** Merged tokens at the end of the interval. */
  tokensMerged: number,
  /** Merged rounds at the end of the interval. */
  rounds: number,
};

/** `/v1/rounds` and the event `rounds`: reports on some of the last rounds. */
export type RoundsView = {
  /** Current time on the server's clock, in milliseconds since it started. */
  nowMs: number,
  /** Reports, oldest round first. */
  rounds: Array<RoundReport>,
};

/** Report on one round. `launched_ms` is on the server's clock. All other times are relative to it, except those in `decision`. */
export type RoundReport = {
  /** Number of the round. */
  round: Round,
  /** Fragment that the round merges. */
  fragment: FragmentId,
  /** Number of learners that were asked for an update. */
  invited: number,
  /** Time of the launch, in milliseconds since the server started. */
  launchedMs: number,
  /** Number of answers, in time or not. */
  answered: number,
  /** Answers in order of arrival, at most 32. */
  answers: Array<Answer>,
  /** Time at which the quorum was reached, in milliseconds after the launch. */
  quorumMs: number | null,
  /** Length of the grace window in milliseconds, if there was one. */
  graceMs: number | null,
  /** Time at which the grace window ends, or would have ended, in milliseconds after the launch. */
  graceEndMs: number | null,
  /** Last decision about the round. Times in it are on the server's clock. */
  decision: Decision | null,
  /** Time at which the merge began, in milliseconds after the launch. */
  mergeStartMs: number | null,
  /** Time at which the merge ended or failed, in milliseconds after the launch. */
  mergeEndMs: number | null,
  /** Result of the merge, once it is done. */
  merged: MergedReport | null,
};

/** Answer of one learner in a round. */
export type Answer = {
  /** Learner that answered. */
  learner: LearnerId,
  /** Time of arrival, in milliseconds after the launch; 0 if the answer came before it. */
  afterMs: number,
  /** Credited tokens of a merged update, claimed tokens of any other; 0 if the learner had nothing to merge. */
  tokens: number,
  /** Fate of the answer. */
  fate: AnswerFate,
  /** True if the answer arrived before the round was launched. */
  early: boolean,
  /** Reason why the update was late, if it was. */
  late: LateReason | null,
  /** Reason why the update was refused, if it was. */
  refused: Refusal | null,
};

/** Fate of an answer in a round. */
export type AnswerFate = "pending" | "passed" | "merged" | "late" | "refused";

/** A decision about a round, with its cause. Times are on the server's clock. */
export type Decision = { "decision": "awaitQuorum",
  /** Number of updates that are missing for a quorum. */
  missing: number,
  /** Time at which patience ends. */
  until: Millis,
} | { "decision": "awaitGrace",
  /** Length of the grace window, in milliseconds. */
  graceMs: number,
  /** Time at which the grace window closes. */
  until: Millis,
} | { "decision": "merge",
  /** Reason why the wait ended. */
  why: MergeCause,
} | { "decision": "abandon",
  /** Reason why the wait ended. */
  why: AbandonCause,
};

/** Reasons why collecting ended with a merge. */
export type MergeCause = "allAnswered" | "graceOver" | "patienceOver";

/** Reasons why collecting ended without a merge. */
export type AbandonCause = "nothingNew" | "patienceOver";

/** Result of a merge. */
export type MergedReport = {
  /** Version of the fragment after the merge. */
  version: Version,
  /** Number of merged updates. */
  updates: number,
  /** Merged tokens. */
  tokens: number,
  /** L2 norm of the merged delta. */
  norm: number,
  /** Time from launch to the end of collecting, in milliseconds. */
  collectMs: number,
  /** Time from the end of collecting until the change is sent, in milliseconds. */
  syncMs: number,
};

/** Milliseconds on the shell's monotonic clock, whose origin is arbitrary. */
export type Millis = number;

/** `/v1/log` and the event `log`: lines of the run's log. */
export type LogView = {
  /** Current time by the syncer's clock, in milliseconds since 1970. The difference to a line's time is the line's age. */
  nowMs: number,
  /** The lines, newest first. */
  entries: Array<LogEntryView>,
};

/** One line of the log. */
export type LogEntryView = {
  /** Sequence number, from 1. It continues across restarts of the syncer. */
  seq: number,
  /** Time of the event, in milliseconds since 1970, by the syncer's clock. */
  atMs: number,
  /** Kind of the event. */
  kind: LogKind,
  /** Learner that the event is about, if any. */
  learner: LearnerId | null,
  /** Name that the learner had at that time. */
  name: string | null,
  /** The event, as a sentence for people. */
  text: string,
};

/** Kinds of events in the log. */
export type LogKind = "syncer" | "joined" | "left" | "refused" | "owner" | "finished" | "trouble" | "mended";

/** An active alert. */
export type AlertView = {
  /** Kind of the alert. */
  kind: AlertKind,
  /** Description of the problem, as a sentence for people. */
  text: string,
  /** Time since the alert was raised, in seconds. */
  forS: number,
};

/** Kinds of alerts. */
export type AlertKind = "noLearner" | "lossRose" | "snapshotOld" | "diskFault" | "diskNearlyFull" | "suspects";

/** `/v1/settings`: the settings of the run, in the order of the command's help. */
export type SettingsView = {
  /** All settings except secrets and file names. */
  settings: Array<SettingView>,
};

/** One setting of the run. */
export type SettingView = {
  /** Its flag without the leading hyphens. */
  key: string,
  /** Its value as text; `None` if it follows from another setting. */
  value: string | null,
  /** Its meaning, as a sentence. */
  about: string,
  /** Its heading in the command's help. */
  group: string,
  /** True if the owner may change it while the run goes on. */
  changeable: boolean,
  /** Its possible values, if there are few. */
  choices: Array<string>,
};

/** The runs of a server. */
export type RunsView = {
  /** The runs, by name. */
  runs: Array<RunView>,
  /** True if the server takes orders to create and delete runs; false on a server of one run. */
  several: boolean,
};

/** One run of a server. */
export type RunView = {
  /** Name of the run; empty on a server of one run. */
  name: string,
  /** Path of the run's pages, relative to the server's. */
  path: string,
  /** Link for lending a machine, with the invite; only for requests with the owner's token. */
  link: string | null,
  /** State of the run. */
  state: RunState,
  /** Reason of the failure, if the run failed. */
  why: string | null,
  /** Figures of the run, while it is served. */
  figures: RunFigures | null,
};

/** State of a run. */
export type RunState = "starting" | "open" | "paused" | "complete" | "archived" | "failed";

/** Figures of a run. */
export type RunFigures = {
  /** The run, as 16 hex digits. */
  run: string,
  /** Name of the preset, or of the folder whose model it started from. */
  model: string,
  /** Parameters of the model. */
  params: number,
  /** Source of the text. */
  corpus: string,
  /** Learners that take part in rounds. */
  live: number,
  /** Learners ever seen. */
  learnersTotal: number,
  /** Tokens merged. */
  tokensMerged: number,
  /** Tokens at which the learning rate reaches its minimum. */
  totalTokens: number,
  /** Participation: merged over trained tokens, 0 to 1. */
  participation: number,
  /** Newest held-out loss, in nats per token. */
  valLossLast: number | null,
  /** True if learners must show an invite. */
  inviteRequired: boolean,
  /** Active alerts. */
  alerts: number,
};

/** The events of /v1/events by name, and what their data is. */
export type ServerEvents = {
  /** Each second. */
  status: ServerStatus,
  /** The rounds that changed, at most four times a second. */
  rounds: RoundsView,
  /** A row for the columns of SeriesView; if spanS changed, fetch them again. */
  point: PointEvent,
  evaluation: Evaluation,
  sample: TextSample,
  /** Lines of the run's log that are new, the newest first. */
  log: LogView,
  /** The number of events that were missed, because they were read too slowly. */
  lagged: number,
};
