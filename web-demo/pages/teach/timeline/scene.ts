/** Geometry of the timeline: lanes from top to bottom, time from left to right. */
import type { Island } from "../../shared/lesson.js";
import type { Watched } from "../guide/watched.js";
import type { History, Parcel } from "./history.js";

/** Everything to draw. */
export interface Scene {
  readonly history: History;
  readonly islands: readonly Island[];
  readonly nowMs: number;
  readonly spanMs: number;
  /** Ratio of virtual to wall time, since flashes last a fixed wall time. */
  readonly speed: number;
  readonly width: number;
  readonly height: number;
  readonly rows: number;
  /** Font of the lanes' names. */
  readonly names: (typeof NAMES)[keyof typeof NAMES];
  /** The only fragment to draw in full. */
  readonly followed: number | null;
  readonly chosen: Parcel | null;
  /** The chapter's marks. */
  readonly watched: Watched;
  /** Whether flashes are off. */
  readonly still: boolean;
}

const AXIS_PX = 22;
/** Height of an island's lane: fewer islands have more room. */
const LANE_PX = { least: 14, most: 60 } as const;
const ROW_PX = 20;
const TWIN_GAP_PX = 12;
const TWIN_PX = 36;
/** Size of the lanes' names, and their room at the left; a projector needs large names. */
export const NAMES = { near: { fontPx: 12, leftPx: 80 }, far: { fontPx: 18, leftPx: 116 } } as const;
/** Room for messages in flight at the current moment. */
const RIGHT_PX = 30;

/** A lane's top and height, in CSS pixels. */
export interface Lane {
  readonly top: number;
  readonly height: number;
}

/** Quantities that determine the positions of lanes. */
type Lanes = Pick<Scene, "islands" | "rows" | "height">;

function laneHeight({ islands, rows, height }: Lanes): number {
  const room = height - AXIS_PX - syncerHeight(rows) - TWIN_GAP_PX - TWIN_PX - 4;
  return Math.floor(Math.min(LANE_PX.most, Math.max(LANE_PX.least, room / islands.length)));
}

/** Number of islands above the syncer. */
function above(islands: number): number {
  return Math.ceil(islands / 2);
}

function syncerHeight(rows: number): number {
  return rows * ROW_PX + 16;
}

export function islandLane(scene: Lanes, island: number): Lane {
  const height = laneHeight(scene);
  const below = island >= above(scene.islands.length) ? syncerHeight(scene.rows) : 0;
  return { top: AXIS_PX + island * height + below, height };
}

export function syncerLane(scene: Lanes): Lane {
  return {
    top: AXIS_PX + above(scene.islands.length) * laneHeight(scene),
    height: syncerHeight(scene.rows),
  };
}

export function twinLane(scene: Lanes): Lane {
  return { top: heightOf(scene) - TWIN_PX - 4, height: TWIN_PX };
}

/** Height of all lanes, in CSS pixels. */
function heightOf(scene: Lanes): number {
  return AXIS_PX + scene.islands.length * laneHeight(scene) + syncerHeight(scene.rows) + TWIN_GAP_PX + TWIN_PX + 4;
}

/** Middle of a row of the syncer's lane. */
export function rowY(scene: Lanes, row: number): number {
  return syncerLane(scene).top + 8 + (Math.min(row, scene.rows - 1) + 0.5) * ROW_PX;
}

/** Virtual duration of a glow of `wallMs`, limited so that glows do not pile up. */
export function glowOf(scene: Scene, wallMs: number): number {
  return Math.min(wallMs * scene.speed, scene.spanMs / 20);
}

/** Position of a moment. */
export function xOf(scene: Scene, ms: number): number {
  const { leftPx } = scene.names;
  return leftPx + (1 - (scene.nowMs - ms) / scene.spanMs) * (scene.width - leftPx - RIGHT_PX);
}

/** A straight line from one lane to another. */
export interface Way {
  readonly x0: number;
  readonly y0: number;
  readonly x1: number;
  readonly y1: number;
}

/** Line of a parcel, from its sending to its arrival. */
export function wayOf(scene: Scene, parcel: Parcel): Way {
  const lane = islandLane(scene, parcel.island);
  const shore = lane.top + lane.height / 2;
  const syncer = syncerLane(scene);
  const round = parcel.round === null ? undefined : scene.history.rounds.findLast((one) => one.round === parcel.round);
  const quay = round ? rowY(scene, round.row) : syncer.top + syncer.height / 2;
  const [y0, y1] = parcel.up ? [shore, quay] : [quay, shore];
  return { x0: xOf(scene, parcel.fromMs), y0, x1: xOf(scene, parcel.untilMs), y1 };
}

/** Position of a parcel at the displayed moment, and its progress, 0 to 1. */
export function headOf(
  scene: Scene,
  parcel: Parcel,
  way: Way,
): { readonly x: number; readonly y: number; readonly share: number } {
  const lasts = parcel.untilMs - parcel.fromMs;
  const share = lasts <= 0 ? 1 : Math.min(1, Math.max(0, (scene.nowMs - parcel.fromMs) / lasts));
  return { x: way.x0 + share * (way.x1 - way.x0), y: way.y0 + share * (way.y1 - way.y0), share };
}
