/** Draws the lanes: steps of the islands, rounds of the syncer, and the lock-step run. */

import { milliseconds } from "../../shared/format.js";
import type { Island } from "../../shared/lesson.js";
import { color } from "../../shared/palette.js";
import { phrase } from "../../words/phrase.js";
import { drawParcels } from "./draw-parcels.js";
import { firstAfter, type Round } from "./history.js";
import { glowOf, islandLane, type Lane, rowY, type Scene, syncerLane, twinLane, xOf } from "./scene.js";
import { drawBreaches, drawMeasured } from "./watched.js";

const fontOf = (px: number) => `${px}px system-ui, sans-serif`;
const FONT = fontOf(12);
/** Longest step that is searched in the history, in milliseconds. */
const STEP_MS_MAX = 60_000;
/** Least width of separately drawn steps. */
const STEP_PX_LEAST = 4;
/** Duration of a flash, in milliseconds of the wall clock. */
const FLASH_MS = 450;

/** Draws everything. */
export function draw(context: CanvasRenderingContext2D, scene: Scene): void {
  const { height } = scene;
  context.clearRect(0, 0, scene.width, height);
  context.font = FONT;
  context.textBaseline = "middle";
  context.lineWidth = 1;
  drawMeasured(context, scene);
  drawAxis(context, scene, height);
  scene.islands.forEach((island, index) => drawIsland(context, scene, island, index));
  drawSyncer(context, scene);
  drawTwin(context, scene);
  context.save();
  context.beginPath();
  context.rect(scene.names.leftPx, 0, scene.width - scene.names.leftPx, height);
  context.clip();
  drawParcels(context, scene);
  drawApplied(context, scene);
  drawBreaches(context, scene);
  context.restore();
}

function drawAxis(context: CanvasRenderingContext2D, scene: Scene, height: number): void {
  const least = (scene.spanMs * 80) / Math.max(80, scene.width - scene.names.leftPx);
  const step =
    [100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 60_000].find((one) => one >= least) ?? 60_000;
  context.textAlign = "center";
  for (let ms = Math.max(0, Math.ceil((scene.nowMs - scene.spanMs) / step) * step); ms <= scene.nowMs; ms += step) {
    const x = xOf(scene, ms);
    if (x < scene.names.leftPx) continue;
    context.fillStyle = color("line");
    context.fillRect(Math.round(x), 18, 1, height - 18);
    if (x < scene.names.leftPx + 18) continue;
    context.fillStyle = color("ink-soft");
    context.fillText(ms === 0 ? phrase("lanes.start") : milliseconds(ms), x, 9);
  }
  context.fillStyle = color("ink-soft");
  context.fillRect(Math.round(xOf(scene, scene.nowMs)), 18, 1, height - 18);
}

/** Draws the name of a lane. */
function label(context: CanvasRenderingContext2D, { names }: Scene, text: string, y: number): void {
  context.textAlign = "start";
  context.fillStyle = color("ink");
  context.font = fontOf(names.fontPx);
  context.fillText(text, 2, y, names.leftPx - 8);
  context.font = FONT;
}

/** Returns the visible part of a span, as `[x, width]`, or undefined. */
function stretch(scene: Scene, fromMs: number, untilMs: number): readonly [number, number] | undefined {
  const from = Math.max(scene.names.leftPx, xOf(scene, fromMs));
  const until = xOf(scene, Math.min(untilMs, scene.nowMs));
  return until <= from ? undefined : [from, until - from];
}

