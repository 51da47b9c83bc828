/**
 * Controls on the sea: a click kills an island, a drag moves it farther out, and a click on its cable cuts the cable.
 * All are buttons, so that keys do the same.
 */

import { find, make, setAttribute, setText } from "../../shared/dom.js";
import { milliseconds } from "../../shared/format.js";
import { fixed } from "../../shared/language.js";
import type { Island } from "../../shared/lesson.js";
import { phrase } from "../../words/phrase.js";
import type { Act } from "../islands/cards.js";
import { badgeOf, extraOf, farFactor, isAway } from "../islands/words.js";
import { cutAt, EXTRA_MS_MAX, extraMsAt, islandAt, isSmall, radiusOf, type Sea } from "./chart.js";

/** Distance in pixels below which a press is a click and not a drag. */
const DRAG_PX = 6;
/** Change of delay by one key press, in milliseconds one way. */
const KEY_MS = 90;

/** A dragged island, and the extra delay of its position, in milliseconds. */
export interface Held {
  readonly island: number;
  readonly extraMs: number;
}

/** Returns the accessible name of an island's button: its state and conditions, with the visible text first for voice control. */
export function said(state: string, words: readonly string[], isUsual: boolean): string {
  return (isUsual ? [...words, state] : [state, ...words]).join(", ");
}

/** The buttons of one island. */
class Pin {
  readonly root: HTMLElement;
  readonly #island = make("button", { type: "button", class: "pin" });
  readonly #cable = make("button", { type: "button", class: "cable" });
  readonly #name = make("span", { class: "pin-name" });
  readonly #state = make("span", { class: "badge" });
  readonly #at: number;
  #seen: Island | undefined;
  /** Position requested by keys, until it shows. */
  #wantedMs: number | null = null;

