/** Draws the sea: water, cables, islands, the lighthouse, and boats between them. */
import { color } from "../../shared/palette.js";
import { drawBoats } from "./boats.js";
import { along, islandAt, lighthouseOf, radiusOf } from "./chart.js";
import { drawHarbour } from "./harbour.js";
import { drawDoings, drawIsland } from "./islands.js";
import { drawLabels } from "./labels.js";
import { drawLight, drawRounds, drawTower } from "./lighthouse.js";
import { extraMsOf, type SeaScene } from "./scene.js";
import { drawWatched } from "./watched.js";

/** Distance of cable ends from the middle of the rock, in pixels. */
const ROCK_PX = 26;

/** Draws everything; `standing` may supply the still parts. */
export function drawSea(context: CanvasRenderingContext2D, scene: SeaScene, standing = drawStanding): void {
  standing(context, scene);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  scene.islands.forEach((_, island) => drawDoings(context, scene, island));
  const told = drawBoats(context, scene);
  drawRounds(context, scene);
  drawLabels(context, scene, told);
  drawHarbour(context, scene);
  drawWatched(context, scene);
  context.globalAlpha = 1;
}

/** Draws the parts that change only after an action, or as the model learns. */
export function drawStanding(context: CanvasRenderingContext2D, scene: SeaScene): void {
  const { width, height } = scene.sea;
  context.globalAlpha = 1;
  context.fillStyle = color("deep");
  context.fillRect(0, 0, width, height);
  drawLight(context, scene);
  scene.islands.forEach((_, island) => drawCable(context, scene, island));
  scene.islands.forEach((_, island) => drawIsland(context, scene, island));
  drawTower(context, scene);
}

/** The link of an island: whole, broken, or without an island. */
function drawCable(context: CanvasRenderingContext2D, scene: SeaScene, at: number): void {
  const island = scene.islands[at];
  if (!island || island.state === "expected") return;
  const [tower, shore] = [lighthouseOf(scene.sea), islandAt(scene.sea, at, extraMsOf(scene, at))];
  const length = Math.hypot(shore.x - tower.x, shore.y - tower.y) || 1;
  const [from, to] = [ROCK_PX / length, 1 - radiusOf(scene.sea) / length];
  const piece = (start: number, end: number) => {
    const [a, b] = [along(tower, shore, start, 0), along(tower, shore, end, 0)];
    context.beginPath();
    context.moveTo(a.x, a.y);
    context.lineTo(b.x, b.y);
    context.stroke();
  };
  context.lineWidth = 2;
  if (!island.partitioned) {
    context.strokeStyle = color("edge");
    context.globalAlpha = island.state === "dead" ? 0.35 : 0.7;
    context.setLineDash(island.state === "dead" ? [2, 6] : []);
    piece(from, to);
    context.setLineDash([]);
  } else {
    // Two loose ends, and a stroke across each.
    const [left, right] = [from + (to - from) * 0.38, from + (to - from) * 0.62];
    context.strokeStyle = color("danger");
    context.globalAlpha = 1;
    piece(from, left);
    piece(right, to);
    for (const end of [left, right]) {
      const [a, b] = [along(tower, shore, end, -7), along(tower, shore, end, 7)];
      context.beginPath();
      context.moveTo(a.x, a.y);
      context.lineTo(b.x, b.y);
      context.stroke();
    }
  }
  context.globalAlpha = 1;
}
