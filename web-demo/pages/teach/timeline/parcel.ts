/** One fragment in a message, code by code. */

import { fillRows, find, make, setAttribute, setText } from "../../shared/dom.js";
import { bytes, milliseconds } from "../../shared/format.js";
import type { LessonSpec, Mark } from "../../shared/lesson.js";
import { phrase } from "../../words/phrase.js";
import type { Parcel } from "./history.js";

/** Least time between two parcels that are shown by themselves, in milliseconds of the wall clock. */
const CHANGE_MS = 700;

/** Returns "Fragment 3, round 7: progress from island 2 to the syncer, 2.21 kB in 31 ms. 4 bits a parameter: …" */
export function saidOf(parcel: Parcel, code: LessonSpec["code"]): string {
  const values = {
    fragment: parcel.fragment + 1,
    what: phrase(`parcels.what.${parcel.what}`),
    way: phrase(parcel.up ? "parcels.up" : "parcels.down", { island: parcel.island + 1 }),
    bytes: bytes(parcel.bytes),
    time: milliseconds(Math.round(parcel.untilMs - parcel.fromMs)),
    // A joiner gets the parameters themselves, regardless of the code of changes.
    bits: phrase(`parcels.bits.${parcel.what === "whole" ? "whole" : code}`),
  };
  if (parcel.round === null) return phrase("parcels.said", values);
  return phrase("parcels.saidOfRound", { ...values, round: parcel.round });
}

export class ParcelView {
  readonly #codes = find("codes", HTMLElement);
  readonly #said = find("parcel-said", HTMLElement);
  readonly #select = find("follow", HTMLSelectElement);
  #shownAt = -CHANGE_MS;

  /** `follow` gets the fragment to follow. */
  constructor(follow: (fragment: number | null) => void) {
    this.#select.addEventListener("change", () =>
      follow(this.#select.value === "" ? null : Number(this.#select.value)),
    );
  }

  reset(fragments: number): void {
    const kept = Number(this.#select.value) < fragments ? this.#select.value : "";
    this.#select.replaceChildren(
      make("option", { value: "" }, phrase("parcels.all")),
      ...Array.from({ length: fragments }, (_, at) =>
        make("option", { value: String(at) }, phrase("parcels.one", { fragment: at + 1, fragments })),
      ),
    );
    this.#select.value = kept;
    this.#shownAt = -CHANGE_MS;
  }

  /** Follows this fragment, as if the visitor had chosen it. */
  choose(fragment: number | null): void {
    this.#select.value = fragment === null ? "" : String(fragment);
    this.#select.dispatchEvent(new Event("change"));
  }

  /** Searches the history for a parcel worth showing, and returns it if there is one. */
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
