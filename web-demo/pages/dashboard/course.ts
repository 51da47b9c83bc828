/** The course of the run as this page knows it: what was fetched, and what came since. */
import type { Evaluation, PointEvent, SeriesView, TextSample } from "../shared/api.js";
import { emptyRun } from "./columns.js";

/** Columns that grow at their end. */
export class Course {
  /** The columns; read only. */
  view: SeriesView = { ...emptyRun(), spanS: 0, samples: [] };
  /** True once the columns were fetched. Before that, empty columns do not mean that nothing was measured. */
  isKnown = false;
  #since: PointEvent[] = [];

  /** Takes over what was fetched, and adds the points that came while it was on its way. */
  load(view: SeriesView): void {
    const came = this.#since;
    this.view = view;
    this.isKnown = true;
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

  /** Adds a measurement, unless it is there. */
  evaluated(evaluation: Evaluation): void {
    if (isNewer(evaluation, this.view.evaluations)) this.view.evaluations.push(evaluation);
  }

  /** Adds a text, unless it is there. */
  wrote(sample: TextSample): void {
    if (isNewer(sample, this.view.samples)) this.view.samples.push(sample);
  }
}

function isNewer(one: { readonly timeS: number }, others: readonly { readonly timeS: number }[]): boolean {
  return one.timeS > (others.at(-1)?.timeS ?? -1);
}
