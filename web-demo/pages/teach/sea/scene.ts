/** Contents of the sea's picture. */
import type { Island, LessonSpec } from "../../shared/lesson.js";
import type { Watched } from "../guide/watched.js";
import type { History } from "../timeline/history.js";
import type { Sea } from "./chart.js";

/** The lock-step run, as shown on the sea. */
export interface Harbour {
  /** Steps taken by all together. */
  readonly steps: number;
  /** The island that all wait for, or `null`. */
  readonly waitsFor: number | null;
  /** Duration of the wait, in seconds. */
  readonly standstillS: number;
}

/** Everything to draw. */
export interface SeaScene {
  readonly sea: Sea;
  readonly history: History;
  readonly islands: readonly Island[];
  readonly nowMs: number;
  /** Ratio of virtual to wall time, since flashes last a fixed wall time. */
  readonly speed: number;
  /** Least drawn duration of a trip, in virtual milliseconds. */
  readonly hopMs: number;
  /** One way of an ordinary island, in milliseconds. */
  readonly latencyMs: number;
  /** Code of the values in messages. */
  readonly code: LessonSpec["code"];
  /** The only fragment to draw in full. */
  readonly followed: number | null;
  /** Number of the first round, which is narrated step by step, until it is over. */
  readonly told: number | null;
  /** A dragged island, and the extra delay of its position. */
  readonly held: { readonly island: number; readonly extraMs: number } | null;
  /** Share of the learnable part that is learnt, 0 to 1. */
  readonly knowledge: number;
  readonly harbour: Harbour;
  /** The chapter's marks. */
  readonly watched: Watched;
  /** Whether flashes and motion are off. */
  readonly still: boolean;
}

/** Extra delay of an island as drawn, in milliseconds. */
export function extraMsOf(scene: Pick<SeaScene, "held" | "islands" | "latencyMs">, island: number): number {
  if (scene.held?.island === island) return scene.held.extraMs;
  return Math.max(0, (scene.islands[island]?.latencyMs ?? 0) - scene.latencyMs);
}

/** Progress of a flash that began at `atMs`, 0 to 1; `null` outside it. */
export function flashOf(scene: SeaScene, atMs: number, wallMs: number): number | null {
  const age = (scene.nowMs - atMs) / (wallMs * scene.speed);
  return age >= 0 && age < 1 && !scene.still ? age : null;
}
