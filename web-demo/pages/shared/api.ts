// What the syncer's routes answer.
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

/** A run at one moment, as in `/v1/status`, the event `status` and the last line of `--json`. */
export type ServerStatus = {
  /** Socket bits per uploaded parameter. */
  bitsPerParamUp: number | null,
  /** Socket bits per downloaded parameter. */
  bitsPerParamDown: number | null,
  /** Tokens that all learners trained per second, over the last 10 seconds. */
  tokensPerS: number,
  /** Time since the newest merge of this process, in seconds. */
  lastMergeAgeS: number | null,
  /** Held-out loss before training, in nats per token. */
  valLossFirst: number | null,
  /** Newest held-out loss, in nats per token. */
  valLossLast: number | null,
  /** The trusted learner that measured the newest loss, if the syncer cannot measure it. */
  valMeasuredBy?: LearnerId,
  /** Text that the newest parameters wrote. */
  sample: string,
  /** The foremost learners, sorted by id. Connected learners take precedence, then those with the most merged tokens. */
  learners: Array<LearnerView>,
  /** Number of all learners ever seen, by state. */
  learnersByState: LearnersByState,
  /** Open sockets, with or without a learner. */
  sockets: number,
  /** State of tape and snapshots on disk. */
  disk: DiskView,
  /** Active alerts for the owner. */
  alerts: Array<AlertView>,
  /** Time since the server started, in seconds. */
  uptimeS: number,
  /** Time that the run's syncers were up, in seconds; [`SeriesView::time_s`] is on this clock. */
  runS: number,
  /** The run, as 16 hex digits. */
  run: string,
  /** Its layout, as 16 hex digits. */
  layout: string,
  /** Parameters of the model. */
  params: number,
  /** Connections with a learner. */
  connected: number,
  /** Connected learners that hold the parameters and take part in rounds. */
  live: number,
  /** Learners ever seen. */
  learnersTotal: number,
  /** Tokens trained by all learners. */
  tokensTrained: number,
  /** Tokens merged; also the clock of the inner schedule. */
  tokensMerged: number,
  /** Participation: merged over trained tokens, 0 to 1. */
  participation: number,
  /** Rounds that led to a version. */
  rounds: number,
  /** Rounds without a merge. */
  roundsAbandoned: number,
  /** Rounds in flight. */
  roundsOpen: number,
  /** Updates received. */
  updates: number,
  /** Updates in open rounds, still without a fate. */
  updatesPending: number,
  /** Fates of all other updates. */
  fates: Fates,
  /** Pass over the data, from 0. */
  epoch: number,
  /** Upper bound of the windows trained twice because a lease was lost. */
  regrantedWindows: number,
  /** Measured times. */
  timing: Timing,
  /** The current upper limit of the grace window, in milliseconds. */
  graceMs: number,
  /** Mean of the connected learners' last training losses, in nats per token. */
  trainLoss: number | null,
  /** Id, version and size of each fragment. */
  fragments: Array<[FragmentId, Version, number]>,
  /** Whether the owner paused the run: nothing is launched or leased. */
  paused: boolean,
  /** Whether the last collection has begun. */
  finishing: boolean,
  /** Whether the run is complete: no learner trains any more, and the figures stay constant. */
  finished: boolean,
  /** The preset's name. */
  preset: string,
  /** Name of the folder whose model the run started from, if any; the run has the size of that model. */
  init: string | null,
  /** The adapters and their frozen weights, if the run trains adapters. */
  adapters?: AdapterFacts,
  /** Source of the text. */
  corpus: string,
  /** Tokens to train on. */
  corpusTokens: number,
  /** Bytes of text per token, on average. */
  bytesPerToken: number,
  /** Whether a token is a byte, so that a page can decode it without a request. */
  tokenIsByte: boolean,
  /** Lower bound of any model's loss in nats per token, if the text's distribution is known. */
  entropyFloor: number | null,
  /** Tokens at which the learning rate reaches its minimum. */
  totalTokens: number,
  /** Whether learners must show an invite. */
  inviteRequired: boolean,
  /** Whether the run is for a class: pages show how to join, and the owner steers single learners. */
  classroom: boolean,
  /** Whether the learners' names and devices are hidden. */
  namesHidden: boolean,
  /** Pages to lend a machine, best first, without the invite. */
  links: Array<string>,
  /** WebSocket bytes from learners while training, including frame headers and pings. */
  bytesUp: number,
  /** The same to learners. */
  bytesDown: number,
  /** Parameters in all updates received. */
  valuesUp: number,
  /** Parameters in all merged fragments sent. */
  valuesDown: number,
  /** Greetings and fetched parameters, both ways. */
  joinBytes: number,
  /** Fetched shards. */
  dataBytes: number,
};

