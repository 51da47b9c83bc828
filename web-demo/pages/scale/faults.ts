/** The machine as a picture: squares of chips in one block per learner. If a chip fails, its block stops for a moment. */

import { find, setAttribute, setText } from "../shared/dom.js";
import { count } from "../shared/format.js";
import { whileSeen } from "../shared/paint.js";
import { color, onThemeChange } from "../shared/palette.js";
import { Surface } from "../shared/surface.js";
import { phrase } from "../words/phrase.js";
import { type Pace, paceOf } from "./pace.js";
import type { Settings } from "./settings.js";

/** Total of squares, divisible by each offered number of learners. */
const SQUARES = 384;
/** Time between two updates, in milliseconds. */
const TICK_MS = 100;
/** Time in the picture for which a block stands still and the failed chip is marked. */
const STOP_MS = 1_200;
const GAP_PX = 6;
const still = matchMedia("(prefers-reduced-motion: reduce)");

/** A failed chip, and the time of its failure. */
interface Fault {
  readonly square: number;
  readonly atMs: number;
}

/** Number of columns of `parts` that best fits a picture of this aspect ratio. */
export function columnsOf(parts: number, aspect: number): number {
  const fitting = Array.from({ length: parts }, (_, at) => at + 1).filter((one) => parts % one === 0);
  const off = (columns: number) => Math.abs(Math.log((columns * columns) / parts / aspect));
  return fitting.reduce((best, one) => (off(one) < off(best) ? one : best));
}

export class FaultsView {
  readonly #surface = new Surface(find("faults", HTMLCanvasElement));
  readonly #said = find("faults-said", HTMLElement);
  readonly #pause = find("faults-pause", HTMLButtonElement);
  #settings: Settings | null = null;
  #pace: Pace = paceOf(1);
  #faults: Fault[] = [];
  #nowMs = 0;
  #isPaused = still.matches;

  constructor() {
    const host = find("faults-host", HTMLElement);
    whileSeen(host, TICK_MS, () => this.#tick());
    new ResizeObserver(() => this.#draw()).observe(host);
    onThemeChange(() => this.#draw());
    this.#pause.addEventListener("click", () => {
      this.#isPaused = !this.#isPaused;
      this.#say();
    });
  }

  /** `everyS` is the mean time between two failures. */
  show(settings: Settings, everyS: number): void {
    this.#settings = settings;
    this.#pace = paceOf(everyS);
    // Starts with one failure, which explains the picture. Without motion it is the only one.
    this.#faults = [{ square: SQUARES / 3 + 5, atMs: this.#nowMs }];
    this.#say();
    this.#draw();
  }

  #say(): void {
    if (!this.#settings) return;
    const { chips, learners } = this.#settings;
    const rest =
      learners === 1 ? phrase("scale.picture.alone") : phrase("scale.picture.others", { count: learners - 1 });
    const pace = this.#isPaused ? phrase("scale.picture.still") : this.#pace.said;
    setText(this.#said, phrase("scale.picture.said", { chips: count(chips / SQUARES), rest, pace }));
    setText(this.#pause, phrase(this.#isPaused ? "scale.picture.play" : "scale.picture.pause"));
    const label = phrase(this.#isPaused ? "scale.picture.playLabel" : "scale.picture.pauseLabel");
    setAttribute(this.#pause, "aria-label", label);
  }

  #tick(): void {
    if (!this.#settings || this.#isPaused) return;
    this.#nowMs += TICK_MS;
    this.#faults = this.#faults.filter(({ atMs }) => atMs > this.#nowMs - STOP_MS);
    // Failures are independent: a failure is equally likely at any moment.
    if (Math.random() < TICK_MS / 1_000 / this.#pace.shownS) {
      this.#faults.push({ square: Math.floor(Math.random() * SQUARES), atMs: this.#nowMs });
    }
    this.#draw();
  }

  #draw(): void {
    const [{ width, height }, context] = [this.#surface, this.#surface.context()];
    if (!context || !this.#settings || width === 0) return;
    const { learners } = this.#settings;
    const each = SQUARES / learners;
    const blocks = columnsOf(learners, width / height);
    const rows = learners / blocks;
    const block = { width: (width - GAP_PX * (blocks - 1)) / blocks, height: (height - GAP_PX * (rows - 1)) / rows };
    const across = columnsOf(each, block.width / block.height);
    const [wide, high] = [block.width / across, block.height / (each / across)];
    context.clearRect(0, 0, width, height);
    for (let learner = 0; learner < learners; learner += 1) {
      const isStopped = this.#faults.some(({ square }) => Math.floor(square / each) === learner);
      const left = (learner % blocks) * (block.width + GAP_PX);
      const top = Math.floor(learner / blocks) * (block.height + GAP_PX);
      for (let at = 0; at < each; at += 1) {
        const isBroken = this.#faults.some(({ square }) => square === learner * each + at);
        context.fillStyle = color(isBroken ? "danger" : isStopped ? "line" : "line-1");
        context.fillRect(left + (at % across) * wide, top + Math.floor(at / across) * high, wide - 1.5, high - 1.5);
      }
    }
  }
}
