/** Recent events for drawing, bounded by time and number. */
import type { Action, Deed, Frame, Mark, Share, TwinFrame } from "../../shared/lesson.js";

/** A message about a fragment between an island and the syncer. */
export type Parcel = Extract<Mark, { kind: "parcel" }>;

/** A round, from its launch on. */
export interface Round {
  readonly round: number;
  readonly fragment: number;
  /** Row within the syncer's lane. */
  readonly row: number;
  readonly launchedMs: number;
  readonly answers: {
    readonly island: number;
    readonly atMs: number;
    readonly fate: "in" | "late" | "refused";
    readonly why: string;
  }[];
  quorumMs: number | null;
  graceUntilMs: number | null;
  mergedMs: number | null;
  abandonedMs: number | null;
  shares: readonly Share[];
}

interface Span {
  readonly fromMs: number;
  readonly untilMs: number;
}

/** Length of the history, in milliseconds: more than the widest picture shows. */
const KEEP_MS = 240_000;
/** Limit of entries of each kind; a fully displayed run has far fewer. */
const ENTRIES_MAX = 6_000;

export class History {
  /** Steps of each island. */
  steps: Span[][] = [];
  parcels: Parcel[] = [];
  rounds: Round[] = [];
  applied: { readonly island: number; readonly fragment: number; readonly atMs: number }[] = [];
  twinSteps: (Span & { readonly computedMs: number })[] = [];
  stalls: { readonly island: number; readonly fromMs: number; untilMs: number | null }[] = [];
  /** Stretches in which an island was absent. */
  absences: { readonly island: number; readonly fromMs: number; untilMs: number | null }[] = [];
  #prunedMs = 0;

  reset(islands: number): void {
    Object.assign(this, {
      steps: Array.from({ length: islands }, () => []),
      parcels: [],
      rounds: [],
      applied: [],
      twinSteps: [],
      stalls: [],
      absences: [],
    });
    this.#prunedMs = 0;
  }

  /** `actions` give the exact death or start of an island; the frame has only its state. */
  take(frame: Frame, actions: readonly Action[]): void {
    for (const mark of frame.marks) this.#mark(mark);
    frame.islands.forEach(({ state }, island) => this.#absence(island, state === "dead", frame.nowMs, actions));
    if (frame.nowMs - this.#prunedMs > KEEP_MS / 20) this.#prune(frame.nowMs);
  }

  takeTwin(frame: TwinFrame): void {
    for (const mark of frame.marks) {
      if (mark.kind === "step") this.twinSteps.push(mark);
      else if (mark.kind === "stall") this.#stall(mark.island, mark.fromMs, mark.untilMs);
    }
  }

  #mark(mark: Mark): void {
    switch (mark.kind) {
      case "step":
        return void this.steps[mark.island]?.push(mark);
      case "parcel":
        return void this.parcels.push(mark);
      case "applied":
        return void this.applied.push(mark);
      case "launched":
        return void this.rounds.push({
          round: mark.round,
          fragment: mark.fragment,
          row: this.#row(mark.atMs),
          launchedMs: mark.atMs,
          answers: [],
          quorumMs: null,
          graceUntilMs: null,
          mergedMs: null,
          abandonedMs: null,
          shares: [],
        });
      case "left":
      case "live":
      case "heldOut":
        return;
    }
    const round = this.rounds.findLast((one) => one.round === mark.round);
    if (!round) return;
    if (mark.kind === "answered") round.answers.push({ island: mark.island, atMs: mark.atMs, fate: "in", why: "" });
    else if (mark.kind === "late" || mark.kind === "refused")
      round.answers.push({ island: mark.island, atMs: mark.atMs, fate: mark.kind, why: mark.why });
    else if (mark.kind === "quorum") round.quorumMs = mark.atMs;
    else if (mark.kind === "grace") round.graceUntilMs = mark.untilMs;
    else if (mark.kind === "merged") [round.mergedMs, round.shares] = [mark.atMs, mark.shares];
    else round.abandonedMs = mark.atMs;
  }

  /** Returns the first row without an open round. */
  #row(atMs: number): number {
    const taken = new Set(
      this.rounds.filter((one) => (one.mergedMs ?? one.abandonedMs ?? Infinity) > atMs).map((one) => one.row),
    );
    let row = 0;
    while (taken.has(row)) row += 1;
    return row;
  }

  /** Cuts a step in progress, since an absent island does not end it. */
  #cutStep(island: number, atMs: number): void {
    const steps = this.steps[island];
    const last = steps?.at(-1);
    if (steps && last && last.untilMs > atMs)
      steps[steps.length - 1] = { fromMs: Math.min(last.fromMs, atMs), untilMs: atMs };
  }

  #absence(island: number, isAway: boolean, atMs: number, actions: readonly Action[]): void {
    const open = this.absences.findLast((one) => one.island === island && one.untilMs === null);
    const last = (...deeds: readonly Deed[]) =>
      actions.findLast((one) => one.island === island && deeds.includes(one.deed) && one.atMs <= atMs)?.atMs;
    if (isAway && !open) {
      const fromMs = last("kill") ?? atMs;
      this.absences.push({ island, fromMs, untilMs: null });
      this.#cutStep(island, fromMs);
    } else if (!isAway && open) {
      // Islands that join later or are dropped do so without an action.
      const untilMs = last("restart", "cure") ?? atMs;
      open.untilMs = untilMs > open.fromMs ? untilMs : atMs;
    }
  }

  #stall(island: number, fromMs: number, untilMs: number | null): void {
    const open = this.stalls.findLast((one) => one.island === island && one.fromMs === fromMs);
    if (open) open.untilMs = untilMs;
    else this.stalls.push({ island, fromMs, untilMs });
  }

  #prune(nowMs: number): void {
    this.#prunedMs = nowMs;
    const since = nowMs - KEEP_MS;
    const recent = <T>(all: T[], endMs: (one: T) => number): T[] =>
      all.filter((one) => endMs(one) >= since).slice(-ENTRIES_MAX);
    this.steps = this.steps.map((all) => recent(all, (one) => one.untilMs));
    this.parcels = recent(this.parcels, (one) => one.untilMs);
    this.rounds = recent(this.rounds, (one) => one.mergedMs ?? one.abandonedMs ?? nowMs);
    this.applied = recent(this.applied, (one) => one.atMs);
    this.twinSteps = recent(this.twinSteps, (one) => one.untilMs);
    this.stalls = recent(this.stalls, (one) => one.untilMs ?? nowMs);
    this.absences = recent(this.absences, (one) => one.untilMs ?? nowMs);
  }
}

/** Returns the first entry that ends after `sinceMs`; entries are by time, and none lasts longer than `slackMs`. */
export function firstAfter(all: readonly { readonly fromMs: number }[], sinceMs: number, slackMs: number): number {
  let [low, high] = [0, all.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (all[middle]!.fromMs < sinceMs - slackMs) low = middle + 1;
    else high = middle;
  }
  return low;
}
