/** The guide's panel for the challenge: its task, progress and outcome. */

import { find, make, setAttribute, setText } from "../../shared/dom.js";
import { nats, percent } from "../../shared/format.js";
import type { Frame, LessonSpec } from "../../shared/lesson.js";
import { phrase } from "../../words/phrase.js";
import type { Plan } from "../guide/own.js";
import type { Live } from "../live.js";
import { type Entry, entryOf, NAME_MAX } from "./board.js";
import {
  counts,
  END_MS,
  faultsInWords,
  GOAL,
  GOODPUT_MIN,
  GOODPUT_MIN_SAID,
  isAttempt,
  type Result,
  resultOf,
} from "./challenge.js";
import { Scores } from "./scores.js";

/** Callbacks of the challenge to the page. */
export interface Host {
  /** Restarts the run with the current settings. */
  again(): void;
  /** The list of scores has changed. */
  changed(): void;
  /** The challenge's own settings. */
  stage(): LessonSpec;
  /** Returns a fragment that shows this run from its beginning. */
  linkTo(entry: Entry): string;
  /** Returns a fragment that opens the challenge with its board. */
  linkToBoard(): string;
}

export class ChallengeView {
  readonly scores: Scores;
  readonly #host: Host;
  readonly #root = find("challenge", HTMLElement);
  readonly #stands = find("challenge-stands", HTMLElement);
  readonly #ended = find("challenge-ended", HTMLElement);
  readonly #said = find("challenge-said", HTMLElement);
  readonly #form = find("challenge-form", HTMLFormElement);
  readonly #name = find("challenge-name", HTMLInputElement);
  #run: Plan | null = null;
  #frame: Frame | null = null;
  #live: Live | null = null;
  #result: Result | null = null;

  constructor(host: Host) {
    this.#host = host;
    this.scores = new Scores(host);
    setText(find("challenge-goal", HTMLElement), GOAL);
    find("challenge-faults", HTMLElement).append(...faultsInWords().map((fault) => make("li", {}, fault)));
    this.#name.maxLength = NAME_MAX;
    find("challenge-again", HTMLButtonElement).addEventListener("click", () => host.again());
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#enter();
    });
  }

  /** Whether the guide shows the challenge. */
  get isOpen(): boolean {
    return !this.#root.hidden;
  }

  /** Takes a new run; later actions are added to it. */
  began(run: Plan): void {
    [this.#run, this.#frame, this.#result] = [run, null, null];
    this.#form.hidden = true;
    setText(this.#ended, "");
  }

  take(frame: Frame, live: Live): void {
    [this.#frame, this.#live] = [frame, live];
    if (!this.isOpen || this.#result) return;
    this.#result = resultOf(frame, live.goodput);
    if (this.#result) this.#end(this.#result);
  }

  #end(result: Result): void {
    const run = this.#run;
    if (!run) return;
    const isOurs = isAttempt(run, this.#host.stage());
    const whose = isOurs ? this.scores.saw(entryOf("", result, run.spec, run.actions)) : null;
    const canEnter = isOurs && counts(result) && whose === null;
    const verdict = !isOurs
      ? phrase("challenge.foreign")
      : whose !== null
        ? phrase("challenge.whose", { name: whose })
        : canEnter
          ? phrase("challenge.counts")
          : phrase("challenge.countsNot", { goodput: GOODPUT_MIN_SAID });
    const came = phrase("challenge.ended", { loss: nats(result.loss), goodput: percent(result.goodput) });
    setText(this.#ended, `${came} ${verdict}`);
    this.#form.hidden = !canEnter;
  }

  #enter(): void {
    if (!this.#run || !this.#result) return;
    const entry = entryOf(this.#name.value, this.#result, this.#run.spec, this.#run.actions);
    const isIn = this.scores.enter(entry);
    this.#form.hidden = isIn;
    setText(this.#said, phrase(isIn ? "challenge.entered" : "challenge.notEntered"));
    find("board-title", HTMLElement).focus();
  }

  /** Shows the progress. */
  show(): void {
    if (!this.isOpen || !this.#frame) return;
    const { nowMs, run } = this.#frame;
    const goodput = this.#live?.goodput ?? null;
    const left = Math.max(0, Math.ceil((END_MS - nowMs) / 1_000));
    const values = { loss: nats(run.heldOut), goodput: percent(goodput) };
    setText(
      this.#stands,
      left > 0 ? phrase("challenge.toGo", { ...values, seconds: left }) : phrase("challenge.over", values),
    );
    setAttribute(this.#stands, "data-tone", goodput !== null && goodput < GOODPUT_MIN ? "trouble" : "going");
  }
}
