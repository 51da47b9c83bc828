/** The islands of the run round its lighthouse, including the visitor's own. */
import { play, setAttribute } from "../shared/dom.js";
import { plural } from "../shared/format.js";

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [320, 150];
/** Limit of islands drawn separately. */
const ISLANDS_MAX = 24;
const RADIUS = 9;

/** Position of island `at` of `all`, from 0 to 1 each way; the visitor's own is the first, at the left. */
export function placeOf(at: number, all: number): { readonly x: number; readonly y: number } {
  const angle = Math.PI + (2 * Math.PI * at) / Math.max(1, all);
  // Every other island is nearer to the lighthouse, so that many islands have room.
  const reach = all > 8 && at % 2 === 1 ? 0.3 : 0.42;
  return { x: 0.5 + reach * Math.cos(angle), y: 0.5 + 0.92 * reach * Math.sin(angle) };
}

export class Islands {
  /** Number of connected machines. */
  count = 0;
  readonly #svg: SVGSVGElement;
  #own = false;

  constructor(svg: SVGSVGElement) {
    this.#svg = svg;
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  }

  /** Shows `count` machines; `own` if this machine is one of them. */
  show(count: number, own: boolean): void {
    const all = Math.min(ISLANDS_MAX, Math.max(count, own ? 1 : 0));
    if (this.count === count && this.#own === own && this.#svg.childElementCount > 0) return;
    [this.count, this.#own] = [count, own];
    const shapes = [shape("circle", { class: "light", cx: WIDTH / 2, cy: HEIGHT / 2, r: 46 })];
    for (let at = 0; at < all; at += 1) {
      const { x, y } = placeOf(at, all);
      const [cx, cy] = [x * WIDTH, y * HEIGHT];
      shapes.push(shape("line", { class: "way", x1: cx, y1: cy, x2: WIDTH / 2, y2: HEIGHT / 2 }));
      const isOwn = own && at === 0;
      if (isOwn) shapes.push(shape("circle", { class: "pulse", cx, cy, r: RADIUS }));
      shapes.push(shape("circle", { class: isOwn ? "own" : "other", cx, cy, r: isOwn ? RADIUS + 2 : RADIUS - 2 }));
    }
    const [cx, cy] = [WIDTH / 2, HEIGHT / 2];
    shapes.push(
      shape("path", { class: "tower", d: `M${cx - 7} ${cy + 13}l3-22h8l3 22zM${cx - 4} ${cy - 15}h8v6h-8z` }),
    );
    this.#svg.replaceChildren(...shapes);
    const others = Math.max(0, count - (own ? 1 : 0));
    const words = own
      ? `Your island, and ${others} more, round the syncer.`
      : `${plural(others, "island")} round the syncer.`;
    setAttribute(this.#svg, "aria-label", words);
  }

  /** Signals a merged update of this machine. */
  pulse(): void {
    const ring = this.#svg.querySelector(".pulse");
    if (ring) play(ring);
  }

  /** Draws the same picture on a canvas. */
  paint(context: CanvasRenderingContext2D, width: number, height: number): void {
    const all = Math.min(ISLANDS_MAX, Math.max(1, this.count));
    context.strokeStyle = "#7fc8cf";
    context.lineWidth = 2;
    for (let at = 0; at < all; at += 1) {
      const { x, y } = placeOf(at, all);
      context.beginPath();
      context.moveTo(x * width, y * height);
      context.lineTo(width / 2, height / 2);
      context.stroke();
      context.beginPath();
      context.arc(x * width, y * height, at === 0 ? 30 : 18, 0, 2 * Math.PI);
      context.fillStyle = at === 0 ? "#f0dcae" : "#7fb284";
      context.fill();
    }
    context.beginPath();
    context.arc(width / 2, height / 2, 16, 0, 2 * Math.PI);
    context.fillStyle = "#ffc93d";
    context.fill();
  }
}

function shape(tag: string, attributes: Readonly<Record<string, string | number>>): Element {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}
