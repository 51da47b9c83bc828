/** A chapter's marks on the sea: a ring around the broken part, which closes during the measurement, and a bar. */
import { color } from "../../shared/palette.js";
import { breachInWords, lastOf, type Stretch, shareOf, stretchInWords } from "../guide/watched.js";
import { islandAt, isSmall, radiusOf } from "./chart.js";
import { extraMsOf, type SeaScene } from "./scene.js";

/** Radius of the ring, in radii of the island. */
const RING = 1.75;
/** Position of the description, in pixels from the corner. */
const SAID = { x: 8, y: 8, height: 20, bar: 3 } as const;

export function drawWatched(context: CanvasRenderingContext2D, scene: SeaScene): void {
  const stretch = lastOf(scene.watched, scene.nowMs);
  for (const breach of scene.watched.breaches) {
    if (breach.island !== null && breach.atMs <= scene.nowMs)
      drawRing(context, scene, breach.island, breachInWords(breach), stretch);
  }
  if (stretch) drawSaid(context, scene, stretch);
  context.globalAlpha = 1;
}

/** Draws a dashed red ring at the break, and over it the measured share of the time after the break. */
function drawRing(
  context: CanvasRenderingContext2D,
  scene: SeaScene,
  island: number,
  text: string,
  stretch: Stretch | null,
): void {
  const { x, y } = islandAt(scene.sea, island, extraMsOf(scene, island));
  const radius = RING * radiusOf(scene.sea);
  context.lineWidth = 2;
  context.strokeStyle = color("danger");
  context.setLineDash([3, 4]);
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.stroke();
  context.setLineDash([]);
  if (stretch?.of === "after") {
    context.lineWidth = 4;
    context.strokeStyle = color("ink");
    context.beginPath();
    context.arc(x, y, radius, -Math.PI / 2, -Math.PI / 2 + 2 * Math.PI * shareOf(stretch, scene.nowMs));
    context.stroke();
  }
  if (isSmall(scene.sea)) return;
  const width = context.measureText(text).width + 10;
  const left = Math.min(scene.sea.width - width - 4, Math.max(4, x - width / 2));
  const top = Math.max(2, y - radius - 22);
  context.fillStyle = color("danger-wash");
  context.fillRect(left, top, width, 18);
  context.textAlign = "start";
  context.fillStyle = color("danger");
  context.fillText(text, left + 5, top + 9.5);
}

/** Draws the description of the measurement, and its progress as a bar. */
function drawSaid(context: CanvasRenderingContext2D, scene: SeaScene, stretch: Stretch): void {
  const text = stretchInWords(stretch, scene.watched, scene.nowMs, isSmall(scene.sea));
  const { x, y, height, bar } = SAID;
  const width = context.measureText(text).width + 14;
  context.globalAlpha = 0.9;
  context.fillStyle = color("card");
  context.fillRect(x, y, width, height);
  context.globalAlpha = 1;
  context.fillStyle = color("ink");
  context.textAlign = "start";
  context.fillText(text, x + 7, y + (height - bar) / 2 + 1);
  context.fillStyle = color("line");
  context.fillRect(x, y + height - bar, width, bar);
  context.fillStyle = color("ink");
  context.fillRect(x, y + height - bar, width * shareOf(stretch, scene.nowMs), bar);
}