/** Adapters on weights that are not trained. */
export type AdapterFacts = {
  /** Rank of each adapter. */
  rank: number,
  /** Scale: each adapter adds this divided by the rank, times its product. */
  alpha: number,
  /** The matrices of a layer that have an adapter, as "q,k,v,o,gate,up,down". */
  targets: string,
  /** Weights that are not trained. */
  frozenParams: number,
  /** Size of the frozen weights that a learner fetches once, in bytes. */
  frozenBytes: number,
  /** Format of the frozen weights on the wire. */
  frozenForm: FrozenForm,
};

/** The form in which weights that a run does not train are sent and held. */
export type FrozenForm = "f16" | "int8";

/** State of the run's tape and snapshots on disk. */
export type DiskView = {
  /** Reason why the tape cannot be written. The run stops until it can, and then resumes by itself. */
  tapeFault: string | null,
  /** Reason why the newest snapshot was not written; decisions are still recorded. */
  snapshotFault: string | null,
  /** In a run on several machines, the fault of a shared service that stops merges, as seen by this process. Merges resume by themselves. */
  servicesFault: string | null,
  /** Decisions on disk since the run began. */
  decisions: number,
  /** Decisions that are not on disk yet. The figures include them; a crash now would undo them. Learners do not know them yet. */
  unsaved: number,
  /** Time that the oldest of them has waited for the disk, in seconds. */
  unsavedAgeS: number | null,
  /** Updates on the disk, in bytes. */
  updateBytes: number,
  /** Age of the newest snapshot of this process, in seconds. */
  snapshotAgeS: number | null,
};

/** One learner. */
export type LearnerView = {
  /** Its id in the run. */
  learner: LearnerId,
  /** Fingerprint of its key, 32 hex digits, as used in bans. */
  fingerprint: string,
  /** Its name for people. */
  name: string,
  /** Its own description of its device. */
  device: string,
  /** Kind of its device. */
  kind: DeviceKind,
  /** Its state; `null` while it is away. */
  state: LearnerState | null,
  /** Whether it takes part in rounds. */
  live: boolean,
  /** Time since it connected, in seconds; `null` while it is away. */
  connectedS: number | null,
  /** Duration of its steps, in milliseconds; 0 if unknown. */
  stepMs: number,
  /** Windows in its batch; 0 until it trains. */
  batch: number,
  /** Time from a request to its answer, in milliseconds; 0 if unknown. It includes the latency and the rest of its step. */
  answerMs: number,
  /** Whether its link is too slow for every change, so that it fetches whole fragments at its own pace. */
  thin: boolean,
  /** Tokens it trained per second, over the last 10 seconds. */
  tokensPerS: number,
  /** Its last training loss, in nats per token. */
  loss: number | null,
  /** Tokens it trained on. */
  tokensTrained: number,
  /** Its merged tokens. */
  tokensMerged: number,
  /** Its share of all merged tokens, 0 to 1. */
  mergedShare: number,
  /** Number of its updates. */
  updates: number,
  /** Fates of its updates. */
  fates: Fates,
  /** The share of its pace that the owner allows it, 0.001 to 1. */
  share: number,
  /** The run's trust in it. */
  trust: Trust,
  /** Reason for the suspicion that it does not train, as a sentence for people; `null` if there is none. */
  doubt: string | null,
  /** Time until it may come back, in seconds, if the owner dropped it; `null` otherwise. */
  returnsS: number | null,
};

