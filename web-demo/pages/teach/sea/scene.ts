/** What is drawn of the sea. */
import type { Island, LessonSpec } from "../../shared/lesson.js";
import type { Watched } from "../guide/watched.js";
import type { History } from "../timeline/history.js";
import type { Sea } from "./chart.js";

/** The run in lock-step, as far as the sea shows it. */
export interface Harbour {
  /** Steps that all took together. */
  readonly steps: number;
  /** The island that all wait for, or `null`. */
  readonly waitsFor: number | null;
  /** For how long they have waited, in seconds. */
  readonly standstillS: number;
}

/** What is drawn. */
export interface SeaScene {
  readonly sea: Sea;
  readonly history: History;
  readonly islands: readonly Island[];
  readonly nowMs: number;
  /** Virtual over wall time: what flashes does so for a moment of the onlooker's. */
  readonly speed: number;
  /** Least time that a parcel is drawn on its way, in virtual milliseconds. */
  readonly hopMs: number;
  /** One way of an island that is nowhere in particular, in milliseconds. */
  readonly latencyMs: number;
  /** How values travel. */
  readonly code: LessonSpec["code"];
  /** Only this fragment is drawn in full. */
  readonly followed: number | null;
  /** The first round is told step by step: its number, until it is over. */
  readonly told: number | null;
  /** An island that is being dragged, and what its way would take longer where it is held. */
  readonly held: { readonly island: number; readonly extraMs: number } | null;
  /** How much of what can be learnt is learnt, 0 to 1. */
  readonly knowledge: number;
  readonly harbour: Harbour;
  /** What a chapter asks of the run. */
  readonly watched: Watched;
  /** Nothing flashes, and nothing moves by itself. */
  readonly still: boolean;
}

/** What the way of an island takes longer than usual, as it is drawn, in milliseconds. */
export function extraMsOf(scene: Pick<SeaScene, "held" | "islands" | "latencyMs">, island: number): number {
  if (scene.held?.island === island) return scene.held.extraMs;
  return Math.max(0, (scene.islands[island]?.latencyMs ?? 0) - scene.latencyMs);
}

/** How far a flash has come that began at `atMs`, 0 to 1; `null` before it and after. */
export function flashOf(scene: SeaScene, atMs: number, wallMs: number): number | null {
  const age = (scene.nowMs - atMs) / (wallMs * scene.speed);
  return age >= 0 && age < 1 && !scene.still ? age : null;
}
