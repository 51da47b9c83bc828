/** A class as a sea: an island for each learner, pulses for merges, and notes on problems. */
import type { LearnerView, RoundsView } from "../shared/api.js";
import { find, make, play, setAttribute, setText } from "../shared/dom.js";
import { count, percent } from "../shared/format.js";
import { nameOf, titlesOf } from "../shared/names.js";
import { placeIn, roomFor } from "../shared/places.js";
import { reinOf, slowed } from "../shared/rein.js";
import { toneOf } from "./learner-words.js";
import type { Owner } from "./owner.js";
import { Reins } from "./reins.js";

const SVG = "http://www.w3.org/2000/svg";
/** Time for which an island stays after its learner left, in milliseconds. */
const LEFT_MS = 120_000;
/** Distance of islands from the middle, as a share of half the sea each way. */
const [REACH_X, REACH_Y] = [0.88, 0.82];

export class Islands {
  readonly #list = find("islands", HTMLUListElement);
  readonly #ways = find("ways", SVGSVGElement);
  readonly #light = find("lighthouse", SVGSVGElement);
  readonly #islands = new Map<number, Island>();
  readonly #card: Card;
  /** The newest merged round whose islands have pulsed. */
  #pulsed = 0n;

  constructor(owner: Owner) {
    this.#card = new Card(owner);
    this.#list.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#card.close();
    });
  }

  /** Shows these learners; returns the number of islands with a connected learner. */
  show(learners: readonly LearnerView[], nowMs: number): number {
    const titles = titlesOf(learners);
    const here = learners.filter((view) => view.state !== null || view.returnsS !== null);
    for (const view of here) {
      const island = this.#islands.get(view.learner) ?? this.#add(view.learner);
      island.seenMs = nowMs;
      island.show(view, titles);
    }
    for (const [learner, island] of this.#islands) {
      if (island.seenMs === nowMs) continue;
      const gone = learners.find((view) => view.learner === learner);
      if (nowMs - island.seenMs > LEFT_MS) this.#remove(learner, island);
      else if (gone) island.show(gone, titles);
    }
    this.#settle();
    this.#card.renew();
    return here.filter((view) => view.state !== null).length;
  }

  /** Whether any island is visible. */
  get any(): boolean {
    return this.#islands.size > 0;
  }

  /** Pulses the islands of learners in newly merged rounds. */
  merged(view: RoundsView): void {
    const fresh = view.rounds.filter((report) => report.merged !== null && BigInt(report.round) > this.#pulsed);
    for (const report of fresh) {
      const round = BigInt(report.round);
      if (round > this.#pulsed) this.#pulsed = round;
    }
    const learners = fresh.flatMap((report) => report.answers.filter((answer) => answer.fate === "merged"));
    for (const { learner } of learners) this.#islands.get(learner)?.pulse();
    if (learners.length > 0) play(this.#light);
  }

  #add(learner: number): Island {
    const taken = new Set([...this.#islands.values()].map((island) => island.place));
    let place = 0;
    while (taken.has(place)) place += 1;
    const island = new Island(place, (asked) => this.#card.toggle(asked));
    this.#islands.set(learner, island);
    // In numerical order for the keyboard, regardless of position.
    const next = [...this.#islands].filter(([other]) => other > learner).sort(([a], [b]) => a - b)[0];
    this.#list.insertBefore(island.item, next?.[1].item ?? null);
    this.#ways.append(island.way);
    return island;
  }

  #remove(learner: number, island: Island): void {
    this.#card.leave(island);
    island.item.remove();
    island.way.remove();
    this.#islands.delete(learner);
  }

  #settle(): void {
    const islands = [...this.#islands.values()];
    const room = roomFor(Math.max(1, ...islands.map(({ place }) => place + 1)));
    setAttribute(this.#list, "data-room", String(room));
    for (const island of islands) island.lie(placeIn(room, island.place));
  }
}

/** One island, and its line to the lighthouse. */
class Island {
  readonly item: HTMLLIElement;
  readonly way = document.createElementNS(SVG, "line");
  readonly spot = make("button", { type: "button", class: "spot", "aria-expanded": "false" });
  readonly place: number;
  seenMs = 0;
  view: LearnerView | undefined;
  /** Its display name among the others. */
  title = "";
  readonly #ring = make("span", { class: "ring", "aria-hidden": "true" });
  readonly #name = make("span", { class: "name" });
  readonly #badge = make("span", { class: "badge" });

  constructor(place: number, asked: (island: Island) => void) {
    this.place = place;
    this.spot.append(this.#ring, make("span", { class: "land", "aria-hidden": "true" }), this.#name, " ", this.#badge);
    this.spot.addEventListener("click", () => asked(this));
    this.item = make("li", {}, this.spot);
  }

  show(view: LearnerView, titles: ReadonlyMap<number, string>): void {
    this.view = view;
    this.title = titles.get(view.learner) ?? nameOf(view);
    setText(this.#name, this.title);
    setText(this.#badge, shortState(view));
    setAttribute(this.#badge, "data-tone", reinOf(view) ? "held" : toneOf(view));
    for (const node of [this.item, this.way]) setAttribute(node, "data-state", stateOf(view));
  }

  lie({ x, y }: { readonly x: number; readonly y: number }): void {
    const [left, top] = [50 + 50 * REACH_X * x, 50 + 50 * REACH_Y * y];
    this.item.style.setProperty("--x", `${left.toFixed(2)}%`);
    this.item.style.setProperty("--y", `${top.toFixed(2)}%`);
    setAttribute(this.item, "data-side", top > 50 ? "below" : "above");
    for (const [name, value] of Object.entries({ x1: left, y1: top, x2: 50, y2: 50 }))
      setAttribute(this.way, name, value.toFixed(2));
  }

  /** Signals a merged update. */
  pulse(): void {
    play(this.#ring);
    play(this.way);
  }
}

/** Details of the selected island, with the owner's controls. */
class Card {
  readonly #what = make("p", { class: "small number" });
  readonly #reins: Reins;
  readonly #item: HTMLElement;
  #of: Island | undefined;

  constructor(owner: Owner) {
    this.#reins = new Reins(owner);
    const close = make("button", { type: "button", class: "close" }, "Close");
    close.addEventListener("click", () => this.close());
    this.#item = make("div", { class: "island-card stack" }, this.#what, this.#reins.item, close);
  }

  toggle(island: Island): void {
    if (this.#of === island) return this.close();
    this.#of?.spot.setAttribute("aria-expanded", "false");
    this.#of = island;
    island.spot.setAttribute("aria-expanded", "true");
    island.item.append(this.#item);
    this.renew();
  }

  close(): void {
    const island = this.#of;
    if (!island) return;
    this.leave(island);
    island.spot.focus();
  }

  /** Disappears with its island. */
  leave(island: Island): void {
    if (this.#of !== island) return;
    this.#of = undefined;
    island.spot.setAttribute("aria-expanded", "false");
    this.#item.remove();
  }

  renew(): void {
    const { view, title } = this.#of ?? {};
    if (!view || title === undefined) return;
    const state = reinOf(view) || (view.state ?? "away");
    const speed = view.state === null ? "" : ` ${count(view.tokensPerS)} tokens a second.`;
    setText(this.#what, `${title}: ${state}.${speed} ${percent(view.mergedShare)} of the model is its work.`);
    this.#reins.show(view, title);
  }
}

/** Returns the island's look. */
function stateOf(view: LearnerView): "going" | "slowed" | "dropped" | "away" | "waiting" {
  if (view.returnsS !== null) return "dropped";
  if (view.state === null) return "away";
  if (view.share < 1) return "slowed";
  return view.state === "training" ? "going" : "waiting";
}

/** Returns its activity, in up to three words. */
function shortState(view: LearnerView): string {
  if (view.returnsS !== null) return `dropped, ${Math.ceil(view.returnsS)} s`;
  return view.state === null ? "away" : slowed(view.share) || view.state;
}