/** Kind of a learner's device. */
export type DeviceKind = "browser" | "gpu" | "cpu" | "other";

/** Trust of a run in a learner. */
export type Trust = "probation" | "trusted" | "suspect" | "out";

/** An invite without its text, for its owner. */
export type InviteView = {
  /** Its name. */
  id: string,
  /** The owner's note. */
  note: string,
  /** Number of new keys that it may admit. */
  uses: number,
  /** Number of keys that it admitted. */
  used: number,
  /** Time of creation, in milliseconds since 1970. */
  madeMs: number,
  /** Time of expiry, in milliseconds since 1970; `null` if unlimited. */
  expiresMs: number | null,
  /** Time of revocation, in milliseconds since 1970; `null` if valid. */
  revokedMs: number | null,
};

/** A new invite, the only answer that contains its text. */
export type MadeInvite = {
  /** Its name in lists. */
  id: string,
  /** The text that a learner shows. */
  invite: string,
};

/** A banned key. */
export type BanView = {
  /** The key's fingerprint, 32 hex digits. */
  fingerprint: string,
  /** The owner's note. */
  note: string,
  /** Time of the ban, in milliseconds since 1970. */
  atMs: number,
};

/** What a learner is doing. */
export type LearnerState = "joining" | "training" | "paused" | "hidden" | "starved" | "held";

/** Number of learners in each state. */
export type LearnersByState = {
  /** Fetching parameters or data. */
  joining: number,
  /** Training. */
  training: number,
  /** Paused by their owners. */
  paused: number,
  /** In hidden tabs. */
  hidden: number,
  /** Without a lease to train on. */
  starved: number,
  /** Waiting because the run's owner paused it. */
  held: number,
  /** Not connected. */
  away: number,
};

/** Number of updates by fate. */
export type Fates = {
  /** Merged. */
  merged: number,
  /** Late, by reason. */
  late: { [key in LateReason]?: number },
  /** Refused, by reason. */
  refused: { [key in Refusal]?: number },
};

/** Moving averages of measured times, in milliseconds; 0 until measured. */
export type Timing = {
  /** ξ_step: one inner step of the median live learner. */
  stepMs: number,
  /** ξ_launch: from the launch of one round to that of the next; H/P steps, at least 1 step. */
  launchMs: number,
  /** ξ_quorum: from the start of a round to its K-th update. */
  quorumMs: number,
  /** ξ_sync: from the end of collecting to the merged fragment being sent. */
  syncMs: number,
  /** From the start of a round to an update for it, late ones included. */
  answerMs: number,
};

/** `/v1/learners`: one page of learners. */
export type LearnersPage = {
  /** Learners ever seen. */
  total: number,
  /** Learners skipped before this page. */
  offset: number,
  /** Sort order. */
  sort: Sort,
  /** The learners of this page. */
  learners: Array<LearnerView>,
};

/** Sort orders of learners; ties are broken by id. */
export type Sort = "merged" | "speed" | "name" | "state";

/** `/v1/series`: columns of equal length, oldest first, with measurements and texts. */
export type SeriesView = {
  /** Seconds per point. When it doubles, fetch all points again. */
  spanS: number,
  /** Uptime of the run's syncers, in seconds. */
  timeS: Array<number>,
  /** Mean training loss, in nats per token. */
  trainLoss: Array<number | null>,
  /** Tokens trained per second. */
  tokensPerS: Array<number>,
  /** Participation so far: merged over trained tokens, 0 to 1. */
  participation: Array<number>,
  /** Learners in rounds. */
  live: Array<number>,
  /** WebSocket bytes from learners so far. */
  bytesUp: Array<number>,
  /** WebSocket bytes to learners so far. */
  bytesDown: Array<number>,
  /** Tokens merged so far. */
  tokensMerged: Array<number>,
  /** Rounds merged so far. */
  rounds: Array<number>,
  /** Measurements of the held-out loss. */
  evaluations: Array<Evaluation>,
  /** Texts of the model over the run. */
  samples: Array<TextSample>,
};

