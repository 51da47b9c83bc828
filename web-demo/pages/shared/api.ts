// What the syncer's routes answer, generated from its Rust types. Do not edit: change those, then run
// RENEW_API_TS=1 cargo test -p syncer-server api_ts
//
// GET /v1/status               ServerStatus
// GET /v1/learners?offset=&limit=&sort=   LearnersPage
// GET /v1/series               SeriesView
// GET /v1/rounds               RoundsView
// GET /v1/events               EventSource with the events of ServerEvents; their data is JSON

/** A run at one moment, as `/v1/status`, the event `status` and the last line of `--json` give it. */
export type ServerStatus = {
  /** Bits on the socket per parameter that went up. */
  bits_per_param_up: number | null,
  /** Bits on the socket per parameter that went down. */
  bits_per_param_down: number | null,
  /** Tokens that all learners trained on in a second, over the last 10 seconds. */
  tokens_per_s: number,
  /** Held-out loss before training, in nats per token. */
  val_loss_first: number | null,
  /** Newest held-out loss, in nats per token. */
  val_loss_last: number | null,
  /** Text that the newest parameters wrote. */
  sample: string,
  /** The foremost learners, by id: the connected before the others, then those with the most merged tokens. */
  learners: Array<LearnerView>,
  /** All learners ever seen, counted. */
  learners_by_state: LearnersByState,
  /** Open sockets, with a learner behind them or not. */
  sockets: number,
  /** Time since the server started, in seconds. */
  uptime_s: number,
  /** Time that the run's syncers were up, in seconds; [`SeriesView::time_s`] is on this clock. */
  run_s: number,
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
  learners_total: number,
  /** Tokens trained on, by everyone. */
  tokens_trained: number,
  /** Tokens merged; also the clock of the inner schedule. */
  tokens_merged: number,
  /** Merged of trained, 0 to 1. */
  participation: number,
  /** Rounds that led to a version. */
  rounds: number,
  /** Rounds that led to nothing. */
  rounds_abandoned: number,
  /** Rounds in flight. */
  rounds_open: number,
  /** Updates taken in. */
  updates: number,
  /** Updates in rounds that are still in flight, whose fate is yet to come. */
  updates_pending: number,
  /** What became of all others. */
  fates: FateCounts,
  /** The pass over the data, from 0. */
  epoch: number,
  /** Windows trained twice because their lease was lost, at most. */
  regranted_windows: number,
  /** Measured times. */
  timing: Timing,
  /** The longest wait after quorum at present, in milliseconds. */
  grace_ms: number,
  /** Mean of the connected learners' last training losses, in nats per token. */
  train_loss: number | null,
  /** Each fragment's version and the size of it. */
  fragments: Array<[FragmentId, Version, number]>,
  /** Whether the owner holds the run: nothing is launched or leased. */
  paused: boolean,
  /** Whether the last collection has begun. */
  finishing: boolean,
  /** The preset's name. */
  preset: string,
  /** Where the text is from. */
  corpus: string,
  /** Tokens to train on. */
  corpus_tokens: number,
  /** Bytes of text behind one token, on average. */
  bytes_per_token: number,
  /** Loss in nats per token that no model can beat, where the text's source is known. */
  entropy_floor: number | null,
  /** Tokens at which the learning rate has come down. */
  total_tokens: number,
  /** Whether learners must show an invite. */
  invite_required: boolean,
  /** Whether the run is for a class: pages show how to join, and the owner steers single learners. */
  classroom: boolean,
  /** Pages to lend a machine, best first, without the invite. */
  links: Array<string>,
  /** WebSocket bytes from learners while training, headers of frames and pings included. */
  bytes_up: number,
  /** The same to learners. */
  bytes_down: number,
  /** Parameters in all updates received. */
  values_up: number,
  /** Parameters in all merged fragments sent. */
  values_down: number,
  /** Greetings and fetched parameters, both ways. */
  join_bytes: number,
  /** Fetched shards. */
  data_bytes: number,
};

