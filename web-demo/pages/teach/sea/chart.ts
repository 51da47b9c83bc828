/** Positions on the sea: the lighthouse in the middle, islands around it, farther out with a longer delay. */

export interface Point {
  readonly x: number;
  readonly y: number;
}

/** Size of the sea, in pixels. */
export interface Sea {
  readonly width: number;
  readonly height: number;
  /** Number of islands. */
  readonly islands: number;
}

/** Distance of an island with the usual delay, as a share of the way to the edge. */
const NEAR = 0.76;
/** Extra delay of an island at the edge, one way, in milliseconds. */
export const EXTRA_MS_MAX = 990;
/** Width or height in pixels below which, as on a crowded sea, boats are small and words are few. */
const SMALL_SEA_PX = { width: 480, height: 240, crowded: 700 } as const;
/** Number of islands that crowds a sea. */
const CROWD = 7;
/** Room for an island and its name at the edges, in pixels; a low sea has none to spare. */
const MARGIN = { x: 52, y: 38, low: 26 } as const;

/** Height of the harbour at the lower edge of the sea, in pixels. */
export const HARBOUR_PX = 30;

/** Whether there is room for numbers only, not for words. */
export function isSmall({ width, height, islands }: Sea): boolean {
  return (
    width < SMALL_SEA_PX.width || height < SMALL_SEA_PX.height || (islands >= CROWD && width < SMALL_SEA_PX.crowded)
  );
}

/** Position of the lighthouse. */
export function lighthouseOf({ width, height }: Sea): Point {
  return { x: width / 2, y: (height - HARBOUR_PX) / 2 };
}

/** Radius of an island, in pixels. */
export function radiusOf({ width, height, islands }: Sea): number {
  const room = Math.min(width / 15, height / 11);
  return Math.max(10, Math.min(34, islands >= CROWD ? 0.75 * room : room));
}

/** Direction of an island from the lighthouse: never straight up or down, where there is least room. */
function angleOf(island: number, islands: number): number {
  const start = islands % 4 === 0 ? Math.PI + Math.PI / islands : Math.PI;
  return start + (2 * Math.PI * island) / islands;
}

/** Half the sea in the direction of an island, in pixels. */
function reachOf(sea: Sea, island: number): Point {
  const angle = angleOf(island, sea.islands);
  return {
    x: Math.cos(angle) * (sea.width / 2 - MARGIN.x),
    y:
      Math.sin(angle) *
      Math.max(0, (sea.height - HARBOUR_PX) / 2 - (sea.height < SMALL_SEA_PX.height ? MARGIN.low : MARGIN.y)),
  };
}

/** Position of an island with an extra delay of `extraMs`, one way. */
export function islandAt(sea: Sea, island: number, extraMs: number): Point {
  const out = NEAR + (1 - NEAR) * Math.sqrt(Math.min(1, Math.max(0, extraMs) / EXTRA_MS_MAX));
  const [centre, reach] = [lighthouseOf(sea), reachOf(sea, island)];
  return { x: centre.x + out * reach.x, y: centre.y + out * reach.y };
}

/** Position of the cut on the cable, as a share of the way from the lighthouse. */
const CUT_AT = 0.58;
/** Width of a finger, in pixels. */
const FINGER_PX = 44;

/** Position of an island's cut, and the size of its button, limited by the room next to other buttons. */
export function cutAt(sea: Sea, island: number, extraMs: number): Point & { readonly size: number } {
  const at = (one: number) => along(lighthouseOf(sea), islandAt(sea, one, one === island ? extraMs : 0), CUT_AT, 0);
  const here = at(island);
  const others = Array.from({ length: sea.islands }, (_, one) => one).filter((one) => one !== island);
  const gaps = others.map((one) => Math.hypot(at(one).x - here.x, at(one).y - here.y));
  return { ...here, size: Math.min(FINGER_PX, ...gaps) };
}

/** Extra delay of an island that is dropped at `point`, in tens of milliseconds. */
export function extraMsAt(sea: Sea, island: number, point: Point): number {
  const [centre, reach] = [lighthouseOf(sea), reachOf(sea, island)];
  const length = reach.x * reach.x + reach.y * reach.y;
  if (length === 0) return 0;
  const out = ((point.x - centre.x) * reach.x + (point.y - centre.y) * reach.y) / length;
  const share = Math.min(1, Math.max(0, (out - NEAR) / (1 - NEAR)));
  return Math.round((share * share * EXTRA_MS_MAX) / 10) * 10;
}

/** A point on the way from `from` to `to`, shifted to the right of the direction by this many pixels. */
export function along(from: Point, to: Point, share: number, beside: number): Point {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(dx, dy) || 1;
  return { x: from.x + share * dx - (beside * dy) / length, y: from.y + share * dy + (beside * dx) / length };
}

/** Shore of an island round the origin, of radius 1: each has its own, always the same. */
export function shoreOf(island: number): readonly Point[] {
  const CORNERS = 11;
  return Array.from({ length: CORNERS }, (_, at) => {
    const angle = (2 * Math.PI * at) / CORNERS;
    const wobble = Math.sin(1.7 * island + 2 * angle) + 0.6 * Math.sin(4.1 * island + 3 * angle + 1);
    const radius = 1 + 0.13 * wobble;
    return { x: radius * Math.cos(angle), y: 0.82 * radius * Math.sin(angle) };
  });
}
