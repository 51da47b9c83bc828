/** What the run is doing, in one sentence. */
import type { LearnersByState, ServerStatus } from "../shared/api.js";
import { setAttribute, setText } from "../shared/dom.js";
import type { LinkState } from "../shared/events.js";
import { plural } from "../shared/format.js";

/** A sentence and its tone, as `parts.css` knows it. */
export interface Sentence {
  readonly tone: "going" | "waiting" | "held" | "trouble" | "done";
  readonly text: string;
}

/** The sentence for a run, as far as it is known, and the connection to it. */
export function sentenceOf(status: ServerStatus | null, link: LinkState): Sentence {
  if (link.link === "lost") {
    if (status?.finishing) return { tone: "done", text: "The run is complete, and its syncer has stopped." };
    return { tone: "trouble", text: "Connection to the syncer lost, trying again" };
  }
  if (!status) return { tone: "waiting", text: "Asking the syncer how the run goes…" };
  if (status.finishing) {
    return status.rounds_open > 0 || status.connected > 0
      ? { tone: "going", text: "Finishing: the last progress is being collected." }
      : { tone: "done", text: "The run is complete." };
  }
  if (status.paused) {
    const waiting = status.connected > 0 ? `: ${plural(status.connected, "learner waits", "learners wait")}` : "";
    return { tone: "held", text: `Paused by its owner${waiting}.` };
  }
  return sentenceOfLearners(status);
}

function sentenceOfLearners(status: ServerStatus): Sentence {
  const { learners_by_state: by, connected } = status;
  if (status.learners_total === 0) return { tone: "waiting", text: "Waiting for the first learner: share the link." };
  if (connected === 0) {
    const all = plural(status.learners_total, "learner", "learners");
    return { tone: "waiting", text: `Waiting for learners: ${all} came so far, none is here now.` };
  }
  if (by.training === 0) return { tone: "waiting", text: `No learner trains now: ${others(by).join(", ")}.` };
  return { tone: "going", text: `Training: ${[plural(by.training, "learner"), ...others(by)].join(", ")}.` };
}

/** Connected learners that do not train, counted by what they do instead. */
function others(by: LearnersByState): string[] {
  const words: readonly (readonly [number, string])[] = [
    [by.joining, "joining"],
    [by.paused, "paused by their owners"],
    [by.hidden, "in hidden tabs"],
    [by.starved, "without data to train on"],
    [by.held, "held"],
  ];
  return words.filter(([some]) => some > 0).map(([some, what]) => `${some} ${what}`);
}

/** How long a sentence of the same tone stays at least, in milliseconds: readers are not told each small change. */
const STAY_MS = 5_000;

/** Shows sentences in a live region, and the countdown of a lost connection outside it. */
export class SentenceView {
  readonly #whole: HTMLElement;
  readonly #live: HTMLElement;
  readonly #countdown: HTMLElement;
  #shown: Sentence | undefined;
  #shownAt_ms = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(whole: HTMLElement, live: HTMLElement, countdown: HTMLElement) {
    this.#whole = whole;
    this.#live = live;
    this.#countdown = countdown;
  }

  /** Shows `sentence`: now if its tone is new, else when the last one has stood long enough. */
  show(sentence: Sentence, link: LinkState): void {
    setText(this.#countdown, link.link === "lost" && sentence.tone === "trouble" ? ` in ${link.retry_s} s` : "");
    clearTimeout(this.#timer);
    if (sentence.text === this.#shown?.text) return;
    const wait_ms = sentence.tone === this.#shown?.tone ? this.#shownAt_ms + STAY_MS - performance.now() : 0;
    if (wait_ms > 0) {
      this.#timer = setTimeout(() => this.show(sentence, link), wait_ms);
      return;
    }
    this.#shown = sentence;
    this.#shownAt_ms = performance.now();
    setAttribute(this.#whole, "data-tone", sentence.tone);
    setText(this.#live, sentence.text);
  }
}
