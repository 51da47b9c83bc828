/** A series of values as a small line, such as the loss since the start. */
import { Means } from "./means.js";
import { painter } from "./paint.js";
import { color, onThemeChange } from "./palette.js";

export class Spark {
  readonly #canvas: HTMLCanvasElement;
  #means = new Means();
  #width = 0;
  #height = 0;

  readonly #fromZero: boolean;
  readonly #ask: () => void;

  /** `fromZero` starts the vertical scale at zero instead of the least value. */
  constructor(canvas: HTMLCanvasElement, fromZero = false) {
    this.#canvas = canvas;
    this.#fromZero = fromZero;
    this.#ask = painter(canvas, () => this.#draw());
    // Observes the size: reading it while drawing would force another layout.
    new ResizeObserver((entries) => {
      const box = entries.at(-1)?.contentRect;
      if (box) [this.#width, this.#height] = [box.width, box.height];
      this.#ask();
    }).observe(canvas);
    onThemeChange(() => this.#ask());
  }

  clear(): void {
    this.#means = new Means();
    this.#ask();
  }

  /** Shows another series, which its owner extends. */
  show(means: Means): void {
    this.#means = means;
    this.#ask();
  }

  push(value: number): void {
    this.#means.push(value);
    this.#ask();
  }

  /** Describes the series for screen readers. */
  describe(): string {
    const { first, last } = this.#means;
    if (first === undefined || last === undefined) return "How badly it has guessed since the start";
    return `How badly it has guessed since the start: from ${first.toFixed(2)} to ${last.toFixed(2)}`;
  }

  #draw(): void {
    const canvas = this.#canvas;
    const scale = devicePixelRatio;
    const [width, height] = [this.#width, this.#height];
    if (width === 0) return;
    const [wide, tall] = [Math.round(width * scale), Math.round(height * scale)];
    // Resizes only on a change: resizing clears the canvas and allocates new memory.
    if (canvas.width !== wide || canvas.height !== tall) [canvas.width, canvas.height] = [wide, tall];
    const context = canvas.getContext("2d");
    context?.setTransform(scale, 0, 0, scale, 0, 0);
    context?.clearRect(0, 0, width, height);
    const points = this.#means.all;
    if (!context || points.length < 2) return;
    const low = this.#fromZero ? 0 : Math.min(...points);
    const high = Math.max(...points, low + 1e-6);
    context.lineWidth = 2;
    context.lineJoin = "round";
    context.strokeStyle = color("line-1");
    context.beginPath();
    points.forEach((value, i) => {
      const x = (i / (points.length - 1)) * (width - 4) + 2;
      const y = (1 - (value - low) / (high - low)) * (height - 8) + 4;
      context.lineTo(x, y);
    });
    context.stroke();
  }
}
