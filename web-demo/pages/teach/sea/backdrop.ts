/**
 * The still parts of the sea: water and light, cables, islands and the tower. They cost more to paint than all moving
 * parts, so they are painted once, and copied into every picture until one of them changes.
 */
import { onThemeChange } from "../../shared/palette.js";
import { drawStanding } from "./draw.js";
import { lightPx } from "./lighthouse.js";
import { extraMsOf, type SeaScene } from "./scene.js";

export class Backdrop {
  readonly #canvas = document.createElement("canvas");
  /** The painted picture; empty if none is valid. */
  #painted = "";

  constructor() {
    onThemeChange(() => {
      this.#painted = "";
    });
  }

  /** Copies it into the picture of `context`. */
  draw(context: CanvasRenderingContext2D, scene: SeaScene): void {
    const { width, height } = context.canvas;
    const state = stateOf(scene, width, height);
    if (state !== this.#painted) {
      [this.#canvas.width, this.#canvas.height] = [width, height];
      const own = this.#canvas.getContext("2d");
      if (!own) return drawStanding(context, scene);
      own.setTransform(context.getTransform());
      drawStanding(own, scene);
      this.#painted = state;
    }
    context.save();
    context.resetTransform();
    context.globalAlpha = 1;
    context.drawImage(this.#canvas, 0, 0);
    context.restore();
  }
}

/** Key of everything that determines its look. */
function stateOf(scene: SeaScene, width: number, height: number): string {
  const islands = scene.islands.map(({ state, stopped, partitioned, poisoned, lies }, at) =>
    [state, stopped !== null, partitioned, poisoned || lies, extraMsOf(scene, at)].join(),
  );
  const { sea } = scene;
  return [width, height, sea.width, sea.height, Math.round(lightPx(scene)), ...islands].join(" ");
}