function drawIsland(context: CanvasRenderingContext2D, scene: Scene, island: Island, index: number): void {
  const lane = islandLane(scene, index);
  const y = lane.top + lane.height / 2;
  label(context, scene, phrase("islands.name", { island: index + 1 }), y);
  context.fillStyle = color("line");
  context.fillRect(scene.names.leftPx, lane.top + lane.height - 1, scene.width - scene.names.leftPx, 1);
  for (const away of scene.history.absences) {
    if (away.island !== index) continue;
    const seen = stretch(scene, away.fromMs, away.untilMs ?? Infinity);
    if (seen) hatch(context, seen, lane, phrase("lanes.absent"));
  }
  const steps = scene.history.steps[index] ?? [];
  const merges = (island.stepMs * (scene.width - scene.names.leftPx)) / scene.spanMs < STEP_PX_LEAST;
  context.fillStyle = color(island.poisoned || island.lies ? "danger" : "line-quiet");
  context.globalAlpha = scene.followed === null ? 0.55 : 0.3;
  context.beginPath();
  for (let at = firstAfter(steps, scene.nowMs - scene.spanMs, STEP_MS_MAX); at < steps.length; at += 1) {
    const step = steps[at]!;
    if (step.fromMs > scene.nowMs) break;
    let until = step.untilMs;
    // At small scale steps are one bar: their ends would be invisible.
    while (merges && steps[at + 1] && steps[at + 1]!.fromMs - until < 1) until = steps[(at += 1)]!.untilMs;
    const seen = stretch(scene, step.fromMs, until);
    if (seen) context.rect(seen[0] + 0.5, y - 7, Math.max(1, seen[1] - 1.5), 14);
  }
  context.fill();
  context.globalAlpha = 1;
  if (island.partitioned) {
    context.strokeStyle = color("danger");
    context.setLineDash([5, 4]);
    context.strokeRect(scene.names.leftPx + 1, lane.top + 2, scene.width - scene.names.leftPx - 4, lane.height - 5);
    context.setLineDash([]);
  }
}

/** Draws slanting lines, and a word if there is room, so that an absence is more than a colour. */
function hatch(
  context: CanvasRenderingContext2D,
  [x, width]: readonly [number, number],
  lane: Lane,
  word: string,
): void {
  context.save();
  context.beginPath();
  context.rect(x, lane.top + 4, width, lane.height - 9);
  context.clip();
  context.fillStyle = color("danger-wash");
  context.fillRect(x, lane.top, width, lane.height);
  context.strokeStyle = color("danger");
  context.globalAlpha = 0.5;
  context.beginPath();
  // On a fixed grid of the page, so that the lines stay in place while the stretch grows.
  for (let at = Math.floor((x - lane.height) / 9) * 9; at < x + width; at += 9) {
    context.moveTo(at, lane.top + lane.height);
    context.lineTo(at + lane.height, lane.top);
  }
  context.stroke();
  context.globalAlpha = 1;
  if (width > 60) {
    context.textAlign = "center";
    const wide = context.measureText(word).width + 10;
    context.fillStyle = color("card");
    context.fillRect(x + width / 2 - wide / 2, lane.top + lane.height / 2 - 8, wide, 15);
    context.fillStyle = color("danger");
    context.fillText(word, x + width / 2, lane.top + lane.height / 2);
  }
  context.restore();
}

function drawSyncer(context: CanvasRenderingContext2D, scene: Scene): void {
  const lane = syncerLane(scene);
  context.fillStyle = color("sea-wash");
  context.fillRect(0, lane.top, scene.width, lane.height - 1);
  label(context, scene, phrase("lanes.syncer"), lane.top + lane.height / 2);
  for (const round of scene.history.rounds) {
    if (round.launchedMs > scene.nowMs) break;
    drawRound(context, scene, round);
  }
}

function drawRound(context: CanvasRenderingContext2D, scene: Scene, round: Round): void {
  const seenUntil = (ms: number | null) => (ms === null || ms > scene.nowMs ? null : ms);
  const [quorum, merged, abandoned] = [
    seenUntil(round.quorumMs),
    seenUntil(round.mergedMs),
    seenUntil(round.abandonedMs),
  ];
  const end = merged ?? abandoned ?? scene.nowMs;
  if (xOf(scene, end) < scene.names.leftPx) return;
  const y = rowY(scene, round.row);
  const dim = scene.followed !== null && scene.followed !== round.fragment;
  context.globalAlpha = dim ? 0.3 : 1;
  const collecting = stretch(scene, round.launchedMs, quorum ?? end);
  context.fillStyle = color("sea");
  if (collecting) context.fillRect(collecting[0], y - 1, collecting[1], 2);
  if (quorum !== null) {
    const granted = stretch(scene, quorum, round.graceUntilMs ?? quorum);
    const used = stretch(scene, quorum, Math.min(end, round.graceUntilMs ?? quorum));
    context.fillStyle = color("warn");
    context.globalAlpha = dim ? 0.1 : 0.25;
    if (granted) context.fillRect(granted[0], y - 6, granted[1], 12);
    context.globalAlpha = dim ? 0.2 : 0.65;
    if (used) context.fillRect(used[0], y - 6, used[1], 12);
    context.globalAlpha = dim ? 0.3 : 1;
    if (xOf(scene, quorum) > scene.names.leftPx) context.fillRect(xOf(scene, quorum) - 1, y - 8, 2, 16);
  }
  for (const answer of round.answers) {
    const x = xOf(scene, answer.atMs);
    if (x < scene.names.leftPx || answer.atMs > scene.nowMs) continue;
    context.fillStyle = color(answer.fate === "in" ? "ink" : answer.fate === "late" ? "warn" : "danger");
    context.beginPath();
    if (answer.fate === "in") context.arc(x, y, 3, 0, 2 * Math.PI);
    else triangle(context, x, y, 4);
    context.fill();
  }
  if (merged !== null && xOf(scene, merged) > scene.names.leftPx)
    drawMerge(context, scene, round, xOf(scene, merged), y);
  context.globalAlpha = 1;
}

