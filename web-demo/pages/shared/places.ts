/** Positions of islands on a sea round a lighthouse. */

/** Steps of room on a sea. Steps are rare, and islands keep their places between them. */
const ROOMS = [8, 12, 16, 24, 32, 48, 64] as const;
/** Angle from one island to the next, in radians: the golden angle puts each between existing ones. */
const TURN = Math.PI * (3 - Math.sqrt(5));
/** Least distance of an island from the lighthouse, as a share of the way to the edge. */
const NEAREST = 0.42;

/** Returns the least room for this many islands. */
export function roomFor(count: number): number {
  return ROOMS.find((room) => room >= count) ?? 2 ** Math.ceil(Math.log2(count));
}

/** Position of place `at` of `room`, from −1 to 1 each way; any number of islands is evenly spread. */
export function placeIn(room: number, at: number): { readonly x: number; readonly y: number } {
  const reach = NEAREST + (1 - NEAREST) * Math.sqrt((at + 0.5) / room);
  const angle = Math.PI + at * TURN;
  return { x: reach * Math.cos(angle), y: reach * Math.sin(angle) };
}
