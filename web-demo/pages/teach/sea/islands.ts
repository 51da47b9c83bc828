/** An island: its shore, its activity, and its faults. */
import type { Island } from "../../shared/lesson.js";
import { color } from "../../shared/palette.js";
import { islandAt, radiusOf, shoreOf } from "./chart.js";
import { extraMsOf, flashOf, type SeaScene } from "./scene.js";
import { appliedMs } from "./tempo.js";

/** Duration of the mark for a received fragment, in milliseconds of the wall clock. */
const FLASH_MS = 400;

/** Draws its shore and its land. */
export function drawIsland(context: CanvasRenderingContext2D, scene: SeaScene, at: number): void {
  const island = scene.islands[at];
  if (!island) return;
  const { x, y } = islandAt(scene.sea, at, extraMsOf(scene, at));
  const radius = radiusOf(scene.sea);
  const isGone = isAbsent(island);
  context.save();
  context.translate(x, y);
  // Shallow water, the beach, and the land in it.
  if (!isGone) ring(context, at, 1.45 * radius, "shallow");
  ring(context, at, 1.12 * radius, isGone ? "sunk" : "sand");
  context.lineWidth = 1.25;
  context.strokeStyle = color(isGone ? "edge" : "ink-soft");
  context.setLineDash(isGone ? [4, 4] : []);
  context.stroke();
  context.setLineDash([]);
  if (!isGone) ring(context, at, 0.72 * radius, island.poisoned || island.lies ? "danger" : "land");
  context.restore();
}

/** Draws the progress of its step, and received fragments. */
export function drawDoings(context: CanvasRenderingContext2D, scene: SeaScene, at: number): void {
  const island = scene.islands[at];
  if (!island) return;
  const { x, y } = islandAt(scene.sea, at, extraMsOf(scene, at));
  const radius = radiusOf(scene.sea);
  context.save();
  context.translate(x, y);
  if (island.state === "training") drawStep(context, scene, at, 1.32 * radius);
  if (!isAbsent(island)) drawTaken(context, scene, at, radius);
  context.restore();
}

function isAbsent({ state, stopped }: Island): boolean {
  return state === "dead" || state === "expected" || stopped !== null;
}

function ring(context: CanvasRenderingContext2D, at: number, radius: number, fill: Parameters<typeof color>[0]): void {
  const shore = shoreOf(at);
  context.beginPath();
  // A curve through the middles of its sides, with its corners as control points: a round shore.
  shore.forEach((corner, index) => {
    const next = shore[(index + 1) % shore.length]!;
    const [mx, my] = [((corner.x + next.x) / 2) * radius, ((corner.y + next.y) / 2) * radius];
    if (index === 0) {
      const last = shore.at(-1)!;
      context.moveTo(((last.x + corner.x) / 2) * radius, ((last.y + corner.y) / 2) * radius);
    }
    context.quadraticCurveTo(corner.x * radius, corner.y * radius, mx, my);
  });
  context.closePath();
  context.fillStyle = color(fill);
  context.fill();
}

/** Draws the current step as a closing ring, which shows that slow islands are slow. */
function drawStep(context: CanvasRenderingContext2D, scene: SeaScene, at: number, radius: number): void {
  const steps = scene.history.steps[at] ?? [];
  const step = steps.findLast((one) => one.fromMs <= scene.nowMs);
  if (!step || step.untilMs < scene.nowMs) return;
  // Very short steps would only flicker.
  const isShort = (step.untilMs - step.fromMs) / scene.speed < 120 || scene.still;
  const share = isShort ? 1 : (scene.nowMs - step.fromMs) / (step.untilMs - step.fromMs);
  context.beginPath();
  context.arc(0, 0, radius, -Math.PI / 2, -Math.PI / 2 + 2 * Math.PI * share);
  context.lineWidth = 3;
  context.strokeStyle = color("good");
  context.globalAlpha = isShort ? 0.6 : 1;
  context.stroke();
  context.globalAlpha = 1;
}

/** Draws a spreading ring where a merged fragment was received. */
function drawTaken(context: CanvasRenderingContext2D, scene: SeaScene, at: number, radius: number): void {
  const { applied } = scene.history;
  context.strokeStyle = color("line-2");
  context.lineWidth = 2;
  for (let index = applied.length - 1; index >= 0; index -= 1) {
    const one = applied[index]!;
    const shownMs = appliedMs(one.atMs, scene.hopMs);
    if (shownMs < scene.nowMs - FLASH_MS * scene.speed) break;
    const age = one.island === at ? flashOf(scene, shownMs, FLASH_MS) : null;
    if (age === null || (scene.followed !== null && one.fragment !== scene.followed)) continue;
    context.globalAlpha = 1 - age;
    context.beginPath();
    context.arc(0, 0, radius * (1 + 0.7 * age), 0, 2 * Math.PI);
    context.stroke();
  }
  context.globalAlpha = 1;
}
