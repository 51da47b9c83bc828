/** The course of the run as this page knows it: what was fetched, and what came since. */
import type { Evaluation, PointEvent, SeriesView, TextSample } from "../shared/api.js";

const EMPTY: SeriesView = {
  span_s: 0, time_s: [], train_loss: [], tokens_per_s: [], participation: [], live: [], bytes_up: [], bytes_down: [],
  tokens_merged: [], rounds: [], evaluations: [], samples: [],
};

/** Columns that grow at their end. */
export class Course {
  /** The columns; read only. */
  view: SeriesView = EMPTY;
  #since: PointEvent[] = [];

  /** Takes over what was fetched, and adds the points that came while it was on its way. */
  load(view: SeriesView): void {
    const came = this.#since;
    this.view = view;
    this.#since = [];
    for (const point of came) this.append(point);
  }

  /** Forgets what came until now: what is fetched next has it. */
  fetching(): void {
    this.#since = [];
  }

  /** Adds a point; false if the columns no longer fit it and are to be fetched anew. */
  append(point: PointEvent): boolean {
    const { view } = this;
    this.#since.push(point);
    if (point.span_s !== view.span_s) return false;
    if (point.time_s <= (view.time_s.at(-1) ?? -1)) return true;
    view.time_s.push(point.time_s);
    view.train_loss.push(point.train_loss);
    view.tokens_per_s.push(point.tokens_per_s);
    view.participation.push(point.participation);
    view.live.push(point.live);
    view.bytes_up.push(point.bytes_up);
    view.bytes_down.push(point.bytes_down);
    view.tokens_merged.push(point.tokens_merged);
    view.rounds.push(point.rounds);
    return true;
  }

  /** Adds a measurement, unless it is there. */
  evaluated(evaluation: Evaluation): void {
    if (isNewer(evaluation, this.view.evaluations)) this.view.evaluations.push(evaluation);
  }

  /** Adds a text, unless it is there. */
  wrote(sample: TextSample): void {
    if (isNewer(sample, this.view.samples)) this.view.samples.push(sample);
  }
}

function isNewer(one: { readonly time_s: number }, others: readonly { readonly time_s: number }[]): boolean {
  return one.time_s > (others.at(-1)?.time_s ?? -1);
}

/** Growth per second of a column that only counts up, `[points]`; `null` for the first. */
export function perSecond(time_s: readonly number[], total: readonly number[]): (number | null)[] {
  return total.map((value, index) => {
    const before = total[index - 1];
    const seconds = (time_s[index] ?? 0) - (time_s[index - 1] ?? 0);
    return before === undefined || seconds <= 0 ? null : Math.max(0, value - before) / seconds;
  });
}
