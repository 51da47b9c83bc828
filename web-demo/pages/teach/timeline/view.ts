/** The timeline's canvas: keeps its size, draws a scene, selects parcels. */

import { find } from "../../shared/dom.js";
import type { Island } from "../../shared/lesson.js";
import { Surface } from "../../shared/surface.js";
import type { Watched } from "../guide/watched.js";
import { isPresenting } from "../presenter.js";
import { draw } from "./draw.js";
import { parcelAt } from "./draw-parcels.js";
import type { History, Parcel } from "./history.js";
import { NAMES, type Scene } from "./scene.js";

/** Time that 100 pixels span at normal speed, in milliseconds: slow enough for the eye to follow. */
const MS_PER_100_PX = 700;
/** Least number of training steps that 100 pixels span. */
const STEPS_PER_100_PX = 2;
/** Least width of a picture with large names. */
const FAR_PX_MIN = 600;
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class TimelineView {
  followed: number | null = null;
  chosen: Parcel | null = null;
  readonly #canvas = find("timeline", HTMLCanvasElement);
  readonly #history: History;
  readonly #surface: Surface;
  #spanMs = 0;
  #scene: Scene | undefined;

  /** `choose` gets the parcel under the pointer. */
  constructor(history: History, choose: (parcel: Parcel) => void) {
    this.#history = history;
    this.#surface = new Surface(this.#canvas);
    this.#canvas.addEventListener("click", (event) => {
      const box = this.#canvas.getBoundingClientRect();
      const { unit } = this.#surface;
      const parcel =
        this.#scene && parcelAt(this.#scene, (event.clientX - box.left) / unit, (event.clientY - box.top) / unit);
      if (parcel) choose(parcel);
    });
  }

  /** Resets zoom and selection for a new run. */
  reset(): void {
    [this.#spanMs, this.chosen] = [0, null];
  }

  /** Draws the moment `nowMs`. `wallMs` passed since the last picture. */
  draw(
    islands: readonly Island[],
    nowMs: number,
    speed: number,
    stepMs: number,
    roundsInFlight: number,
    wallMs: number,
    watched: Watched,
  ): void {
    const { width, height } = this.#surface;
    if (width === 0 || height === 0 || islands.length === 0) return;
    // Faster runs are shown at a smaller scale, with a gradual change.
    const wanted = (Math.max(stepMs * STEPS_PER_100_PX, MS_PER_100_PX * speed ** 0.8) * width) / 100;
    this.#spanMs =
      this.#spanMs === 0 || still.matches ? wanted : this.#spanMs + (wanted - this.#spanMs) * Math.min(1, wallMs / 300);
    const rows = Math.max(2, roundsInFlight);
    this.#scene = {
      history: this.#history,
      islands,
      nowMs,
      speed,
      rows,
      // A narrow window has no room for large names.
      names: isPresenting() && width >= FAR_PX_MIN ? NAMES.far : NAMES.near,
      spanMs: this.#spanMs,
      width,
      height,
      followed: this.followed,
      chosen: this.chosen,
      watched,
      still: still.matches,
    };
    const context = this.#surface.context();
    if (context) draw(context, this.#scene);
  }
}
