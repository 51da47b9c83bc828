/** Asks the Worker, and keeps its answers to the newest question. */

import type { Yield } from "../shared/lesson.js";
import { phrase } from "../words/phrase.js";
import type { Answers, Job, Question } from "./messages.js";
import { questionsOf } from "./questions.js";
import type { Settings } from "./settings.js";

/** Results so far. */
export interface Result {
  readonly question: Question;
  readonly value: number;
  readonly view: Yield | null;
}

/** Delay of a job after the last slider move, in milliseconds, since sliders move faster than results come. */
const SETTLE_MS = 60;

export class Explorer {
  readonly #worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module", name: "scale" });
  #job = 0;
  #questions: readonly Question[] = [];
  #results: Result[] = [];
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(came: (results: readonly Result[], done: boolean) => void, failed: (why: string) => void) {
    this.#worker.onmessage = ({ data }: MessageEvent<Answers>) => {
      if (data.is === "failed") return failed(data.why);
      if (data.job !== this.#job) return;
      for (const [index, value, view] of data.answers)
        this.#results.push({ question: this.#questions[index]!, value, view });
      came(this.#results, data.done);
    };
    this.#worker.onerror = (event) => {
      event.preventDefault();
      failed(event.message || phrase("failures.worker"));
    };
  }

  ask(settings: Settings): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#job += 1;
      this.#questions = questionsOf(settings);
      this.#results = [];
      this.#worker.postMessage({ job: this.#job, questions: this.#questions } satisfies Job);
    }, SETTLE_MS);
  }
}

/** Results of one line, by x. */
export function lineOf(results: readonly Result[], of: Question["of"], line: number): (readonly [number, number])[] {
  return results
    .filter(({ question }) => question.of === of && question.line === line)
    .map(({ question, value }) => [question.x, value] as const)
    .sort(([a], [b]) => a - b);
}