/** One measurement of the held-out loss. */
export type Evaluation = {
  /** Tokens merged into the parameters measured. */
  tokensMerged: number,
  /** Rounds merged into the parameters. */
  rounds: number,
  /** Mean loss in nats per token; `null` in JSON if it is not finite. */
  loss: number,
  /** Time that the run's syncers had been up, in seconds. */
  timeS: number,
  /** The trusted learner that measured it, if the syncer cannot. */
  measuredBy?: LearnerId,
};

/** A text that the model wrote, with the state of the run. */
export type TextSample = {
  /** Time that the run's syncers had been up, in seconds. */
  timeS: number,
  /** Tokens merged into the parameters that wrote it. */
  tokensMerged: number,
  /** Held-out loss of those parameters, in nats per token; `null` in JSON if it is not finite. */
  loss: number,
  /** The text, prompt included. */
  text: string,
};

/** The event `point`: one more row of [`SeriesView`]. */
export type PointEvent = {
  /** Seconds per point from now on. */
  spanS: number,
  /** Uptime of the run's syncers, in seconds. */
  timeS: number,
  /** Mean training loss in the interval, in nats per token. */
  trainLoss: number | null,
  /** Mean tokens trained per second. */
  tokensPerS: number,
  /** Participation at the end of the interval: merged over trained tokens, 0 to 1. */
  participation: number,
  /** Mean number of learners in rounds. */
  live: number,
  /** WebSocket bytes from learners up to the end of the interval. */
  bytesUp: number,
  /** The same to learners. */
  bytesDown: number,
  /** Tokens merged up to the end of the interval. */
  tokensMerged: number,
  /** Rounds merged up to the end of the interval. */
  rounds: number,
};

/** `/v1/rounds` and the event `rounds`: some of the last rounds. */
export type RoundsView = {
  /** The server's clock, in milliseconds since it started. */
  nowMs: number,
  /** Oldest first. */
  rounds: Array<RoundReport>,
};

/** One round. `launched_ms` is on the server's clock; the other times are counted from it. */
export type RoundReport = {
  /** The round. */
  round: Round,
  /** Its fragment. */
  fragment: FragmentId,
  /** Learners invited. */
  invited: number,
  /** Time of its launch, since the server started. */
  launchedMs: number,
  /** Number of answers, in time or not. */
  answered: number,
  /** The first answers, in order of arrival. */
  answers: Array<Answer>,
  /** Time at which the quorum was reached. */
  quorumMs: number | null,
  /** Length of the grace window, if one was opened. */
  graceMs: number | null,
  /** Time at which the grace window ends, or would have ended. */
  graceEndMs: number | null,
  /** The last decision about it; times in it are on the server's clock. */
  decision: Decision | null,
  /** Time at which the merge began. */
  mergeStartMs: number | null,
  /** Time at which the merge ended or failed. */
  mergeEndMs: number | null,
  /** The resulting version, if the round was merged. */
  merged: MergedReport | null,
};

/** One learner's answer. */
export type Answer = {
  /** The learner. */
  learner: LearnerId,
  /** Time of the answer. */
  afterMs: number,
  /** Tokens that count; 0 if it had nothing to merge. */
  tokens: number,
  /** Its fate. */
  fate: AnswerFate,
  /** Whether it arrived before the round. */
  early: boolean,
  /** Reason why it was late. */
  late: LateReason | null,
  /** Reason why it was refused. */
  refused: Refusal | null,
};

