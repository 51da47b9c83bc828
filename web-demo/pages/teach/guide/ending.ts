/** The end of the guide: a summary of predictions, and links to go on. */

import { fillRows, find, make, setAttribute, setText } from "../../shared/dom.js";
import { phrase } from "../../words/phrase.js";
import type { Chapter } from "./chapter.js";

/** Whether the prediction was right, for each completed chapter. */
export type Score = ReadonlyMap<string, boolean>;

/** Returns "Of the 3 chapters that you tried, 2 came as you predicted; 6 are left." */
export function scoreOf(score: Score, chapters: number): string {
  const right = [...score.values()].filter(Boolean).length;
  const came = right === 0 ? phrase("ending.noneCame") : phrase("ending.came", { count: right });
  if (score.size === 0) return phrase("ending.untried", { chapters });
  if (score.size === chapters) return phrase("ending.whole", { chapters, came });
  const left = phrase("ending.left", { count: chapters - score.size });
  return phrase("ending.tried", { count: score.size, came, left });
}

export class Ending {
  readonly #root = find("ending", HTMLElement);
  readonly #score = new Map<string, boolean>();
  readonly #chapters: readonly Chapter[];
  readonly #open: (chapter: string) => void;

  /** `open` gets the chapter to which the visitor returns. */
  constructor(chapters: readonly Chapter[], open: (chapter: string) => void) {
    this.#chapters = chapters;
    this.#open = open;
  }

  /** Records a completed chapter. Only the first prediction counts, since later ones know the answer. */
  saw(chapter: string, asPredicted: boolean): void {
    if (!this.#score.has(chapter)) this.#score.set(chapter, asPredicted);
  }

  hide(): void {
    this.#root.hidden = true;
  }

  show(): void {
    this.#root.hidden = false;
    setText(find("score", HTMLElement), scoreOf(this.#score, this.#chapters.length));
    fillRows(
      find("scores", HTMLElement),
      this.#chapters,
      () => this.#row(),
      (row, chapter) => this.#fill(row, chapter),
    );
    find("ending-title", HTMLElement).focus();
  }

  #row(): HTMLElement {
    const button = make("button", { type: "button", class: "link" });
    button.addEventListener("click", () => this.#open(button.dataset["chapter"] ?? ""));
    return make("li", {}, button, " ", make("span", { class: "small" }));
  }

  #fill(row: HTMLElement, { id, title }: Chapter): void {
    const [button, said] = [row.querySelector("button"), row.querySelector("span")];
    if (!button || !said) return;
    button.dataset["chapter"] = id;
    setText(button, title);
    const came = this.#score.get(id);
    const key = came === undefined ? "ending.rowUntried" : came ? "ending.rowRight" : "ending.rowWrong";
    setText(said, phrase(key));
    setAttribute(said, "data-came", came === undefined ? null : String(came));
  }
}
