/** The timeline in words: the newest events, for screen readers, and for single steps. */

import { fillRows, find, make, setText } from "../../shared/dom.js";
import { milliseconds, percent } from "../../shared/format.js";
import { fixed } from "../../shared/language.js";
import type { Mark, Share } from "../../shared/lesson.js";
import { phrase } from "../../words/phrase.js";

const LINES_MAX = 12;

/** Describes an event; `null` for events that happen all the time. */
export function wordsOf(mark: Mark): string | null {
  const island = "island" in mark ? mark.island + 1 : 0;
  switch (mark.kind) {
    case "step":
    case "parcel":
      return null;
    case "applied":
      return phrase("events.applied", { island, fragment: mark.fragment + 1 });
    case "launched":
      return phrase("events.launched", { round: mark.round, fragment: mark.fragment + 1 });
    case "answered":
      return mark.round === null
        ? phrase("events.early", { island })
        : phrase("events.answered", { round: mark.round, island });
    case "quorum":
      return phrase("events.quorum", { round: mark.round });
    case "grace":
      return phrase("events.grace", {
        round: mark.round,
        time: milliseconds(Math.max(0, Math.round(mark.untilMs - mark.atMs))),
      });
    case "merged":
      return phrase("events.merged", { round: mark.round, shares: mark.shares.map(shareOf).join(", ") });
    case "abandoned":
      return phrase("events.abandoned", { round: mark.round });
    case "late":
      return phrase("events.late", { island });
    case "refused":
      return phrase("events.refused", { island, why: phrase(`events.reasons.${mark.why}`) });
    case "live":
      return phrase("events.live", { island });
    case "left":
      return phrase("events.left", { island });
    case "heldOut":
      return phrase("events.heldOut", { loss: fixed(mark.loss, 3) });
  }
}

function shareOf({ island, share }: Share): string {
  return phrase("events.share", { island: island + 1, share: percent(share) });
}

export class Words {
  readonly #details = find("events", HTMLDetailsElement);
  readonly #list = find("events-list", HTMLElement);
  readonly #step = find("step-said", HTMLElement);
  #lines: string[] = [];
  #changed = false;

  reset(): void {
    this.#lines = [];
    this.#changed = true;
    setText(this.#step, "");
  }

  /** `alone` is true for a single step: its events are announced. */
  take(marks: readonly Mark[], alone: boolean): void {
    // Single steps are announced; the stream of a playing run has too many events.
    const told = marks.filter((mark) => "atMs" in mark).filter(({ kind }) => alone || kind !== "applied");
    const byTime = told.sort((a, b) => a.atMs - b.atMs);
    const lines = byTime.flatMap((mark) => {
      const words = wordsOf(mark);
      return words === null ? [] : [phrase("events.line", { time: fixed(mark.atMs / 1_000, 2), event: words })];
    });
    if (lines.length === 0) return;
    this.#lines = [...this.#lines, ...lines].slice(-LINES_MAX);
    this.#changed = true;
    if (alone) setText(this.#step, lines.join(" "));
  }

  show(): void {
    if (!this.#changed || !this.#details.open) return;
    this.#changed = false;
    fillRows(this.#list, this.#lines.toReversed(), () => make("li"), setText);
  }
}
