/** The last rounds as lanes: positions without drawing. */
import type { Answer, RoundReport, RoundsView } from "../shared/api.js";
import { count, milliseconds, plural } from "../shared/format.js";

/** A round, by its number. */
type Round = RoundReport["round"];

/** Limit of stored rounds; the syncer keeps as many. */
const ROUNDS_MAX = 48;

/** The last rounds, updated by events. */
export class Rounds {
  #byRound = new Map<Round, RoundReport>();
  /** The syncer's clock at the last news, in milliseconds. */
  nowMs = 0;

  /** Takes all rounds if `whole`, else the changed ones. */
  take(view: RoundsView, whole: boolean): void {
    if (whole) this.#byRound.clear();
    this.nowMs = view.nowMs;
    for (const report of view.rounds) this.#byRound.set(report.round, report);
    const surplus = this.#byRound.size - ROUNDS_MAX;
    if (surplus <= 0) return;
    for (const round of [...this.#byRound.keys()].sort(byAge).slice(0, surplus)) this.#byRound.delete(round);
  }

  /** Returns the newest `most` rounds, newest first. */
  newest(most: number): RoundReport[] {
    return [...this.#byRound.values()].sort((a, b) => byAge(b.round, a.round)).slice(0, most);
  }
}

/**
 * Maps time after launch to 0…1: nearly linear up to the `knee`, logarithmic beyond, so that answers
 * after a millisecond and a grace window of a second are both visible. `at(ms) = ln(1 + ms/knee) / ln(1 + end/knee)`.
 */
export class TimeScale {
  readonly kneeMs: number;
  readonly endMs: number;

  constructor(reports: readonly RoundReport[], nowMs: number) {
    const answers = reports.flatMap((report) => report.answers.map((answer) => answer.afterMs)).sort((a, b) => a - b);
    const ends = reports.map(endOf);
    const ageMs = Math.max(0, ...reports.filter(isOpen).map((report) => nowMs - report.launchedMs));
    // Round numbers, so that the scale is stable while rounds come and go.
    this.kneeMs = roundUp(Math.max(1, answers[answers.length >> 1] ?? 1));
    const endedMs = Math.max(10, this.kneeMs * 2, ...ends);
    // A round that waits long runs off the edge instead of squeezing the others.
    this.endMs = roundUp(Math.max(endedMs, Math.min(ageMs, endedMs * 1.2)));
  }

  /** Position of a moment, 0 to 1. */
  at(afterMs: number): number {
    const place = Math.log1p(Math.max(0, afterMs) / this.kneeMs) / Math.log1p(this.endMs / this.kneeMs);
    return Math.min(1, place);
  }

  /** Round moments at least `apart` (0 to 1) from each other. */
  ticks(apart: number): number[] {
    const ticks = [0];
    for (let power = 1; power <= this.endMs; power *= 10) {
      for (const tick of [power, 2 * power, 5 * power]) {
        if (tick <= this.endMs && this.at(tick) - this.at(ticks.at(-1) ?? 0) >= apart) ticks.push(tick);
      }
    }
    return ticks;
  }
}

/** Rounds up to one of 1, 2, 5, 10, 20, … */
function roundUp(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value) ?? 10 * power;
}

/** Returns the last known moment of a round, after its launch. */
function endOf(report: RoundReport): number {
  const last = report.answers.reduce((latest, answer) => Math.max(latest, answer.afterMs), 0);
  return Math.max(last, report.mergeEndMs ?? 0, report.graceEndMs ?? 0);
}

/** Whether a round is in flight. */
export function isOpen(report: RoundReport): boolean {
  return report.merged === null && report.decision?.decision !== "abandon" && report.mergeEndMs === null;
}

/** Describes a round's outcome, in a few words. */
export function outcome(report: RoundReport): string {
  const { merged, decision } = report;
  if (merged) return `merged ${plural(merged.updates, "update")}, ${count(merged.tokens)} tokens`;
  switch (decision?.decision) {
    case "abandon":
      return decision.why === "nothingNew" ? "nothing new to merge" : "abandoned: too few answered in time";
    case "merge":
      return "merging";
    case "awaitGrace":
      return "quorum reached, waiting for more";
    case "awaitQuorum":
      return `waiting for ${plural(decision.missing, "more answer")}`;
    case undefined:
      return "launched";
  }
}

/** Describes why collecting ended, in a few words. */
export function cause(report: RoundReport): string {
  if (report.decision?.decision !== "merge") return "";
  return { allAnswered: "all answered", graceOver: "grace over", patienceOver: "patience over" }[report.decision.why];
}

type Heard = Pick<RoundReport, "answered" | "invited">;

/** Describes how many of the invited learners answered. Late answers of earlier rounds count too. */
function answeredOf(heard: Heard): string {
  if (heard.answered <= heard.invited) return `${shareOf(heard)} answered`;
  return `${heard.answered} answered, ${heard.invited} asked: late answers of earlier rounds count too`;
}

/** Returns the same in short form. */
export function shareOf({ answered, invited }: Heard): string {
  return answered <= invited ? `${answered} of ${invited}` : `${invited} of ${invited} + ${answered - invited} late`;
}

/** Describes a round in a sentence. */
export function describeRound(report: RoundReport): string {
  const parts = [answeredOf(report)];
  if (report.quorumMs !== null) parts.push(`quorum after ${milliseconds(report.quorumMs)}`);
  if (report.graceMs !== null) parts.push(`up to ${milliseconds(report.graceMs)} of grace`);
  const why = cause(report);
  const after = report.merged ? ` after ${milliseconds(report.merged.collectMs)}${why ? ` (${why})` : ""}` : "";
  parts.push(outcome(report) + after);
  return `Round ${roundName(report.round)}, fragment ${report.fragment}: ${parts.join("; ")}.`;
}

/** Compares rounds by number, as strings: the numbers exceed JavaScript's integers. */
function byAge(a: Round, b: Round): number {
  return a.length - b.length || (a < b ? -1 : a > b ? 1 : 0);
}

/** Displayed round number: without the high bits that identify the syncer's incarnation. */
export function roundName(round: Round): string {
  return BigInt.asUintN(32, BigInt(round)).toString();
}

/** Describes an answer in a sentence. */
export function describeAnswer(answer: Answer, name: string): string {
  const when = `${name} answered after ${milliseconds(answer.afterMs)}`;
  switch (answer.fate) {
    case "merged":
      return `${when}: ${count(answer.tokens)} tokens merged.`;
    case "passed":
      return `${when}: it had nothing new.`;
    case "pending":
      return `${when}: ${count(answer.tokens)} tokens, not merged yet.`;
    case "late":
      return `${when}: too late, ${answer.late === "stale_base" ? "its base was too old" : "the round was over"}.`;
    case "refused":
      return `${when}: refused (${(answer.refused ?? "no reason given").replaceAll("_", " ")}).`;
  }
}
