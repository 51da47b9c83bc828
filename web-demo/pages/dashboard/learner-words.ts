/** Descriptions of a learner. */
import type { Fates, LearnerView } from "../shared/api.js";
import { count, milliseconds } from "../shared/format.js";

/** Returns known facts: "cpu, 1 thread; batch 8; answers within 1.31 s; its link is thin". */
export function aboutOf(view: LearnerView): string {
  const parts = [view.device];
  if (view.batch > 0) parts.push(`batch ${view.batch}`);
  if (view.state !== null && view.answerMs > 0) parts.push(`answers within ${milliseconds(view.answerMs)}`);
  if (view.thin) parts.push("its link is thin");
  return parts.filter(Boolean).join("; ");
}

/** Returns the tone of its state. */
export function toneOf(view: LearnerView): string | null {
  switch (view.state) {
    case "training":
      return "going";
    case "joining":
      return "waiting";
    case "paused":
    case "held":
    case "starved":
      return "held";
    default:
      return null;
  }
}

/** Returns "2 late, 1 refused (norm)", or an empty string. */
export function lostUpdates(fates: Fates): string {
  const late = sum(fates.late);
  const refused = sum(fates.refused);
  const reasons = Object.keys(fates.refused).map((reason) => reason.replaceAll("_", " "));
  const parts = [];
  if (late > 0) parts.push(`${count(late)} late`);
  if (refused > 0) parts.push(`${count(refused)} refused (${reasons.join(", ")})`);
  return parts.join(", ");
}

function sum(counts: Readonly<Partial<Record<string, number>>>): number {
  return Object.values(counts).reduce<number>((total, value) => total + (value ?? 0), 0);
}
