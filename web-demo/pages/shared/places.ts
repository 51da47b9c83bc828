/** Where islands lie on a sea round a lighthouse. */

/** Islands that a sea has room for, step by step: a step is taken seldom, and islands keep their places until then. */
const ROOMS = [8, 12, 16, 24, 32, 48, 64] as const;
/** The turn from one island to the next, in radians: each falls between those that are there (the golden angle). */
const TURN = Math.PI * (3 - Math.sqrt(5));
/** No island is nearer to the lighthouse than this, of the way to the edge. */
const NEAREST = 0.42;

/** The least room for so many islands. */
export function roomFor(count: number): number {
  return ROOMS.find((room) => room >= count) ?? 2 ** Math.ceil(Math.log2(count));
}

/** Where place `at` of `room` lies, from −1 to 1 each way; few islands are as evenly spread as many. */
export function placeIn(room: number, at: number): { readonly x: number; readonly y: number } {
  const reach = NEAREST + (1 - NEAREST) * Math.sqrt((at + 0.5) / room);
  const angle = Math.PI + at * TURN;
  return { x: reach * Math.cos(angle), y: reach * Math.sin(angle) };
}
