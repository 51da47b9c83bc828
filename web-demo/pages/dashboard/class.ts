/** A class on one screen: the islands, the loss, the newest text, and the code to join with. */
import type { RoundsView, ServerStatus } from "../shared/api.js";
import { find, setAttribute, setText } from "../shared/dom.js";
import { count, nats } from "../shared/format.js";
import { linkFor } from "../shared/link.js";
import { painter } from "../shared/paint.js";
import { Spark } from "../shared/spark.js";
import { promptOf, writeText } from "../shared/texts.js";
import type { Course } from "./course.js";
import { Islands } from "./islands.js";
import { Join } from "./join.js";
import type { Owner } from "./owner.js";
import { textsOf } from "./samples.js";

/** The page's section for a class. */
export class ClassView {
  readonly #section = find("classroom", HTMLElement);
  readonly #heading = find("heading", HTMLElement);
  readonly #join = new Join();
  readonly #islands: Islands;
  readonly #canvas = find("class-spark", HTMLCanvasElement);
  readonly #spark = new Spark(this.#canvas);
  readonly #course: Course;
  readonly #refresh: () => void;
  /** Evaluations in the line, by time. */
  #drawn = -1;
  #status: ServerStatus | null = null;

  constructor(owner: Owner, course: Course) {
    this.#course = course;
    this.#islands = new Islands(owner);
    this.#refresh = painter(this.#section, () => this.#paint());
  }

  /** Shows a classroom run; hidden for other runs. */
  show(status: ServerStatus): void {
    this.#section.hidden = !status.classroom;
    document.body.classList.toggle("for-class", status.classroom);
    // A class needs the room on the screen; screen readers still find the page's heading.
    this.#heading.classList.toggle("hidden-text", status.classroom);
    if (!status.classroom) return;
    this.#status = status;
    const here = this.#islands.show(status.learners, performance.now());
    setText(find("islands-count", HTMLElement), this.#islands.any ? count(here) : "");
    this.#section.classList.toggle("joined", this.#islands.any && !status.finished);
    // A complete run takes no more learners: its text takes that room.
    this.#section.classList.toggle("complete", status.finished);
    this.#join.show(linkFor(status.links), status, this.#islands.any);
    this.#refresh();
  }

  /** Takes changed rounds. */
  merged(view: RoundsView): void {
    if (!this.#section.hidden) this.#islands.merged(view);
  }

  /** Takes new points of the run's series. */
  refresh(): void {
    this.#refresh();
  }

  #paint(): void {
    const status = this.#status;
    if (!status) return;
    setText(find("class-loss", HTMLElement), nats(status.valLossLast));
    const start = status.valLossFirst === null ? "not measured yet" : `${nats(status.valLossFirst)} at the start`;
    setText(find("class-loss-start", HTMLElement), start);
    const { evaluations } = this.#course.view;
    for (const { timeS, loss } of evaluations) {
      if (timeS <= this.#drawn) continue;
      this.#drawn = timeS;
      this.#spark.push(loss);
    }
    setAttribute(this.#canvas, "aria-label", `How badly it guesses: ${nats(status.valLossLast)} at the end, ${start}.`);
    const texts = textsOf(this.#course);
    if (this.#course.isKnown || status.sample !== "")
      writeText(find("class-text", HTMLElement), texts.at(-1) ?? status.sample, promptOf(texts));
  }
}
