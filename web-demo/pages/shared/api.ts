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
// RENEW_TYPES=1 cargo test -p syncer-server types
import type { LearnerId, FragmentId, Round, Version, LateReason, Refusal } from "@archipelago-train/learner";

/** A run at one moment, as `/v1/status`, the event `status` and the last line of `--json` give it. */
export type ServerStatus = {
  /** Bits on the socket per parameter that went up. */
  bitsPerParamUp: number | null,
  /** Bits on the socket per parameter that went down. */
  bitsPerParamDown: number | null,
  /** Tokens that all learners trained on in a second, over the last 10 seconds. */
  tokensPerS: number,
  /** Time since the newest merge of this process, in seconds. */
  lastMergeAgeS: number | null,
  /** Held-out loss before training, in nats per token. */
  valLossFirst: number | null,
  /** Newest held-out loss, in nats per token. */
  valLossLast: number | null,
  /** The learner that measured the newest one, where the syncer cannot and its owner trusts that one. */
  valMeasuredBy?: LearnerId,
  /** Text that the newest parameters wrote. */
  sample: string,
  /** The foremost learners, by id: the connected before the others, then those with the most merged tokens. */
  learners: Array<LearnerView>,
  /** All learners ever seen, counted. */
  learnersByState: LearnersByState,
  /** Open sockets, with a learner behind them or not. */
  sockets: number,
  /** What is kept on the disk, and what is wrong with that. */
  disk: DiskView,
  /** What the owner should look after. */
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
  /** Connections with a learner behind them. */
  connected: number,
  /** Those that hold the parameters and take part in rounds. */
  live: number,
  /** Learners ever seen. */
  learnersTotal: number,
  /** Tokens trained on, by everyone. */
  tokensTrained: number,
  /** Tokens merged; also the clock of the inner schedule. */
  tokensMerged: number,
  /** Merged of trained, 0 to 1. */
  participation: number,
  /** Rounds that led to a version. */
  rounds: number,
  /** Rounds that led to nothing. */
  roundsAbandoned: number,
  /** Rounds in flight. */
  roundsOpen: number,
  /** Updates taken in. */
  updates: number,
  /** Updates in rounds that are still in flight, whose fate is yet to come. */
  updatesPending: number,
  /** What became of all others. */
  fates: Fates,
  /** The pass over the data, from 0. */
  epoch: number,
  /** Windows trained twice because their lease was lost, at most. */
  regrantedWindows: number,
  /** Measured times. */
  timing: Timing,
  /** The longest wait after quorum at present, in milliseconds. */
  graceMs: number,
  /** Mean of the connected learners' last training losses, in nats per token. */
  trainLoss: number | null,
  /** Each fragment's version and the size of it. */
  fragments: Array<[FragmentId, Version, number]>,
  /** Whether the owner holds the run: nothing is launched or leased. */
  paused: boolean,
  /** Whether the last collection has begun. */
  finishing: boolean,
  /** Whether the run is complete: nobody trains any more, and what is shown stays as it is. */
  finished: boolean,
  /** The preset's name. */
  preset: string,
  /** The name of the folder whose model the run began with, if it began with one: its size is that model's. */
  init: string | null,
  /** What the parameters are adapters of, if all other weights stay as they are. */
  adapters?: AdapterFacts,
  /** Where the text is from. */
  corpus: string,
  /** Tokens to train on. */
  corpusTokens: number,
  /** Bytes of text behind one token, on average. */
  bytesPerToken: number,
  /** Whether a token is a byte, so that a page need ask nobody what it means. */
  tokenIsByte: boolean,
  /** Loss in nats per token that no model can beat, where the text's source is known. */
  entropyFloor: number | null,
  /** Tokens at which the learning rate has come down. */
  totalTokens: number,
  /** Whether learners must show an invite. */
  inviteRequired: boolean,
  /** Whether the run is for a class: pages show how to join, and the owner steers single learners. */
  classroom: boolean,
  /** Whether the owner lets nobody see the learners' names and devices. */
  namesHidden: boolean,
  /** Pages to lend a machine, best first, without the invite. */
  links: Array<string>,
  /** WebSocket bytes from learners while training, headers of frames and pings included. */
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
  /** The rank of each. */
  rank: number,
  /** What they count: each adds this divided by the rank, times its product. */
  alpha: number,
  /** The matrices of a layer that have one, as "q,k,v,o,gate,up,down". */
  targets: string,
  /** Weights that are not trained. */
  frozenParams: number,
  /** What a learner fetches of them once, in bytes. */
  frozenBytes: number,
  /** How they travel. */
  frozenForm: FrozenForm,
};