function triangle(context: CanvasPath, x: number, y: number, r: number): void {
  context.moveTo(x, y - r);
  context.lineTo(x + r, y + r);
  context.lineTo(x - r, y + r);
  context.closePath();
}

/** Draws a bar, and the number of merged answers. */
function drawMerge(context: CanvasRenderingContext2D, scene: Scene, round: Round, x: number, y: number): void {
  context.fillStyle = color("line-1");
  context.fillRect(x - 2, y - 8, 4, 16);
  if (scene.spanMs < 9_000) {
    context.textAlign = "start";
    context.fillStyle = color("ink");
    context.fillText(`${round.shares.length}`, x + 5, y + 1);
  }
}

function drawTwin(context: CanvasRenderingContext2D, scene: Scene): void {
  const lane = twinLane(scene);
  const y = lane.top + lane.height / 2;
  label(context, scene, phrase("lanes.lockstep"), y);
  const { twinSteps, stalls } = scene.history;
  const parts = { computed: new Path2D(), sent: new Path2D() };
  for (let at = firstAfter(twinSteps, scene.nowMs - scene.spanMs, STEP_MS_MAX); at < twinSteps.length; at += 1) {
    const step = twinSteps[at]!;
    if (step.fromMs > scene.nowMs) break;
    const computed = stretch(scene, step.fromMs, step.computedMs);
    const sent = stretch(scene, step.computedMs, step.untilMs);
    if (computed) parts.computed.rect(computed[0] + 0.5, y - 9, Math.max(1, computed[1] - 1), 18);
    if (sent) parts.sent.rect(sent[0] + 0.5, y - 9, Math.max(1, sent[1] - 1), 18);
  }
  context.fillStyle = color("line-2");
  context.globalAlpha = 0.75;
  context.fill(parts.computed);
  context.globalAlpha = 0.3;
  context.fill(parts.sent);
  context.globalAlpha = 1;
  for (const stall of stalls) {
    if (stall.fromMs > scene.nowMs) continue;
    const seen = stretch(scene, stall.fromMs, stall.untilMs ?? Infinity);
    if (seen) hatch(context, seen, lane, phrase("lanes.waits", { island: stall.island + 1 }));
  }
}

/** Draws a mark where an island received a merged fragment, with a ring for a moment. */
function drawApplied(context: CanvasRenderingContext2D, scene: Scene): void {
  const flashMs = glowOf(scene, FLASH_MS);
  const marks = { plain: new Path2D(), dim: new Path2D() };
  context.strokeStyle = context.fillStyle = color("line-2");
  context.lineWidth = 2;
  for (let at = scene.history.applied.length - 1; at >= 0; at -= 1) {
    const applied = scene.history.applied[at]!;
    const x = xOf(scene, applied.atMs);
    if (x < scene.names.leftPx) break;
    if (applied.atMs > scene.nowMs) continue;
    const { top, height } = islandLane(scene, applied.island);
    const y = top + height / 2;
    const dim = scene.followed !== null && scene.followed !== applied.fragment;
    triangle(marks[dim ? "dim" : "plain"], x, y, 3.5);
    const age = (scene.nowMs - applied.atMs) / flashMs;
    if (age >= 1 || scene.still || dim) continue;
    context.globalAlpha = 1 - age;
    context.beginPath();
    context.arc(x, y, 4 + 9 * age, 0, 2 * Math.PI);
    context.stroke();
  }
  context.globalAlpha = 1;
  context.fill(marks.plain);
  context.globalAlpha = 0.2;
  context.fill(marks.dim);
  context.globalAlpha = 1;
}