/** Fate of an answer. */
export type AnswerFate = "pending" | "passed" | "merged" | "late" | "refused";

/** A decision about one round, with its cause. Times are on the server's clock. */
export type Decision = { "decision": "awaitQuorum",
  /** Updates still needed. */
  missing: number,
  /** Time at which patience ends. */
  until: Millis,
} | { "decision": "awaitGrace",
  /** Length of the window. */
  graceMs: number,
  /** Time at which the window closes. */
  until: Millis,
} | { "decision": "merge",
  /** Cause of the end of the wait. */
  why: MergeCause,
} | { "decision": "abandon",
  /** Cause of the end of the wait. */
  why: AbandonCause,
};

/** Reasons why collecting ended with a merge. */
export type MergeCause = "allAnswered" | "graceOver" | "patienceOver";

/** Reasons why collecting ended without a merge. */
export type AbandonCause = "nothingNew" | "patienceOver";

/** The result of a round. */
export type MergedReport = {
  /** The resulting version. */
  version: Version,
  /** Updates in it. */
  updates: number,
  /** Tokens in it. */
  tokens: number,
  /** L2 norm of the merged delta. */
  norm: number,
  /** From launch to the end of collecting, in milliseconds. */
  collectMs: number,
  /** From the end of collecting to sending, in milliseconds. */
  syncMs: number,
};

/** Milliseconds on the shell's monotonic clock; the origin is arbitrary. */
export type Millis = number;

/** `/v1/log` and the event `log`: lines of the run's log. */
export type LogView = {
  /** The syncer's clock, in milliseconds since 1970; subtract times of lines from it to get their ages. */
  nowMs: number,
  /** Newest first. */
  entries: Array<LogEntryView>,
};

/** One line of the log. */
export type LogEntryView = {
  /** 1, 2, 3 …, over all starts of the syncer. */
  seq: number,
  /** Time of the event, in milliseconds since 1970, by the syncer's clock. */
  atMs: number,
  /** Kind of the event. */
  kind: LogKind,
  /** The learner that it is about. */
  learner: LearnerId | null,
  /** Name that the learner had. */
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
  /** The problem, as a sentence for people. */
  text: string,
  /** Time since it was raised, in seconds. */
  forS: number,
};

/** Kinds of alerts. */
export type AlertKind = "noLearner" | "lossRose" | "snapshotOld" | "diskFault" | "suspects";

/** `/v1/settings`: the settings of the run, in the order of the help. */
export type SettingsView = {
  /** All settings except secrets and file names. */
  settings: Array<SettingView>,
};

/** One setting of the run. */
export type SettingView = {
  /** Its flag, without the hyphens before it. */
  key: string,
  /** Its value as text; `None` if it follows from another setting. */
  value: string | null,
  /** Its meaning, as a sentence. */
  about: string,
  /** Its group in the help. */
  group: string,
  /** Whether the owner may change it while the run goes on. */
  changeable: boolean,
  /** Its possible values, if there are few. */
  choices: Array<string>,
};

/** The runs of a server. */
export type RunsView = {
  /** The runs, by name. */
  runs: Array<RunView>,
  /** Whether the server takes orders to create and delete runs; a server of one run does not. */
  several: boolean,
};

/** One run of a server. */
export type RunView = {
  /** Its name; empty on a server of one run. */
  name: string,
  /** Path of its pages, below those of the server. */
  path: string,
  /** The link to lend a machine, invite included; only for requests with the owner's token. */
  link: string | null,
  /** State of the run. */
  state: RunState,
  /** Reason of its failure, if it failed. */
  why: string | null,
  /** Its figures, while it is served. */
  figures: RunFigures | null,
};

/** State of a run. */
export type RunState = "starting" | "open" | "paused" | "complete" | "archived" | "failed";

/** The figures of a run. */
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
  /** Whether learners must show an invite. */
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
