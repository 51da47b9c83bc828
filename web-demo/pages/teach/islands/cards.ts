/** Cards of the islands: their activity, and the switches that break them. */

import { find, make, setAttribute, setText } from "../../shared/dom.js";
import { fixed } from "../../shared/language.js";
import type { Deed, Frame, Island } from "../../shared/lesson.js";
import { Spark } from "../../shared/spark.js";
import { type Key, phrase } from "../../words/phrase.js";
import { badgeOf, extraOf, farFactor, figuresOf, isAway } from "./words.js";

/** Carries out `deed` on an island. */
export type Act = (island: number, deed: Deed, factor?: number) => void;

/** Factor of the step duration of a slowed island. */
export const SLOW_FACTOR = 4;
/** Extra delay of an island far away, one way, in milliseconds. */
const FAR_AWAY_MS = 490;

/** Least time between two points of the line, in milliseconds of the wall clock; at most one point a step. */
const SPARK_MS = 250;

/** One island. */
class Card {
  readonly root: HTMLElement;
  readonly #state = make("span", { class: "badge" });
  readonly #figures = make("span", { class: "quiet small number" });
  readonly #spark: Spark;
  readonly #canvas: HTMLCanvasElement;
  readonly #buttons: Readonly<Record<"kill" | "slow" | "far" | "partition" | "poison" | "lie", HTMLButtonElement>>;
  readonly #number: number;
  /** First loss of its line. */
  #firstLoss: number | null = null;
  #steps = -1;
  #drawn = 0;
  #seen: Island | undefined;
  #isFar = false;

  constructor(index: number, act: Act) {
    const island = index + 1;
    this.#number = island;
    this.#canvas = make("canvas", { class: "spark", role: "img", "aria-label": phrase("islands.loss", { island }) });
    const button = (does: (island: Island) => void) => {
      const made = make("button", { type: "button" });
      made.addEventListener("click", () => this.#seen && does(this.#seen));
      return made;
    };
    this.#buttons = {
      kill: button((now) => act(index, isAway(now) ? "restart" : "kill")),
      slow: button((now) => act(index, "slow", now.slow > 1 ? 1 : SLOW_FACTOR)),
      far: button(() => act(index, "far", this.#isFar ? 1 : farFactor(FAR_AWAY_MS))),
      partition: button((now) => act(index, now.partitioned ? "heal" : "partition")),
      poison: button((now) => act(index, now.poisoned ? "cure" : "poison")),
      lie: button((now) => act(index, now.lies ? "cure" : "lie")),
    };
    for (const [deed, made] of Object.entries(this.#buttons)) made.dataset["does"] = `${deed}-${index}`;
    this.root = make(
      "li",
      { class: "island" },
      make("h3", {}, phrase("islands.name", { island })),
      this.#state,
      this.#figures,
      this.#canvas,
      make(
        "div",
        { class: "switches", role: "group", "aria-label": phrase("islands.break", { island }) },
        ...Object.values(this.#buttons),
      ),
    );
    this.#spark = new Spark(this.#canvas);
  }

  /** Resets the line for a new run. */
  reset(): void {
    this.#spark.clear();
    this.#firstLoss = null;
    [this.#steps, this.#drawn] = [-1, 0];
  }

  /** `usualMs` is one way of an ordinary island. */
  show(island: Island, usualMs: number): void {
    const { kill, slow, far, partition, poison, lie } = this.#buttons;
    this.#isFar = extraOf(island, usualMs) > 0;
    const [state, tone] = badgeOf(island);
    const [away, expected] = [isAway(island), island.state === "expected"];
    setText(this.#state, state);
    setAttribute(this.#state, "data-tone", tone);
    setText(this.#figures, away || expected ? "" : figuresOf(island));
    this.#call(kill, away ? "islands.start" : "islands.kill");
    this.#call(slow, island.slow > 1 ? "islands.fast" : "islands.slow");
    this.#call(far, this.#isFar ? "islands.near" : "islands.far");
    this.#call(partition, island.partitioned ? "islands.heal" : "islands.cut");
    this.#call(poison, island.poisoned ? "islands.cure" : "islands.poison");
    this.#call(lie, island.lies ? "islands.honest" : "islands.lie");
    kill.classList.toggle("danger", !away);
    kill.classList.toggle("primary", away);
    kill.disabled = expected;
    for (const other of [slow, far, partition, poison, lie]) other.disabled = away || expected;
    setAttribute(this.root, "data-state", island.state);
    setAttribute(this.root, "data-stopped", island.stopped === null ? null : "");
    this.#seen = island;
    const now = performance.now();
    if (island.loss === null || island.steps <= this.#steps || now - this.#drawn < SPARK_MS) return;
    [this.#steps, this.#drawn] = [island.steps, now];
    this.#spark.push(island.loss);
    this.#firstLoss ??= island.loss;
    const values = { island: this.#number, first: fixed(this.#firstLoss, 2), last: fixed(island.loss, 2) };
    setAttribute(this.#canvas, "aria-label", phrase("islands.lossRead", values));
  }

  /** The accessible name begins with the visible text, for voice control. */
  #call(button: HTMLButtonElement, key: Key): void {
    const action = phrase(key);
    setText(button, action);
    setAttribute(button, "aria-label", phrase("islands.action", { action, island: this.#number }));
  }
}

export class Cards {
  readonly #list = find("islands", HTMLElement);
  readonly #act: Act;
  #cards: Card[] = [];

  constructor(act: Act) {
    this.#act = act;
  }

  reset(islands: number): void {
    // Cards are reused, so that the focus stays on its button.
    while (this.#cards.length < islands) this.#cards.push(new Card(this.#cards.length, this.#act));
    for (const card of this.#cards) card.reset();
    if (this.#list.childElementCount !== islands)
      this.#list.replaceChildren(...this.#cards.slice(0, islands).map((card) => card.root));
  }

  show(frame: Frame, usualMs: number): void {
    frame.islands.forEach((island, index) => this.#cards[index]?.show(island, usualMs));
  }
}
