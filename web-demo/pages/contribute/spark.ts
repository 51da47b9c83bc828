/** The loss since the start as a line. */

/** Points drawn at most; beyond that neighbours are merged. */
const POINTS_MAX = 600;

export class Spark {
  readonly #canvas: HTMLCanvasElement;
  #points: number[] = [];
  #drawn = false;

  constructor(canvas: HTMLCanvasElement) {
    this.#canvas = canvas;
    new ResizeObserver(() => this.#ask()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#ask());
  }

  clear(): void {
    this.#points = [];
    this.#ask();
  }

  push(value: number): void {
    this.#points.push(value);
    if (this.#points.length > POINTS_MAX) {
      const halved: number[] = [];
      for (let i = 0; i + 1 < this.#points.length; i += 2) halved.push((this.#points[i]! + this.#points[i + 1]!) / 2);
      this.#points = halved;
    }
    this.#ask();
  }

  /** In words, for those who do not see it. */
  describe(): string {
    const [first, last] = [this.#points[0], this.#points.at(-1)];
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
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (width === 0) return;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const context = canvas.getContext("2d");
    if (!context || this.#points.length < 2) return;
    const low = Math.min(...this.#points);
    const high = Math.max(...this.#points, low + 1e-6);
    context.scale(scale, scale);
    context.lineWidth = 2;
    context.lineJoin = "round";
    context.strokeStyle = getComputedStyle(canvas).color;
    context.beginPath();
    this.#points.forEach((value, i) => {
      const x = (i / (this.#points.length - 1)) * (width - 4) + 2;
      const y = (1 - (value - low) / (high - low)) * (height - 8) + 4;
      context.lineTo(x, y);
    });
    context.stroke();
  }
}
