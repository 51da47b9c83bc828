/** Where things are on the timeline: lanes from top to bottom, time from left to right. */
import type { Island } from "../../shared/lesson.js";
import type { Watched } from "../guide/watched.js";
import type { History, Parcel } from "./history.js";

/** What is drawn. */
export interface Scene {
  readonly history: History;
  readonly islands: readonly Island[];
  readonly nowMs: number;
  readonly spanMs: number;
  /** Virtual over wall time: what flashes does so for a moment of the onlooker's. */
  readonly speed: number;
  readonly width: number;
  readonly height: number;
  readonly rows: number;
  /** How the lanes' names are written. */
  readonly names: (typeof NAMES)[keyof typeof NAMES];
  /** Only this fragment is drawn in full. */
  readonly followed: number | null;
  readonly chosen: Parcel | null;
  /** What a chapter asks of the run. */
  readonly watched: Watched;
  /** Nothing flashes. */
  readonly still: boolean;
}

const AXIS_PX = 22;
/** Height of an island's lane: the fewer there are, the more room each has. */
const LANE_PX = { least: 14, most: 60 } as const;
const ROW_PX = 20;
const TWIN_GAP_PX = 12;
const TWIN_PX = 36;
/** Size of the lanes' names, and the room that they have at the left; on a projector they are read from afar. */
export const NAMES = { near: { fontPx: 12, leftPx: 80 }, far: { fontPx: 18, leftPx: 116 } } as const;
/** Room for what is in flight at the moment. */
const RIGHT_PX = 30;

/** A lane's top and height, in CSS pixels. */
export interface Lane {
  readonly top: number;
  readonly height: number;
}

/** What decides where lanes are. */
type Lanes = Pick<Scene, "islands" | "rows" | "height">;

function laneHeight({ islands, rows, height }: Lanes): number {
  const room = height - AXIS_PX - syncerHeight(rows) - TWIN_GAP_PX - TWIN_PX - 4;
  return Math.floor(Math.min(LANE_PX.most, Math.max(LANE_PX.least, room / islands.length)));
}

/** How many islands lie above the syncer. */
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

/** The middle of a row of the syncer's lane. */
export function rowY(scene: Lanes, row: number): number {
  return syncerLane(scene).top + 8 + (Math.min(row, scene.rows - 1) + 0.5) * ROW_PX;
}

/** How long something glows that does so for `wallMs` of the onlooker's time: never so long that it piles up. */
export function glowOf(scene: Scene, wallMs: number): number {
  return Math.min(wallMs * scene.speed, scene.spanMs / 20);
}

/** Where a moment is. */
export function xOf(scene: Scene, ms: number): number {
  const { leftPx } = scene.names;
  return leftPx + (1 - (scene.nowMs - ms) / scene.spanMs) * (scene.width - leftPx - RIGHT_PX);
}

/** A straight way from one lane to another. */
export interface Way {
  readonly x0: number;
  readonly y0: number;
  readonly x1: number;
  readonly y1: number;
}

/** The way of a parcel, from when it is sent until it is there. */
export function wayOf(scene: Scene, parcel: Parcel): Way {
  const lane = islandLane(scene, parcel.island);
  const shore = lane.top + lane.height / 2;
  const syncer = syncerLane(scene);
  const round = parcel.round === null ? undefined : scene.history.rounds.findLast((one) => one.round === parcel.round);
  const quay = round ? rowY(scene, round.row) : syncer.top + syncer.height / 2;
  const [y0, y1] = parcel.up ? [shore, quay] : [quay, shore];
  return { x0: xOf(scene, parcel.fromMs), y0, x1: xOf(scene, parcel.untilMs), y1 };
}

/** Where a parcel is at the moment that is shown, and how far on its way, 0 to 1. */
export function headOf(
  scene: Scene,
  parcel: Parcel,
  way: Way,
): { readonly x: number; readonly y: number; readonly share: number } {
  const lasts = parcel.untilMs - parcel.fromMs;
  const share = lasts <= 0 ? 1 : Math.min(1, Math.max(0, (scene.nowMs - parcel.fromMs) / lasts));
  return { x: way.x0 + share * (way.x1 - way.x0), y: way.y0 + share * (way.y1 - way.y0), share };
}