/** The form in which weights that a run does not train are sent and held. */
export type FrozenForm = "f16" | "int8";

/** What is kept of the run on the disk, and what is wrong with that. */
export type DiskView = {
  /** Why the run stands still: its decisions cannot be kept. It goes on by itself once they can. */
  tapeFault: string | null,
  /** Why the newest snapshot was not written; decisions are kept all the same. */
  snapshotFault: string | null,
  /** In a run on several machines, why nothing is merged: what its processes share does not do its part, as this one sees it. It goes on by itself once it does. */
  servicesFault: string | null,
  /** Decisions kept since the run began. */
  decisions: number,
  /** Decisions that the figures know of and the disk does not yet: a crash at this moment would undo them. Learners have not been told of them. */
  unsaved: number,
  /** How long the oldest of them has waited for the disk, in seconds. */
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
  /** The short name of its key, 32 hex digits: who bans it says this. */
  fingerprint: string,
  /** Its name for people. */
  name: string,
  /** What it computes with, in its own words. */
  device: string,
  /** What kind of device that is. */
  kind: DeviceKind,
  /** What it is doing; `null` while it is away. */
  state: LearnerState | null,
  /** Whether it takes part in rounds. */
  live: boolean,
  /** How long it has been connected, in seconds; `null` while it is away. */
  connectedS: number | null,
  /** Its time of a step, in milliseconds, 0 if unknown. */
  stepMs: number,
  /** Windows that it trains on in one step, 0 until it trains. */
  batch: number,
  /** From a question to its answer, in milliseconds, 0 if unknown: how far away it is, with the rest of its step. */
  answerMs: number,
  /** Whether its link cannot carry every change, so that it fetches whole fragments at its own pace. */
  thin: boolean,
  /** Tokens it trained on in a second, over the last 10 seconds. */
  tokensPerS: number,
  /** Its last training loss, in nats per token. */
  loss: number | null,
  /** Tokens it trained on. */
  tokensTrained: number,
  /** Its tokens that are merged. */
  tokensMerged: number,
  /** Its share of all merged tokens, 0 to 1. */
  mergedShare: number,
  /** Its updates. */
  updates: number,
  /** What became of them. */
  fates: Fates,
  /** The part of the time it would train that the owner has it train, 0.001 to 1. */
  share: number,
  /** How far the run trusts it. */
  trust: Trust,
  /** Why it is suspected of not training, as a sentence for people; `null` if it is not. */
  doubt: string | null,
  /** Time until it may come back, in seconds, if the owner sent it away; `null` otherwise. */
  returnsS: number | null,
};

/** What a learner computes with. */
export type DeviceKind = "browser" | "gpu" | "cpu" | "other";

/** How far a run trusts a learner. */
export type Trust = "probation" | "trusted" | "suspect" | "out";

/** An invite as its owner sees it later. */
export type InviteView = {
  /** Its name. */
  id: string,
  /** What the owner noted. */
  note: string,
  /** New keys that it takes in. */
  uses: number,
  /** Keys that it took in. */
  used: number,
  /** When it was made, in milliseconds since 1970. */
  madeMs: number,
  /** Until when it is good; `null` for ever. */
  expiresMs: number | null,
  /** Since when it is revoked; `null` if it is not. */
  revokedMs: number | null,
};

/** An invite that was made: the only time that its text is there. */
export type MadeInvite = {
  /** Its name in lists. */
  id: string,
  /** What its guest shows. */
  invite: string,
};

/** One who was banned. */
export type BanView = {
  /** The key's fingerprint, 32 hex digits. */
  fingerprint: string,
  /** What the owner noted. */
  note: string,
  /** When, in milliseconds since 1970. */
  atMs: number,
};

/** What a learner is doing. */
export type LearnerState = "joining" | "training" | "paused" | "hidden" | "starved" | "held";

/** How many learners are in which state. */
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

/** How many updates met which fate. */
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
  /** ξ_launch: from the launch of one round to that of the next, H/P steps, and 1 step at least. */
  launchMs: number,
  /** ξ_quorum: from the start of a round to its K-th update. */
  quorumMs: number,
  /** ξ_sync: from the end of collecting to the merged fragment being sent. */
  syncMs: number,
  /** From the start of a round to an update for it, also if that came too late. */
  answerMs: number,
};

