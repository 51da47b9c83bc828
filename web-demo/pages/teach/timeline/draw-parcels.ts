/** Draws parcels between islands and syncer: a line for the way, cells for the codes in flight. */

import { color } from "../../shared/palette.js";
import { COLORS, drawCells } from "./cells.js";
import type { Parcel } from "./history.js";
import { glowOf, headOf, type Scene, type Way, wayOf, xOf } from "./scene.js";

/** Time for which an arrived parcel stays visible, in milliseconds of the wall clock. */
const GLOW_MS = 350;

/** Limit of ways, newest first; more could not be told apart. */
const WAYS_MAX = 500;
/** Longest trip that is searched in the history, in milliseconds. */
const TRIP_MS_MAX = 60_000;
/** Time scale in milliseconds above which requests are left out, since they add nothing to their answers. */
const REQUESTS_MS = 15_000;

/** Draws parcels in flight, and the ways of visible arrived ones. */
export function drawParcels(context: CanvasRenderingContext2D, scene: Scene): void {
  const since = scene.nowMs - scene.spanMs;
  const glow = glowOf(scene, GLOW_MS);
  // Ways with the same look share one stroke: hundreds of them cost as much as a few.
  const ways = new Map<string, { readonly what: Parcel["what"]; readonly dim: boolean; readonly path: Path2D }>();
  const heads: (() => void)[] = [];
  let drawn = 0;
  for (let at = scene.history.parcels.length - 1; at >= 0 && drawn < WAYS_MAX; at -= 1) {
    const parcel = scene.history.parcels[at]!;
    // Parcels are ordered by sending time; those sent long before have arrived.
    if (parcel.fromMs < since - TRIP_MS_MAX) break;
    if (parcel.untilMs < since || parcel.fromMs > scene.nowMs) continue;
    if (parcel.what === "collect" && scene.spanMs > REQUESTS_MS) continue;
    const way = wayOf(scene, parcel);
    if (way.x1 < scene.names.leftPx) continue;
    drawn += 1;
    const dim = scene.followed !== null && parcel.fragment !== scene.followed && parcel.what !== "whole";
    const key = `${parcel.what}${dim}`;
    let alike = ways.get(key);
    if (!alike) ways.set(key, (alike = { what: parcel.what, dim, path: new Path2D() }));
    const head = headOf(scene, parcel, way);
    alike.path.moveTo(way.x0, way.y0);
    alike.path.lineTo(head.x, head.y);
    if (parcel === scene.chosen) heads.push(() => ring(context, scene, parcel, way));
    if (!dim && scene.nowMs < parcel.untilMs + glow) heads.push(() => drawHead(context, scene, parcel, way, glow));
  }
  for (const { what, dim, path } of ways.values()) {
    context.strokeStyle = color(COLORS[what]);
    context.globalAlpha = dim ? 0.1 : what === "collect" ? 0.35 : 0.7;
    context.lineWidth = what === "whole" ? 3 : what === "collect" ? 1 : 1.25;
    context.setLineDash(what === "collect" ? [2, 3] : []);
    context.stroke(path);
  }
  context.setLineDash([]);
  for (const draw of heads) draw();
  context.globalAlpha = 1;
}

/** Draws codes as cells; a parcel without codes is a plain block. */
function drawHead(context: CanvasRenderingContext2D, scene: Scene, parcel: Parcel, way: Way, glow: number): void {
  const head = headOf(scene, parcel, way);
  const age = Math.max(0, scene.nowMs - parcel.untilMs) / glow;
  // The arrival stays in the past, but the glow is drawn at the present.
  const x = age > 0 ? xOf(scene, Math.min(scene.nowMs, parcel.untilMs)) : head.x;
  context.globalAlpha = scene.still && age > 0 ? 0 : 1 - age;
  if (parcel.what === "collect") {
    context.fillStyle = color("line-quiet");
    context.beginPath();
    context.arc(x, head.y, 2.5, 0, 2 * Math.PI);
    return context.fill();
  }
  drawCells(context, parcel, x, head.y, context.globalAlpha);
}

function ring(context: CanvasRenderingContext2D, scene: Scene, parcel: Parcel, way: Way): void {
  const head = headOf(scene, parcel, way);
  context.globalAlpha = 1;
  context.strokeStyle = color("ink");
  context.lineWidth = 2;
  context.beginPath();
  context.arc(head.x, head.y, 6, 0, 2 * Math.PI);
  context.stroke();
}

/** Returns the parcel whose way is nearest to a point, within reach of a finger. */
export function parcelAt(scene: Scene, x: number, y: number): Parcel | null {
  let [nearest, least]: [Parcel | null, number] = [null, 14];
  for (const parcel of scene.history.parcels) {
    if (parcel.fromMs > scene.nowMs || parcel.what === "collect") continue;
    const way = wayOf(scene, parcel);
    const head = headOf(scene, parcel, way);
    const [dx, dy] = [head.x - way.x0, head.y - way.y0];
    const length = dx * dx + dy * dy;
    const at = length === 0 ? 0 : Math.min(1, Math.max(0, ((x - way.x0) * dx + (y - way.y0) * dy) / length));
    const distance = Math.hypot(x - way.x0 - at * dx, y - way.y0 - at * dy);
    if (distance < least) [nearest, least] = [parcel, distance];
  }
  return nearest;
}
