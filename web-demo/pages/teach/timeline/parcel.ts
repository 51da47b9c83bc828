/** One fragment on its way, code by code. */

import { fillRows, find, make, setAttribute, setText } from "../../shared/dom.js";
import { bytes, milliseconds } from "../../shared/format.js";
import type { LessonSpec, Mark } from "../../shared/lesson.js";
import type { Parcel } from "./history.js";

/** Least time between two parcels that are shown by themselves, in milliseconds of the wall clock. */
const CHANGE_MS = 700;

const BITS: Readonly<Record<LessonSpec["code"], string>> = {
  f32: "32 bits a parameter; shown as the nearest of fifteen steps",
  int4: "4 bits a parameter: a code from −7 to 7, times the scale of its block",
  e3m0: "4 bits a parameter: a sign and a power of two, times the scale of its block",
  int2: "2 bits a parameter, times the scale of its block",
  int1: "1 bit a parameter: the sign, times the scale of its block",
};

/** "Fragment 3, round 7: progress from island 2 to the syncer, 2.21 kB in 31 ms. 4 bits a parameter: …" */
export function saidOf(parcel: Parcel, code: LessonSpec["code"]): string {
  const island = `island ${parcel.island + 1}`;
  const way = parcel.up ? `${island} to the syncer` : `the syncer to ${island}`;
  const what = { update: "progress", merged: "merged change", whole: "all of it", collect: "request" }[parcel.what];
  const round = parcel.round === null ? "" : `, round ${parcel.round}`;
  const took = milliseconds(Math.round(parcel.untilMs - parcel.fromMs));
  // Whoever joins gets the parameters themselves, whatever code their changes travel as.
  const bits = parcel.what === "whole" ? "32 bits a parameter, as they are" : BITS[code];
  return `Fragment ${parcel.fragment + 1}${round}: ${what} from ${way}, ${bytes(parcel.bytes)} in ${took}. ${bits}.`;
}

export class ParcelView {
  readonly #codes = find("codes", HTMLElement);
  readonly #said = find("parcel-said", HTMLElement);
  readonly #select = find("follow", HTMLSelectElement);
  #shownAt = -CHANGE_MS;

  /** `follow` hears which fragment is to be followed. */
  constructor(follow: (fragment: number | null) => void) {
    this.#select.addEventListener("change", () =>
      follow(this.#select.value === "" ? null : Number(this.#select.value)),
    );
  }

  reset(fragments: number): void {
    const kept = Number(this.#select.value) < fragments ? this.#select.value : "";
    this.#select.replaceChildren(
      make("option", { value: "" }, "all fragments"),
      ...Array.from({ length: fragments }, (_, at) =>
        make("option", { value: String(at) }, `fragment ${at + 1} of ${fragments}`),
      ),
    );
    this.#select.value = kept;
    this.#shownAt = -CHANGE_MS;
  }

  /** Follows this fragment, as if it had been chosen. */
  choose(fragment: number | null): void {
    this.#select.value = fragment === null ? "" : String(fragment);
    this.#select.dispatchEvent(new Event("change"));
  }

  /** Looks for a parcel worth showing among what happened; gives it if there is one. */
  take(marks: readonly Mark[], followed: number | null, code: LessonSpec["code"]): Parcel | null {
    if (performance.now() - this.#shownAt < CHANGE_MS) return null;
    const found = marks.find(
      (mark): mark is Parcel =>
        mark.kind === "parcel" && mark.glimpse.length > 0 && (followed === null || mark.fragment === followed),
    );
    if (!found) return null;
    this.show(found, code);
    return found;
  }

  show(parcel: Parcel, code: LessonSpec["code"]): void {
    this.#shownAt = performance.now();
    setText(this.#said, saidOf(parcel, code));
    fillRows(
      this.#codes,
      parcel.glimpse,
      () => make("li"),
      (cell, value) => {
        const shown = String(Math.round(value)).replace("-", "−");
        setText(cell, shown);
        setAttribute(cell, "data-sign", value === 0 ? "0" : value > 0 ? "+" : "-");
        cell.style.setProperty("--size", String(Math.abs(value)));
      },
    );
  }
}