/** One learner. */
export type LearnerView = {
  /** Its id in the run. */
  learner: LearnerId,
  /** Its name for people. */
  name: string,
  /** What it computes with, in its own words. */
  device: string,
  /** What it computes with, as far as its words begin with it. */
  kind: LearnerKind,
  /** What it is doing; `null` while it is away. */
  state: LearnerState | null,
  /** Whether it takes part in rounds. */
  live: boolean,
  /** How long it has been connected, in seconds; `null` while it is away. */
  connected_s: number | null,
  /** Its time of a step, in milliseconds, 0 if unknown. */
  step_ms: number,
  /** Tokens it trained on in a second, over the last 10 seconds. */
  tokens_per_s: number,
  /** Its last training loss, in nats per token. */
  loss: number | null,
  /** Tokens it trained on. */
  tokens_trained: number,
  /** Its tokens that are merged. */
  tokens_merged: number,
  /** Its share of all merged tokens, 0 to 1. */
  merged_share: number,
  /** Its updates. */
  updates: number,
  /** What became of them. */
  fates: FateCounts,
  /** The part of the time it would train that the owner has it train, 0.001 to 1. */
  share: number,
  /** Time until it may come back, in seconds, if the owner sent it away; `null` otherwise. */
  returns_s: number | null,
};

/** What a learner computes with. */
export type LearnerKind = "browser" | "gpu" | "cpu" | "other";

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
export type FateCounts = {
  /** Merged. */
  merged: number,
  /** Late, by reason. */
  late: { [key in LateReason]?: number },
  /** Refused, by reason. */
  refused: { [key in Refusal]?: number },
};

/** Why an update came late. */
export type LateReason = "round_over" | "stale_base";

/** Why an update was refused. */
export type Refusal = "not_invited" | "empty" | "shape" | "checksum" | "not_finite" | "norm" | "unleased";

/** Moving averages of measured times, in milliseconds; 0 until measured. */
export type Timing = {
  /** ξ_step: one inner step of the median live learner. */
  step_ms: number,
  /** ξ_launch: from the launch of one round to that of the next, H/P steps, and 1 step at least. */
  launch_ms: number,
  /** ξ_quorum: from the start of a round to its K-th update. */
  quorum_ms: number,
  /** ξ_sync: from the end of collecting to the merged fragment being sent. */
  sync_ms: number,
  /** From the start of a round to an update for it, also if that came too late. */
  answer_ms: number,
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
  span_s: number,
  /** Time that the run's syncers were up until then, in seconds. */
  time_s: Array<number>,
  /** Mean training loss, in nats per token. */
  train_loss: Array<number | null>,
  /** Tokens trained on in a second. */
  tokens_per_s: Array<number>,
  /** Merged of trained tokens so far, 0 to 1. */
  participation: Array<number>,
  /** Learners that took part in rounds. */
  live: Array<number>,
  /** WebSocket bytes from learners so far. */
  bytes_up: Array<number>,
  /** WebSocket bytes to learners so far. */
  bytes_down: Array<number>,
  /** Tokens merged so far. */
  tokens_merged: Array<number>,
  /** Rounds merged so far. */
  rounds: Array<number>,
  /** Measurements of the held-out loss. */
  evaluations: Array<Evaluation>,
  /** Texts that the model wrote on the way. */
  samples: Array<TextSample>,
};

/** One measurement. */
export type Evaluation = {
  /** Tokens merged into the parameters measured. */
  tokens_merged: number,
  /** Rounds merged into them. */
  rounds: number,
  /** Mean loss in nats per token. */
  loss: number,
  /** Time that the run's syncers had been up, in seconds. */
  time_s: number,
};

/** A text, and where the run stood. */
export type TextSample = {
  /** Time that the run's syncers had been up, in seconds. */
  time_s: number,
  /** Tokens merged into the parameters that wrote it. */
  tokens_merged: number,
  /** Their held-out loss, in nats per token. */
  loss: number,
  /** The text, prompt included. */
  text: string,
};

