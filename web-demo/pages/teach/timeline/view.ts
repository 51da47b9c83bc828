/** The timeline's canvas: keeps its size, draws a scene, chooses parcels. */

import { find } from "../../shared/dom.js";
import type { Island } from "../../shared/lesson.js";
import { onThemeChange } from "../../shared/palette.js";
import { typeScale } from "../../shared/type.js";
import { draw } from "./draw.js";
import { parcelAt } from "./draw-parcels.js";
import type { History, Parcel } from "./history.js";
import { heightOf, type Scene } from "./scene.js";

/** Time that 100 pixels span at normal speed, in milliseconds: slow enough to follow with one's eyes. */
const MS_PER_100_PX = 700;
/** Training steps that 100 pixels span at least. */
const STEPS_PER_100_PX = 2;
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class TimelineView {
  followed: number | null = null;
  chosen: Parcel | null = null;
  readonly #canvas = find("timeline", HTMLCanvasElement);
  readonly #history: History;
  /** Pixels of the picture in one of the page: larger type makes everything larger. */
  #unit = 1;
  #width = 0;
  #height = 0;
  #spanMs = 0;
  #scene: Scene | undefined;

  /** `choose` hears of the parcel that somebody pointed at. */
  constructor(history: History, choose: (parcel: Parcel) => void) {
    this.#history = history;
    const host = this.#canvas.parentElement ?? document.body;
    const measure = () => {
      this.#unit = typeScale();
      this.#width = host.clientWidth / this.#unit;
    };
    new ResizeObserver(measure).observe(host);
    onThemeChange(measure);
    this.#canvas.addEventListener("click", (event) => {
      const box = this.#canvas.getBoundingClientRect();
      const parcel =
        this.#scene &&
        parcelAt(this.#scene, (event.clientX - box.left) / this.#unit, (event.clientY - box.top) / this.#unit);
      if (parcel) choose(parcel);
    });
  }

  /** A new run: nothing of the old one is zoomed, chosen or followed. */
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
  ): void {
    if (this.#width === 0 || islands.length === 0) return;
    // Faster runs are seen from farther away, or nothing could be followed; the change is gradual.
    const wanted = (Math.max(stepMs * STEPS_PER_100_PX, MS_PER_100_PX * speed ** 0.8) * this.#width) / 100;
    this.#spanMs =
      this.#spanMs === 0 || still.matches ? wanted : this.#spanMs + (wanted - this.#spanMs) * Math.min(1, wallMs / 300);
    const rows = Math.max(2, roundsInFlight);
    this.#scene = {
      history: this.#history,
      islands,
      nowMs,
      speed,
      rows,
      spanMs: this.#spanMs,
      width: this.#width,
      followed: this.followed,
      chosen: this.chosen,
      still: still.matches,
    };
    const context = this.#fit(heightOf(islands.length, rows));
    if (context) draw(context, this.#scene, this.#height);
  }

  #fit(height: number): CanvasRenderingContext2D | null {
    const scale = devicePixelRatio * this.#unit;
    const [wide, high] = [Math.round(this.#width * scale), Math.round(height * scale)];
    const canvas = this.#canvas;
    if (canvas.width !== wide || canvas.height !== high) {
      [canvas.width, canvas.height] = [wide, high];
      canvas.style.height = `${height * this.#unit}px`;
    }
    this.#height = height;
    const context = canvas.getContext("2d");
    context?.setTransform(scale, 0, 0, scale, 0, 0);
    return context;
  }
}
