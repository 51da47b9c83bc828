/** The syncer as a lighthouse: its light reaches farther as the model learns, and its rounds are rings. */

import { color } from "../../shared/palette.js";
import { phrase } from "../../words/phrase.js";
import type { Round } from "../timeline/history.js";
import { islandAt, isSmall, lighthouseOf } from "./chart.js";
import { extraMsOf, flashOf, type SeaScene } from "./scene.js";
import { syncerMs } from "./tempo.js";

/** Radius of the innermost round, and the step to each further one, in pixels. */
const RING_PX = { first: 38, more: 11 } as const;
/** Duration of a merge's flash and its number, in milliseconds of the wall clock. */
const SHINE_MS = 900;

/** Radius of the light, in pixels: it grows with the model's knowledge. */
export function lightPx({ sea, knowledge }: Pick<SeaScene, "sea" | "knowledge">): number {
  return 60 + (0.62 * sea.width - 60) * knowledge;
}

/** Draws the light on the water. */
export function drawLight(context: CanvasRenderingContext2D, scene: SeaScene): void {
  const { x, y } = lighthouseOf(scene.sea);
  const light = context.createRadialGradient(x, y, 8, x, y, lightPx(scene));
  light.addColorStop(0, color("beam"));
  light.addColorStop(1, color("beam-end"));
  context.fillStyle = light;
  context.fillRect(0, 0, scene.sea.width, scene.sea.height);
}

/** Draws the tower on its rock. */
export function drawTower(context: CanvasRenderingContext2D, scene: SeaScene): void {
  const { x, y } = lighthouseOf(scene.sea);
  context.fillStyle = color("ink-soft");
  context.beginPath();
  context.ellipse(x, y + 15, 22, 8, 0, 0, 2 * Math.PI);
  context.fill();
  tower(context, x, y, 0, 1, "card");
  tower(context, x, y, 0.32, 0.56, "danger");
  context.strokeStyle = color("ink");
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x - 9, y + 14);
  context.lineTo(x - 6, y - 10);
  context.lineTo(x + 6, y - 10);
  context.lineTo(x + 9, y + 14);
  context.closePath();
  context.stroke();
  // The lamp.
  context.fillStyle = color("lamp");
  context.fillRect(x - 4.5, y - 18, 9, 8);
  context.strokeRect(x - 4.5, y - 18, 9, 8);
  context.beginPath();
  context.moveTo(x - 7, y - 18);
  context.lineTo(x, y - 24);
  context.lineTo(x + 7, y - 18);
  context.closePath();
  context.fillStyle = color("ink");
  context.fill();
}

/** Draws the tower between two heights, 0 at its foot and 1 at its top. */
function tower(
  context: CanvasRenderingContext2D,
  x: number,
  y: number,
  low: number,
  high: number,
  fill: "card" | "danger",
): void {
  const [half, at] = [(share: number) => 9 - 3 * share, (share: number) => y + 14 - 24 * share];
  context.beginPath();
  context.moveTo(x - half(low), at(low));
  context.lineTo(x - half(high), at(high));
  context.lineTo(x + half(high), at(high));
  context.lineTo(x + half(low), at(low));
  context.closePath();
  context.fillStyle = color(fill);
  context.fill();
}

/** Draws rounds that collect, wait or were just merged. */
export function drawRounds(context: CanvasRenderingContext2D, scene: SeaScene): void {
  const { rounds } = scene.history;
  for (let at = rounds.length - 1; at >= 0; at -= 1) {
    const round = rounds[at]!;
    const endMs = round.mergedMs ?? round.abandonedMs;
    if (endMs !== null && syncerMs(endMs, scene.hopMs) < scene.nowMs - SHINE_MS * scene.speed) {
      // Rounds end out of order, but none lasts this much longer than later ones.
      if (syncerMs(endMs, scene.hopMs) < scene.nowMs - 30_000) break;
      continue;
    }
    if (syncerMs(round.launchedMs, scene.hopMs) <= scene.nowMs) drawRound(context, scene, round);
  }
  context.globalAlpha = 1;
}

function drawRound(context: CanvasRenderingContext2D, scene: SeaScene, round: Round): void {
  const { x, y } = lighthouseOf(scene.sea);
  const radius = RING_PX.first + RING_PX.more * round.row;
  const shown = (ms: number | null) => (ms !== null && syncerMs(ms, scene.hopMs) <= scene.nowMs ? ms : null);
  const [quorumMs, mergedMs] = [shown(round.quorumMs), shown(round.mergedMs)];
  if (scene.told !== null && scene.told !== round.round) return;
  const alpha = scene.followed !== null && scene.followed !== round.fragment ? 0.25 : 1;
  if (mergedMs !== null) return drawMerge(context, scene, round, syncerMs(mergedMs, scene.hopMs), radius, alpha);
  if (shown(round.abandonedMs) !== null) return;
  context.globalAlpha = alpha * 0.6;
  context.lineWidth = 1.5;
  context.strokeStyle = color("sea");
  circle(context, x, y, radius);
  context.stroke();
  if (quorumMs !== null && round.graceUntilMs !== null && round.graceUntilMs > quorumMs) {
    // The rest of the grace window, as an opening ring.
    const past = scene.nowMs - syncerMs(quorumMs, scene.hopMs);
    const left = scene.still ? 1 : Math.max(0, 1 - past / (round.graceUntilMs - quorumMs));
    context.globalAlpha = alpha;
    context.lineWidth = 4;
    context.strokeStyle = color("warn");
    context.beginPath();
    context.arc(x, y, radius, -Math.PI / 2, -Math.PI / 2 + 2 * Math.PI * left);
    context.stroke();
  }
  context.globalAlpha = alpha;
  for (const answer of round.answers) {
    if (shown(answer.atMs) === null) continue;
    const shore = islandAt(scene.sea, answer.island, extraMsOf(scene, answer.island));
    const way = Math.atan2(shore.y - y, shore.x - x);
    context.fillStyle = color(answer.fate === "in" ? "line-1" : answer.fate === "late" ? "warn" : "danger");
    circle(context, x + radius * Math.cos(way), y + radius * Math.sin(way), 4.5);
    context.fill();
  }
}

/** Draws a spreading ring of light, and the number of answers in it. */
function drawMerge(
  context: CanvasRenderingContext2D,
  scene: SeaScene,
  round: Round,
  atMs: number,
  radius: number,
  alpha: number,
): void {
  const { x, y } = lighthouseOf(scene.sea);
  const age = flashOf(scene, atMs, SHINE_MS);
  if (age === null) return;
  context.globalAlpha = alpha * (1 - age);
  context.lineWidth = 5 * (1 - age) + 1;
  context.strokeStyle = color("line-2");
  circle(context, x, y, radius * (0.7 + 0.9 * age));
  context.stroke();
  if (alpha === 1 && round.row === 0 && !isSmall(scene.sea)) {
    context.textAlign = "center";
    context.fillStyle = color("ink");
    context.fillText(phrase("sea.merged", { answers: round.shares.length }), x, y + 34);
  }
}

function circle(context: CanvasRenderingContext2D, x: number, y: number, radius: number): void {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
}