/** `/v1/learners`: some learners of all. */
export type LearnersPage = {
  /** Learners ever seen. */
  total: number,
  /** Learners left out before these. */
  offset: number,
  /** The order. */
  sort: Sort,
  /** These. */
  learners: Array<LearnerView>,
};

/** Orders of learners; the id decides between equals. */
export type Sort = "merged" | "speed" | "name" | "state";

/** `/v1/series`: columns of equal length, oldest first, and what was measured beside them. */
export type SeriesView = {
  /** Seconds that a point stands for. Once it doubles, points already shown are to be fetched anew. */
  spanS: number,
  /** Time that the run's syncers were up until then, in seconds. */
  timeS: Array<number>,
  /** Mean training loss, in nats per token. */
  trainLoss: Array<number | null>,
  /** Tokens trained on in a second. */
  tokensPerS: Array<number>,
  /** Merged of trained tokens so far, 0 to 1. */
  participation: Array<number>,
  /** Learners that took part in rounds. */
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
  /** Texts that the model wrote on the way. */
  samples: Array<TextSample>,
};

/** One measurement of the held-out loss. */
export type Evaluation = {
  /** Tokens merged into the parameters measured. */
  tokensMerged: number,
  /** Rounds merged into them. */
  rounds: number,
  /** Mean loss in nats per token. */
  loss: number,
  /** Time that the run's syncers had been up, in seconds. */
  timeS: number,
  /** The learner that measured it, where the syncer cannot and its owner trusts that one. */
  measuredBy?: LearnerId,
};

/** A text that the model wrote, and where the run stood. */
export type TextSample = {
  /** Time that the run's syncers had been up, in seconds. */
  timeS: number,
  /** Tokens merged into the parameters that wrote it. */
  tokensMerged: number,
  /** Their held-out loss, in nats per token. */
  loss: number,
  /** The text, prompt included. */
  text: string,
};

/** The event `point`: one more row of [`SeriesView`]. */
export type PointEvent = {
  /** Seconds that a point stands for from now on. */
  spanS: number,
  /** Time that the run's syncers were up until then, in seconds. */
  timeS: number,
  /** Mean training loss of the while, in nats per token. */
  trainLoss: number | null,
  /** Mean of the tokens trained on in a second. */
  tokensPerS: number,
  /** Merged of trained tokens at its end, 0 to 1. */
  participation: number,
  /** Mean of the learners that took part in rounds. */
  live: number,
  /** WebSocket bytes from learners until its end. */
  bytesUp: number,
  /** The same to learners. */
  bytesDown: number,
  /** Tokens merged until its end. */
  tokensMerged: number,
  /** Rounds merged until its end. */
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
  /** When it was launched, since the server started. */
  launchedMs: number,
  /** Answers that came, in time or not. */
  answered: number,
  /** The first of them, in the order in which they came. */
  answers: Array<Answer>,
  /** When the quorum was reached. */
  quorumMs: number | null,
  /** Length of the grace window, if one was opened. */
  graceMs: number | null,
  /** When that window ends, or would have. */
  graceEndMs: number | null,
  /** The last decision about it; times in it are on the server's clock. */
  decision: Decision | null,
  /** When merging began. */
  mergeStartMs: number | null,
  /** When merging ended, well or not. */
  mergeEndMs: number | null,
  /** What it led to. */
  merged: MergedReport | null,
};

/** One learner's answer. */
export type Answer = {
  /** Who. */
  learner: LearnerId,
  /** When. */
  afterMs: number,
  /** Tokens that count, 0 if it had nothing. */
  tokens: number,
  /** What became of it. */
  fate: AnswerFate,
  /** Whether it was there before the round. */
  early: boolean,
  /** Why it came late. */
  late: LateReason | null,
  /** Why it was refused. */
  refused: Refusal | null,
};

/** What became of an answer. */
export type AnswerFate = "pending" | "passed" | "merged" | "late" | "refused";

/** What was decided about one round, and why. Times are on the server's clock. */
export type Decision = { "decision": "awaitQuorum",
  /** Updates still needed. */
  missing: number,
  /** When patience ends. */
  until: Millis,
} | { "decision": "awaitGrace",
  /** Length of the window. */
  graceMs: number,
  /** When it closes. */
  until: Millis,
} | { "decision": "merge",
  /** What ended the wait. */
  why: MergeCause,
} | { "decision": "abandon",
  /** What ended the wait. */
  why: AbandonCause,
};

/** Why collecting ended with a merge. */
export type MergeCause = "allAnswered" | "graceOver" | "patienceOver";

/** Why collecting ended with nothing. */
export type AbandonCause = "nothingNew" | "patienceOver";

