/** The run's series on this page: fetched columns and later events. */
import type { Evaluation, PointEvent, SeriesView, TextSample } from "../shared/api.js";
import { emptyRun } from "./columns.js";

/** Columns that grow at the end. */
export class Course {
  /** The columns; read only. */
  view: SeriesView = { ...emptyRun(), spanS: 0, samples: [] };
  /** True once the columns were fetched. Before that, empty columns do not mean that nothing was measured. */
  isKnown = false;
  #since: PointEvent[] = [];

  /** Takes the fetched columns, and adds points that arrived during the request. */
  load(view: SeriesView): void {
    const came = this.#since;
    this.view = view;
    this.isKnown = true;
    this.#since = [];
    for (const point of came) this.append(point);
  }

  /** Forgets earlier points, which the next fetch includes. */
  fetching(): void {
    this.#since = [];
  }

  /** Adds a point; returns false if the columns no longer fit it and must be fetched again. */
  append(point: PointEvent): boolean {
    const { view } = this;
    this.#since.push(point);
    if (point.spanS !== view.spanS) return false;
    if (point.timeS <= (view.timeS.at(-1) ?? -1)) return true;
    view.timeS.push(point.timeS);
    view.trainLoss.push(point.trainLoss);
    view.tokensPerS.push(point.tokensPerS);
    view.participation.push(point.participation);
    view.live.push(point.live);
    view.bytesUp.push(point.bytesUp);
    view.bytesDown.push(point.bytesDown);
    view.tokensMerged.push(point.tokensMerged);
    view.rounds.push(point.rounds);
    return true;
  }

  /** Adds an evaluation unless it is present. */
  evaluated(evaluation: Evaluation): void {
    if (isNewer(evaluation, this.view.evaluations)) this.view.evaluations.push(evaluation);
  }

  /** Adds a text unless it is present. */
  wrote(sample: TextSample): void {
    if (isNewer(sample, this.view.samples)) this.view.samples.push(sample);
  }
}

function isNewer(one: { readonly timeS: number }, others: readonly { readonly timeS: number }[]): boolean {
  return one.timeS > (others.at(-1)?.timeS ?? -1);
}
