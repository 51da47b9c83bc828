/** The sea's canvas: keeps its size, draws a scene, and narrates the first round slowly. */
import { find } from "../../shared/dom.js";
import type { Island, LessonSpec } from "../../shared/lesson.js";
import { Surface } from "../../shared/surface.js";
import type { Watched } from "../guide/watched.js";
import type { Act } from "../islands/cards.js";
import type { Live } from "../live.js";
import type { History } from "../timeline/history.js";
import { Backdrop } from "./backdrop.js";
import type { Sea } from "./chart.js";
import { drawSea } from "./draw.js";
import { Pins } from "./pins.js";
import { extraMsOf, type SeaScene } from "./scene.js";
import { appliedMs, hopMsOf } from "./tempo.js";

const still = matchMedia("(prefers-reduced-motion: reduce)");

export class SeaView {
  readonly #surface = new Surface(find("sea", HTMLCanvasElement));
  readonly #backdrop = new Backdrop();
  readonly #pins: Pins;
  readonly #history: History;
  /** Whether the first round of this run has been narrated. */
  #isTold = false;

  constructor(history: History, act: Act) {
    this.#history = history;
    this.#pins = new Pins(act);
  }

  reset(islands: number): void {
    this.#isTold = false;
    this.#pins.reset(islands);
  }

  /** Updates the labels of the buttons. */
  show(islands: readonly Island[], spec: LessonSpec): void {
    this.#pins.show(islands, spec.latencyMs);
  }

  draw(
    live: Live,
    islands: readonly Island[],
    nowMs: number,
    speed: number,
    followed: number | null,
    watched: Watched,
  ): void {
    const { width, height, unit } = this.#surface;
    if (width === 0 || height === 0 || islands.length === 0) return;
    const sea: Sea = { width, height, islands: islands.length };
    const told = this.#toldRound(nowMs, speed);
    const scene: SeaScene = {
      sea,
      history: this.#history,
      islands,
      nowMs,
      speed,
      hopMs: hopMsOf(speed, told !== null),
      latencyMs: live.spec.latencyMs,
      code: live.spec.code,
      followed,
      told,
      held: this.#pins.held,
      knowledge: knowledgeOf(live),
      harbour: {
        steps: live.twin?.steps ?? 0,
        waitsFor: live.stalledSinceMs === null ? null : (live.twin?.stalledBy[0] ?? null),
        standstillS: live.standstillMs / 1_000,
      },
      watched,
      still: still.matches,
    };
    this.#pins.place(
      sea,
      islands.map((_, at) => extraMsOf(scene, at)),
      unit,
    );
    const context = this.#surface.context();
    if (context) drawSea(context, scene, (onto, what) => this.#backdrop.draw(onto, what));
  }

  /** The narrated round: the first with an answer, at real time or slower. */
  #toldRound(nowMs: number, speed: number): number | null {
    if (this.#isTold || speed > 1 || still.matches) return null;
    const first = this.#history.rounds.find((round) => round.answers.length > 0 || round.mergedMs === null);
    if (!first) return null;
    const { mergedMs, abandonedMs, round } = first;
    const endMs = mergedMs ?? abandonedMs;
    // Two trips: the boats out, and the boats back.
    this.#isTold = endMs !== null && nowMs > appliedMs(endMs, hopMsOf(speed, true)) + hopMsOf(speed, true);
    return this.#isTold ? null : round;
  }
}

/** Returns the learnt share of the way from the initial loss to the entropy of the text. */
function knowledgeOf({ heldOut, frame }: Live): number {
  const [first, last, floor] = [heldOut[0]?.loss, heldOut.at(-1)?.loss, frame?.run.floor];
  if (first === undefined || last === undefined || floor === undefined || first <= floor) return 0;
  return Math.min(1, Math.max(0, (first - last) / (first - floor)));
}
