/** What the run is doing, in one sentence. */
import type { LearnersByState, ServerStatus } from "../shared/api.js";
import { find, setAttribute, setText } from "../shared/dom.js";
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

/** How long readers are left alone after a sentence, in milliseconds, unless the tone changes. */
const QUIET_MS = 30_000;

/** Shows sentences, and tells readers of screens those that matter. */
export class SentenceView {
  readonly #shown = find("sentence", HTMLElement);
  readonly #told = find("sentence-told", HTMLElement);
  #tone: Sentence["tone"] | undefined;
  #toldAt_ms = 0;

  /** Shows the sentence for a run and the connection to it. */
  show(status: ServerStatus | null, link: LinkState): void {
    const { tone, text } = sentenceOf(status, link);
    const countdown = link.link === "lost" && tone === "trouble" ? ` in ${link.retry_s} s.` : "";
    setAttribute(this.#shown, "data-tone", tone);
    setText(this.#shown, text + countdown);
    const now_ms = performance.now();
    if (tone === this.#tone && now_ms - this.#toldAt_ms < QUIET_MS) return;
    this.#tone = tone;
    if (this.#told.textContent !== text) this.#toldAt_ms = now_ms;
    setText(this.#told, text);
  }
}