/** What a round led to. */
export type MergedReport = {
  /** The version that resulted. */
  version: Version,
  /** Updates in it. */
  updates: number,
  /** Tokens in it. */
  tokens: number,
  /** L2 norm of the merged delta. */
  norm: number,
  /** From launch to the end of collecting, in milliseconds. */
  collectMs: number,
  /** From there to sending, in milliseconds. */
  syncMs: number,
};

/** Milliseconds on the shell's monotonic clock; the origin is arbitrary. */
export type Millis = number;

/** `/v1/log` and the event `log`: lines of the run's log. */
export type LogView = {
  /** The syncer's clock, in milliseconds since 1970: ages are counted from it. */
  nowMs: number,
  /** Newest first. */
  entries: Array<LogEntryView>,
};

/** One line of the log. */
export type LogEntryView = {
  /** 1, 2, 3 …, over all starts of the syncer. */
  seq: number,
  /** When it was, in milliseconds since 1970, by the syncer's clock. */
  atMs: number,
  /** What kind of thing it was. */
  kind: LogKind,
  /** The learner that it is about. */
  learner: LearnerId | null,
  /** What that learner was called. */
  name: string | null,
  /** All of it, as a sentence for people. */
  text: string,
};

/** What kind of thing a line of the log tells of. */
export type LogKind = "syncer" | "joined" | "left" | "refused" | "owner" | "finished" | "trouble" | "mended";

/** An alert that is on. */
export type AlertView = {
  /** What for. */
  kind: AlertKind,
  /** What is wrong, as a sentence for people. */
  text: string,
  /** How long it has been on, in seconds. */
  forS: number,
};

/** What there is an alert for. */
export type AlertKind = "noLearner" | "lossRose" | "snapshotOld" | "diskFault" | "suspects";

/** `/v1/settings`: the settings of the run, in the order of the help. */
export type SettingsView = {
  /** All but secrets and what names files. */
  settings: Array<SettingView>,
};

/** One setting of the run. */
export type SettingView = {
  /** Its flag, without the hyphens before it. */
  key: string,
  /** What it is, as it would be given; `None` where that follows from another one. */
  value: string | null,
  /** What it means, as a sentence. */
  about: string,
  /** What it belongs to. */
  group: string,
  /** Whether the owner may change it while the run goes on. */
  changeable: boolean,
  /** What it may be, where that is one of a few. */
  choices: Array<string>,
};

/** The runs of a server. */
export type RunsView = {
  /** By name. */
  runs: Array<RunView>,
  /** Whether the server takes orders to create and delete runs; a server of one run does not. */
  several: boolean,
};

/** One run of a server. */
export type RunView = {
  /** Its name; empty on a server of one run. */
  name: string,
  /** Where its pages are, below those of the server. */
  path: string,
  /** The link to lend a machine, invite included: for whoever shows the owner's token. */
  link: string | null,
  /** What it is doing. */
  state: RunState,
  /** Why it failed, if it did. */
  why: string | null,
  /** Its figures, while it is served. */
  figures: RunFigures | null,
};

/** What a run is doing. */
export type RunState = "starting" | "open" | "paused" | "complete" | "archived" | "failed";

/** The figures of a run. */
export type RunFigures = {
  /** The run, as 16 hex digits. */
  run: string,
  /** The preset's name, or that of the folder whose model it began with. */
  model: string,
  /** Parameters of the model. */
  params: number,
  /** Where the text is from. */
  corpus: string,
  /** Learners that take part in rounds. */
  live: number,
  /** Learners ever seen. */
  learnersTotal: number,
  /** Tokens merged. */
  tokensMerged: number,
  /** Tokens at which the learning rate has come down. */
  totalTokens: number,
  /** Merged of trained, 0 to 1. */
  participation: number,
  /** Newest held-out loss, in nats per token. */
  valLossLast: number | null,
  /** Whether learners must show an invite. */
  inviteRequired: boolean,
  /** Alerts that stand. */
  alerts: number,
};

/** The events of /v1/events by name, and what their data is. */
export type ServerEvents = {
  /** Each second. */
  status: ServerStatus,
  /** The rounds that changed, at most four times a second. */
  rounds: RoundsView,
  /** A row for the columns of SeriesView; if spanS changed, fetch them anew. */
  point: PointEvent,
  evaluation: Evaluation,
  sample: TextSample,
  /** Lines of the run's log that are new, the newest first. */
  log: LogView,
  /** The number of events that were missed, because they were read too slowly. */
  lagged: number,
};
