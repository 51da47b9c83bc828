/** The timeline in words: the newest events, for those who do not see it, and for single steps. */

import { fillRows, find, make, setText } from "../../shared/dom.js";
import { milliseconds, percent } from "../../shared/format.js";
import type { Mark } from "../../shared/lesson.js";

const LINES_MAX = 12;

/** An event in words, or nothing for what happens all the time. */
export function wordsOf(mark: Mark): string | null {
  const island = "island" in mark ? `island ${mark.island + 1}` : "";
  switch (mark.kind) {
    case "step":
    case "parcel":
      return null;
    case "applied":
      return `${island[0]?.toUpperCase()}${island.slice(1)} takes fragment ${mark.fragment + 1} in.`;
    case "launched":
      return `Round ${mark.round} asks for fragment ${mark.fragment + 1}.`;
    case "answered":
      return mark.round === null
        ? `The answer of ${island} is early: it waits for the next round.`
        : `Round ${mark.round}: ${island} answers.`;
    case "quorum":
      return `Round ${mark.round} has its quorum.`;
    case "grace":
      return `Round ${mark.round} grants ${milliseconds(Math.max(0, Math.round(mark.untilMs - mark.atMs)))} of grace.`;
    case "merged":
      return `Round ${mark.round} is merged: ${mark.shares.map(({ island, share }) => `island ${island + 1} ${percent(share)}`).join(", ")}.`;
    case "abandoned":
      return `Round ${mark.round} is given up.`;
    case "late":
      return `The answer of ${island} is too late; its progress rides in its next answer.`;
    case "refused":
      return `The answer of ${island} is refused (${mark.why.replaceAll("_", " ")}).`;
    case "live":
      return `${island[0]?.toUpperCase()}${island.slice(1)} takes part.`;
    case "left":
      return `${island[0]?.toUpperCase()}${island.slice(1)} is gone.`;
    case "heldOut":
      return `Held-out loss: ${mark.loss.toFixed(3)} nats.`;
  }
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

  /** `alone` is true for a single step: its events are read out. */
  take(marks: readonly Mark[], alone: boolean): void {
    // One by one they are worth telling; in the flow of things there are too many.
    const told = marks.filter((mark) => "atMs" in mark).filter(({ kind }) => alone || kind !== "applied");
    const byTime = told.sort((a, b) => a.atMs - b.atMs);
    const lines = byTime.flatMap((mark) => {
      const words = wordsOf(mark);
      return words === null ? [] : [`${(mark.atMs / 1_000).toFixed(2)} s  ${words}`];
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
