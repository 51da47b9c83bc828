/** Details of one learner below the table, with the owner's controls. */
import type { LearnerView } from "../shared/api.js";
import { find, setText } from "../shared/dom.js";
import { count, duration, percent, plural } from "../shared/format.js";
import { trustOf } from "../shared/rein.js";
import { Spark } from "../shared/spark.js";
import { courseOf, type LearnerCourses } from "./learner-course.js";
import { aboutOf, lostUpdates } from "./learner-words.js";
import type { Owner } from "./owner.js";
import { Reins } from "./reins.js";

/** Shows one learner at a time; closed until one is chosen. */
export class LearnerCard {
  readonly #card = find("learner-card", HTMLElement);
  readonly #name = find("learner-name", HTMLElement);
  readonly #told = find("learner-told", HTMLElement);
  readonly #course = find("learner-course", HTMLElement);
  readonly #spark = new Spark(find("learner-spark", HTMLCanvasElement), true);
  readonly #courses: LearnerCourses;
  readonly #reins: Reins;
  readonly #nameOf: (learner: number) => string;
  #chosen: number | null = null;
  #from: HTMLElement | null = null;

  /** `nameOf` returns a learner's display name. */
  constructor(owner: Owner, courses: LearnerCourses, nameOf: (learner: number) => string) {
    this.#courses = courses;
    this.#nameOf = nameOf;
    this.#reins = new Reins(owner);
    this.#card.append(this.#reins.item);
    find("learner-close", HTMLElement).addEventListener("click", () => this.#close());
    this.#card.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#close();
    });
  }

  /** Opens the card for this learner; `from` gets the focus again on closing. */
  open(view: LearnerView, from: HTMLElement): void {
    [this.#chosen, this.#from] = [view.learner, from];
    this.#card.hidden = false;
    this.#show(view);
    this.#name.focus();
  }

  /** Updates the card of the displayed learner. */
  renew(learners: readonly LearnerView[]): void {
    const view = learners.find(({ learner }) => learner === this.#chosen);
    if (view) this.#show(view);
  }

  #show(view: LearnerView): void {
    const name = this.#nameOf(view.learner);
    setText(this.#name, name);
    setText(this.#told, historyOf(view));
    const speeds = this.#courses.of(view.learner);
    this.#spark.show(speeds);
    setText(this.#course, courseOf(speeds));
    this.#reins.show(view, name);
  }

  #close(): void {
    this.#card.hidden = true;
    this.#chosen = null;
    this.#from?.focus();
  }
}

/** Describes the fates of a learner's updates. */
export function historyOf(view: LearnerView): string {
  const part = view.tokensTrained > 0 ? ` (${percent(view.tokensMerged / view.tokensTrained)})` : "";
  const here = view.connectedS === null ? "It is away." : `It has been here for ${duration(view.connectedS)}.`;
  const lost = lostUpdates(view.fates);
  return [
    here,
    `It trained on ${count(view.tokensTrained)} tokens; ${count(view.tokensMerged)} of them are merged${part}.`,
    `It sent ${plural(view.updates, "update")}, of which ${count(view.fates.merged)} were merged${lost ? `; ${lost}` : ""}.`,
    trustOf(view),
    `${aboutOf(view)}.`,
  ]
    .filter((sentence) => sentence !== "")
    .join(" ");
}