  constructor(at: number, act: Act, drag: Drag) {
    this.#at = at;
    this.#island.append(this.#name, " ", this.#state);
    this.#island.dataset["pin"] = this.#cable.dataset["cable"] = String(at);
    this.root = make("li", {}, this.#island, this.#cable);
    this.#island.addEventListener("click", (event) => {
      // A key also sends a click, but ends no drag.
      const isDrag = event.detail > 0 && drag.wasDragged;
      if (this.#seen && !isDrag) act(at, isAway(this.#seen) ? "restart" : "kill");
    });
    this.#cable.addEventListener("click", () => this.#seen && act(at, this.#seen.partitioned ? "heal" : "partition"));
    this.#island.addEventListener("pointerdown", (event) => {
      if (!event.isPrimary || event.button !== 0 || event.ctrlKey) return;
      drag.wasDragged = false;
      if (this.#canMove) drag.begin(at, event);
    });
    this.#island.addEventListener("keydown", (event) => {
      const by = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 }[event.key];
      if (by === undefined || !this.#canMove || !this.#seen) return;
      event.preventDefault();
      const extraMs = (this.#wantedMs ?? drag.extraMsOf(this.#seen)) + by * KEY_MS;
      const wantedMs = Math.min(EXTRA_MS_MAX, Math.max(0, extraMs));
      // At the end of the range nothing changes.
      if (wantedMs === (this.#wantedMs ?? drag.extraMsOf(this.#seen))) return;
      this.#wantedMs = wantedMs;
      act(at, "far", farFactor(wantedMs));
    });
  }

  /** Resets the buttons for a new run. */
  reset(): void {
    [this.#seen, this.#wantedMs] = [undefined, null];
  }

  get #canMove(): boolean {
    return this.#seen !== undefined && this.#seen.state !== "expected" && !isAway(this.#seen);
  }

  show(island: Island, baseMs: number, isShort: boolean): void {
    this.#seen = island;
    const [state, tone] = badgeOf(island);
    const extraMs = extraOf(island, baseMs);
    if (extraMs === this.#wantedMs) this.#wantedMs = null;
    const number = this.#at + 1;
    const words = [
      island.slow > 1 && !isAway(island) && phrase("pins.slower", { factor: fixed(island.slow, 1, 0) }),
      extraMs > 0 && !isAway(island) && phrase("pins.farther", { time: milliseconds(2 * extraMs) }),
    ].filter((word) => word !== false);
    const isUsual = island.state === "training" && tone === "going";
    setText(this.#name, isShort ? String(number) : phrase("islands.name", { island: number }));
    const shown = isUsual ? words.join(", ") : state;
    setText(this.#state, shown);
    // In little room, the broken cable and its button say enough.
    this.#state.hidden = shown === "" || (isShort && island.partitioned && !isAway(island));
    setAttribute(this.#state, "data-tone", isUsual ? "waiting" : tone);
    const label = isAway(island) ? "pins.startLabel" : "pins.killLabel";
    setAttribute(this.#island, "aria-label", phrase(label, { island: number, state: said(state, words, isUsual) }));
    setAttribute(this.#island, "title", phrase(isAway(island) ? "pins.startTip" : "pins.killTip"));
    this.#island.disabled = island.state === "expected";
    this.#cable.hidden = island.state === "expected" || isAway(island);
    setText(this.#cable, island.partitioned ? phrase("pins.mend") : "✂");
    const cable = island.partitioned ? "pins.mendLabel" : "pins.cutLabel";
    setAttribute(this.#cable, "aria-label", phrase(cable, { island: number }));
    setAttribute(this.#cable, "title", phrase(island.partitioned ? "pins.mendTip" : "pins.cutTip"));
    setAttribute(this.root, "data-cut", island.partitioned ? "" : null);
  }

  place(sea: Sea, extraMs: number, unit: number): void {
    const [shore, radius] = [islandAt(sea, this.#at, extraMs), radiusOf(sea)];
    const cut = cutAt(sea, this.#at, extraMs);
    const size = Math.max(44, 2.6 * radius);
    const css = {
      "--x": `${shore.x * unit}px`,
      "--y": `${shore.y * unit}px`,
      "--size": `${size * unit}px`,
      "--cut-x": `${cut.x * unit}px`,
      "--cut-y": `${cut.y * unit}px`,
      "--cut-size": `${cut.size * unit}px`,
    };
    for (const [name, value] of Object.entries(css)) {
      if (this.root.style.getPropertyValue(name) !== value) this.root.style.setProperty(name, value);
    }
  }
}

/** A dragged island. */
class Drag {
  held: Held | null = null;
  #from: { readonly x: number; readonly y: number; readonly pointer: number; readonly island: number } | null = null;
  /** Whether the last press was a drag, so that the click at its end is ignored. */
  wasDragged = false;
  readonly #extraMsAt: (island: number, event: PointerEvent) => number;
  readonly extraMsOf: (island: Island) => number;

  constructor(
    extraMsAt: (island: number, event: PointerEvent) => number,
    extraMsOf: (island: Island) => number,
    dropped: (held: Held) => void,
  ) {
    this.#extraMsAt = extraMsAt;
    this.extraMsOf = extraMsOf;
    window.addEventListener("pointermove", (event) => this.#move(event));
    window.addEventListener("pointerup", (event) => {
      if (event.pointerId !== this.#from?.pointer) return;
      const { held } = this;
      this.let();
      if (held) dropped(held);
    });
    window.addEventListener("pointercancel", () => this.let());
  }

  begin(island: number, event: PointerEvent): void {
    this.#from = { x: event.clientX, y: event.clientY, pointer: event.pointerId, island };
  }

  #move(event: PointerEvent): void {
    const from = this.#from;
    if (event.pointerId !== from?.pointer) return;
    // The release was not observed.
    if (event.buttons === 0) return this.let();
    if (!this.held && Math.hypot(event.clientX - from.x, event.clientY - from.y) < DRAG_PX) return;
    this.wasDragged = true;
    this.held = { island: from.island, extraMs: this.#extraMsAt(from.island, event) };
  }

  /** Releases everything. */
  let(): void {
    [this.held, this.#from] = [null, null];
  }
}

export class Pins {
  readonly #list = find("pins", HTMLElement);
  readonly #act: Act;
  readonly #drag: Drag;
  #pins: Pin[] = [];
  #sea: Sea | null = null;
  #unit = 1;
  #baseMs = 0;
  /** Last positions. */
  #placed = "";
  /** Extra delay of each island in the run. */
  #extraMs: readonly number[] = [];

  constructor(act: Act) {
    this.#act = act;
    this.#drag = new Drag(
      (island, event) => {
        const box = this.#list.getBoundingClientRect();
        const point = { x: (event.clientX - box.left) / this.#unit, y: (event.clientY - box.top) / this.#unit };
        return this.#sea ? extraMsAt(this.#sea, island, point) : 0;
      },
      (island) => extraOf(island, this.#baseMs),
      ({ island, extraMs }) => {
        // A return to the old position is no action.
        if (farFactor(extraMs) !== farFactor(this.#extraMs[island] ?? 0)) act(island, "far", farFactor(extraMs));
      },
    );
  }

  /** The dragged island, if any. */
  get held(): Held | null {
    return this.#drag.held;
  }

  reset(islands: number): void {
    this.#drag.let();
    for (const pin of this.#pins) pin.reset();
    while (this.#pins.length < islands) this.#pins.push(new Pin(this.#pins.length, this.#act, this.#drag));
    if (this.#list.childElementCount !== islands)
      this.#list.replaceChildren(...this.#pins.slice(0, islands).map(({ root }) => root));
  }

  /** Positions all buttons; `extraMs` has each island's extra delay, `unit` the page pixels per pixel of the sea. */
  place(sea: Sea, extraMs: readonly number[], unit: number): void {
    [this.#sea, this.#unit] = [sea, unit];
    const placed = [sea.width, sea.height, unit, ...extraMs].join(" ");
    if (placed === this.#placed) return;
    this.#placed = placed;
    extraMs.forEach((extra, at) => this.#pins[at]?.place(sea, extra, unit));
  }

  show(islands: readonly Island[], baseMs: number): void {
    this.#baseMs = baseMs;
    this.#extraMs = islands.map((island) => extraOf(island, baseMs));
    const isShort = this.#sea === null || isSmall(this.#sea);
    islands.forEach((island, at) => this.#pins[at]?.show(island, baseMs, isShort));
  }
}
