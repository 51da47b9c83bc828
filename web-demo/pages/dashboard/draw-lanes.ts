/** Draws lanes on a canvas. */
import type { Answer, AnswerFate, RoundReport } from "../shared/api.js";
import { milliseconds } from "../shared/format.js";
import { color } from "../shared/palette.js";
import { isOpen, roundName, type TimeScale } from "./lanes.js";

/** Height of a lane and of the axis above, and width left and right of the lanes, in CSS pixels. */
export const LANE_PX = 24;
export const AXIS_PX = 24;
const LEFT_PX = 64;
const RIGHT_PX = 44;
const MARK_PX = 4.5;

/** Content of the drawing. */
export interface Picture {
  readonly reports: readonly RoundReport[];
  readonly scale: TimeScale;
  readonly nowMs: number;
  readonly width: number;
  /** The lane, and the answer on it, under the pointer. */
  readonly lane: number | null;
  readonly answer: Answer | null;
}

/** Returns the x position of a moment, in CSS pixels. */
export function xOf(picture: Pick<Picture, "width" | "scale">, afterMs: number): number {
  return LEFT_PX + picture.scale.at(afterMs) * (picture.width - LEFT_PX - RIGHT_PX);
}

/** Returns the y position of a lane's middle, in CSS pixels. */
export function yOf(lane: number): number {
  return AXIS_PX + (lane + 0.5) * LANE_PX;
}

/** Draws everything. */
export function drawLanes(context: CanvasRenderingContext2D, picture: Picture): void {
  const { reports, width } = picture;
  const height = AXIS_PX + reports.length * LANE_PX;
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  drawAxis(context, picture, height);
  reports.forEach((report, lane) => drawLane(context, picture, report, lane));
}

function drawAxis(context: CanvasRenderingContext2D, picture: Picture, height: number): void {
  const apart = 70 / Math.max(100, picture.width - LEFT_PX - RIGHT_PX);
  context.textAlign = "center";
  for (const tick of picture.scale.ticks(apart)) {
    const x = xOf(picture, tick);
    context.fillStyle = color("line");
    context.fillRect(x, AXIS_PX - 4, 1, height - AXIS_PX + 4);
    context.fillStyle = color("ink-soft");
    context.fillText(tick === 0 ? "launch" : milliseconds(tick), x, AXIS_PX / 2);
  }
}

function drawLane(context: CanvasRenderingContext2D, picture: Picture, report: RoundReport, lane: number): void {
  const y = yOf(lane);
  const top = y - LANE_PX / 2;
  const x = (afterMs: number) => xOf(picture, afterMs);
  if (picture.lane === lane) {
    context.fillStyle = color("sunk");
    context.fillRect(0, top, picture.width, LANE_PX);
  }
  context.textAlign = "start";
  context.fillStyle = color("ink");
  context.fillText(roundName(report.round), 4, y);
  context.fillStyle = color("ink-soft");
  context.textAlign = "end";
  const { answered, invited } = report;
  const late = answered > invited ? ` +${answered - invited}` : "";
  context.fillText(`${Math.min(answered, invited)}/${invited}${late}`, picture.width - 4, y);

  const collected = report.mergeStartMs ?? (isOpen(report) ? picture.nowMs - report.launchedMs : lastAnswer(report));
  if (report.quorumMs !== null && report.graceEndMs !== null) {
    // The window as granted, and the used part of it.
    context.fillStyle = color("warn");
    context.globalAlpha = 0.14;
    context.fillRect(x(report.quorumMs), top + 4, x(report.graceEndMs) - x(report.quorumMs), LANE_PX - 8);
    context.globalAlpha = 0.4;
    const used = Math.min(report.graceEndMs, Math.max(report.quorumMs, collected));
    context.fillRect(x(report.quorumMs), top + 4, x(used) - x(report.quorumMs), LANE_PX - 8);
    context.globalAlpha = 1;
  }
  context.fillStyle = color("line-quiet");
  context.fillRect(x(0), y - 0.5, Math.max(1, x(collected) - x(0)), 1);
  if (report.quorumMs !== null) {
    context.fillStyle = color("warn");
    context.fillRect(x(report.quorumMs) - 1, top + 3, 2, LANE_PX - 6);
  }
  if (report.mergeStartMs !== null) {
    const end = report.mergeEndMs ?? picture.nowMs - report.launchedMs;
    context.fillStyle = color("sea");
    context.globalAlpha = 0.85;
    context.fillRect(x(report.mergeStartMs), top + 3, Math.max(4, x(end) - x(report.mergeStartMs)), LANE_PX - 6);
    context.globalAlpha = 1;
  }
  for (const answer of report.answers) drawMark(context, answer.fate, x(answer.afterMs), y, answer === picture.answer);
}

function lastAnswer(report: RoundReport): number {
  return report.answers.reduce((latest, answer) => Math.max(latest, answer.afterMs), 0);
}

/** Fates differ in shape, not only in colour. */
function drawMark(context: CanvasRenderingContext2D, fate: AnswerFate, x: number, y: number, pointedAt: boolean): void {
  const r = pointedAt ? MARK_PX + 2 : MARK_PX;
  context.beginPath();
  if (fate === "late") {
    context.moveTo(x, y - r);
    context.lineTo(x + r, y + r * 0.8);
    context.lineTo(x - r, y + r * 0.8);
    context.closePath();
  } else if (fate === "refused") {
    context.moveTo(x - r + 1, y - r + 1);
    context.lineTo(x + r - 1, y + r - 1);
    context.moveTo(x + r - 1, y - r + 1);
    context.lineTo(x - r + 1, y + r - 1);
  } else {
    context.arc(x, y, fate === "passed" ? r - 1.5 : r, 0, 2 * Math.PI);
  }
  const name = fate === "merged" ? "ink" : fate === "late" ? "warn" : fate === "refused" ? "danger" : "ink-soft";
  context.lineWidth = fate === "refused" ? 2.5 : 1.5;
  context.strokeStyle = fate === "merged" || fate === "late" ? color("card") : color(name);
  context.fillStyle = fate === "merged" || fate === "late" ? color(name) : color("card");
  if (fate !== "refused") context.fill();
  context.stroke();
}
