/** The same islands in lock-step, at the lower edge: a convoy that sails or stops as one. */

import { duration } from "../../shared/format.js";
import { color } from "../../shared/palette.js";
import { phrase } from "../../words/phrase.js";
import { HARBOUR_PX } from "./chart.js";
import type { SeaScene } from "./scene.js";

/** Distance between two ships, in pixels. */
const SHIP_PX = 13;

export function drawHarbour(context: CanvasRenderingContext2D, scene: SeaScene): void {
  const { steps, waitsFor, standstillS } = scene.harbour;
  const { width, height } = scene.sea;
  const isStill = waitsFor !== null;
  const text = isStill
    ? phrase("sea.convoyStill", { time: duration(standstillS), island: waitsFor + 1 })
    : phrase("sea.convoy", { steps });
  const [top, y] = [height - HARBOUR_PX, height - HARBOUR_PX / 2];
  context.globalAlpha = 0.94;
  context.fillStyle = color(isStill ? "danger-wash" : "card");
  context.fillRect(0, top, width, HARBOUR_PX);
  context.globalAlpha = 1;
  context.fillStyle = color(isStill ? "danger" : "line");
  context.fillRect(0, top, width, 1);
  drawConvoy(context, scene, 14, y);
  const left = 14 + SHIP_PX * scene.islands.length + 4;
  context.textAlign = "start";
  context.fillStyle = color(isStill ? "danger" : "ink");
  context.fillText(text, left, y + 1, width - left - 8);
}

/** Draws a ship for each joined island, tied to the next; a missing one is a red ring. */
function drawConvoy(context: CanvasRenderingContext2D, scene: SeaScene, left: number, y: number): void {
  const ships = scene.islands.filter(({ state }) => state !== "expected");
  context.lineWidth = 2;
  context.strokeStyle = color("line-2");
  context.beginPath();
  context.moveTo(left, y);
  context.lineTo(left + SHIP_PX * (ships.length - 1), y);
  context.stroke();
  ships.forEach(({ state, partitioned }, at) => {
    const isAway = state === "dead" || partitioned;
    context.beginPath();
    context.arc(left + SHIP_PX * at, y, 4.5, 0, 2 * Math.PI);
    context.fillStyle = color(isAway ? "card" : "line-2");
    context.strokeStyle = color(isAway ? "danger" : "line-2");
    context.fill();
    context.stroke();
  });
}
