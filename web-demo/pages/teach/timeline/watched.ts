/** A chapter's marks on the lanes: the break, and the measured stretches in shade. */
import { color } from "../../shared/palette.js";
import { breachInWords, stretchInWords } from "../guide/watched.js";
import { type Scene, xOf } from "./scene.js";

/** Distance below the axis, in pixels. */
const TOP_PX = 18;
/** Height of the bar at the top of a measured stretch, in pixels. */
const BAR_PX = 4;

/** Draws the measured stretches, behind all else. */
export function drawMeasured(context: CanvasRenderingContext2D, scene: Scene): void {
  for (const stretch of scene.watched.stretches) {
    const from = Math.max(scene.names.leftPx, xOf(scene, stretch.fromMs));
    const until = xOf(scene, Math.min(stretch.untilMs ?? scene.nowMs, scene.nowMs));
    if (until <= from) continue;
    context.fillStyle = color("ink");
    context.globalAlpha = 0.07;
    context.fillRect(from, TOP_PX, until - from, scene.height - TOP_PX);
    context.globalAlpha = 1;
    context.fillRect(from, TOP_PX, until - from, BAR_PX);
  }
}

/** Draws the break, and the description of the measurement, in front of all else. */
export function drawBreaches(context: CanvasRenderingContext2D, scene: Scene): void {
  const { breaches, stretches } = scene.watched;
  for (const breach of breaches) {
    const x = xOf(scene, breach.atMs);
    if (x < scene.names.leftPx || breach.atMs > scene.nowMs) continue;
    context.strokeStyle = color("danger");
    context.lineWidth = 2;
    context.setLineDash([6, 4]);
    context.beginPath();
    context.moveTo(x, TOP_PX);
    context.lineTo(x, scene.height);
    context.stroke();
    context.setLineDash([]);
    context.lineWidth = 1;
  }
  const [first] = breaches;
  if (first && first.atMs <= scene.nowMs) {
    const x = xOf(scene, first.atMs);
    if (x >= scene.names.leftPx) say(context, scene, breachInWords(first), x, scene.height - 10, "danger");
  }
  for (const stretch of stretches) {
    const from = Math.max(scene.names.leftPx, xOf(scene, stretch.fromMs));
    const until = xOf(scene, Math.min(stretch.untilMs ?? scene.nowMs, scene.nowMs));
    const text = stretchInWords(stretch, scene.watched, scene.nowMs, true);
    if (until - from > context.measureText(text).width + 12)
      say(context, scene, text, (from + until) / 2, TOP_PX + BAR_PX + 9, "ink");
  }
}

/** Draws words at a position, wholly within the picture. */
function say(
  context: CanvasRenderingContext2D,
  scene: Scene,
  text: string,
  x: number,
  y: number,
  tone: "danger" | "ink",
): void {
  const width = context.measureText(text).width + 10;
  const left = Math.min(scene.width - width, Math.max(scene.names.leftPx, x - width / 2));
  context.globalAlpha = 0.9;
  context.fillStyle = color("card");
  context.fillRect(left, y - 8, width, 16);
  context.globalAlpha = 1;
  context.textAlign = "start";
  context.fillStyle = color(tone);
  context.fillText(text, left + 5, y + 0.5);
}