/** The event `point`: one more row of [`SeriesView`]. */
export type PointEvent = {
  /** Seconds that a point stands for from now on. */
  span_s: number,
  /** Time that the run's syncers were up until then, in seconds. */
  time_s: number,
  /** Mean training loss of the while, in nats per token. */
  train_loss: number | null,
  /** Mean of the tokens trained on in a second. */
  tokens_per_s: number,
  /** Merged of trained tokens at its end, 0 to 1. */
  participation: number,
  /** Mean of the learners that took part in rounds. */
  live: number,
  /** WebSocket bytes from learners until its end. */
  bytes_up: number,
  /** The same to learners. */
  bytes_down: number,
  /** Tokens merged until its end. */
  tokens_merged: number,
  /** Rounds merged until its end. */
  rounds: number,
};

/** `/v1/rounds` and the event `rounds`: some of the last rounds. */
export type RoundsView = {
  /** The server's clock, in milliseconds since it started. */
  now_ms: number,
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
  launched_ms: number,
  /** Answers that came, in time or not. */
  answered: number,
  /** The first of them, in the order in which they came. */
  answers: Array<Answer>,
  /** When the quorum was reached. */
  quorum_ms: number | null,
  /** Length of the grace window, if one was opened. */
  grace_ms: number | null,
  /** When that window ends, or would have. */
  grace_end_ms: number | null,
  /** The last decision about it; times in it are on the server's clock. */
  decision: Decision | null,
  /** When merging began. */
  merge_start_ms: number | null,
  /** When merging ended, well or not. */
  merge_end_ms: number | null,
  /** What it led to. */
  merged: MergedReport | null,
};

/** One learner's answer. */
export type Answer = {
  /** Who. */
  learner: LearnerId,
  /** When. */
  after_ms: number,
  /** Tokens that count, 0 if it had nothing. */
  tokens: number,
  /** What became of it. */
  fate: AnswerFate,
  /** Why it came late. */
  late: LateReason | null,
  /** Why it was refused. */
  refused: Refusal | null,
};

/** What became of an answer. */
export type AnswerFate = "pending" | "passed" | "merged" | "late" | "refused";

/** What to do now about one round, and why. */
export type Decision = { "decision": "await_quorum",
  /** Updates still needed. */
  missing: number,
  /** When patience ends. */
  until: Millis
} | { "decision": "await_grace",
  /** Length of the window. */
  grace_ms: number,
  /** When it closes. */
  until: Millis
} | { "decision": "merge",
  /** What ended the wait. */
  why: MergeCause
} | { "decision": "abandon",
  /** What ended the wait. */
  why: AbandonCause,
};

/** Why collecting ended with a merge. */
export type MergeCause = "all_answered" | "grace_over" | "patience_over";

/** Why collecting ended with nothing. */
export type AbandonCause = "nothing_new" | "patience_over";

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
  collect_ms: number,
  /** From there to sending, in milliseconds. */
  sync_ms: number,
};

/** A learner, for the whole run: the syncer numbers identities in the order they first came. */
export type LearnerId = number;

/** One of the `P` parts that the parameters are exchanged in. */
export type FragmentId = number;

/** One collect-and-merge of one fragment; unique in a run, across restarts too. */
export type Round = number;

/** A state of one fragment. Grows with each merge; after a restart from a snapshot it jumps to a fresh range, so that a version never names two contents. */
export type Version = number;

/** Milliseconds on the shell's monotonic clock; the origin is arbitrary. */
export type Millis = number;

/** The events of /v1/events by name, and what their data is. */
export type ServerEvents = {
  /** Each second. */
  status: ServerStatus,
  /** The rounds that changed, at most four times a second. */
  rounds: RoundsView,
  /** A row for the columns of SeriesView; if span_s changed, fetch them anew. */
  point: PointEvent,
  evaluation: Evaluation,
  sample: TextSample,
  /** So many events were missed, because they were read too slowly. */
  lagged: number,
};
