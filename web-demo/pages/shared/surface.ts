/** A canvas that fills its parent, sharp on every screen. */
import { onThemeChange } from "./palette.js";
import { typeScale } from "./type.js";

export class Surface {
  /** Size of the picture, in its own pixels. */
  width = 0;
  height = 0;
  /** Page pixels per picture pixel: larger type makes everything larger. */
  unit = 1;
  readonly #canvas: HTMLCanvasElement;

  /** The canvas is positioned absolutely, or its size would determine its parent's. */
  constructor(canvas: HTMLCanvasElement) {
    this.#canvas = canvas;
    const host = canvas.parentElement ?? document.body;
    const measure = () => {
      this.unit = typeScale();
      [this.width, this.height] = [host.clientWidth / this.unit, host.clientHeight / this.unit];
    };
    new ResizeObserver(measure).observe(host);
    onThemeChange(measure);
  }

  /** Returns the context, scaled to the picture's own pixels. */
  context(): CanvasRenderingContext2D | null {
    const scale = devicePixelRatio * this.unit;
    const [wide, high] = [Math.round(this.width * scale), Math.round(this.height * scale)];
    if (this.#canvas.width !== wide || this.#canvas.height !== high)
      [this.#canvas.width, this.#canvas.height] = [wide, high];
    const context = this.#canvas.getContext("2d");
    context?.setTransform(scale, 0, 0, scale, 0, 0);
    return context;
  }
}
