/** The loss since the start as a line. */
import { Means } from "./means.js";
import { color, onThemeChange } from "./palette.js";

export class Spark {
  readonly #canvas: HTMLCanvasElement;
  #means = new Means();
  #drawn = false;
  #width = 0;
  #height = 0;

  constructor(canvas: HTMLCanvasElement) {
    this.#canvas = canvas;
    // The size comes from here: asking for it while drawing would have the page laid out anew.
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

  push(value: number): void {
    this.#means.push(value);
    this.#ask();
  }

  /** In words, for those who do not see it. */
  describe(): string {
    const { first, last } = this.#means;
    if (first === undefined || last === undefined) return "Training loss since the start";
    return `Training loss since the start: from ${first.toFixed(2)} to ${last.toFixed(2)} nats per token`;
  }

  #ask(): void {
    if (this.#drawn) return;
    this.#drawn = true;
    requestAnimationFrame(() => {
      this.#drawn = false;
      this.#draw();
    });
  }

  #draw(): void {
    const canvas = this.#canvas;
    const scale = devicePixelRatio;
    const [width, height] = [this.#width, this.#height];
    if (width === 0) return;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const context = canvas.getContext("2d");
    const points = this.#means.all;
    if (!context || points.length < 2) return;
    const low = Math.min(...points);
    const high = Math.max(...points, low + 1e-6);
    context.scale(scale, scale);
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
