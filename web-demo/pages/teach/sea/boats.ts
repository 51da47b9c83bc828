/** Parcels as boats: progress sails to the lighthouse on one side of the cable, changes return on the other. */

import { drawCells } from "../timeline/cells.js";
import { along, islandAt, isSmall, lighthouseOf, radiusOf } from "./chart.js";
import type { Told } from "./labels.js";
import { extraMsOf, type SeaScene } from "./scene.js";
import { legOf } from "./tempo.js";

/** Limit of boats each way, newest first; more could not be told apart. */
const BOATS_MAX = 70;
/** Longest trip that is searched in the history, in milliseconds. */
const TRIP_MS_MAX = 15_000;
/** Distance from the cable, in pixels. */
const BESIDE_PX = 9;
/** Distance of departing boats from the middle of the rock, in pixels. */
const ROCK_PX = 30;

/** Draws the boats, and returns those of the narrated round. One boat of each kind gets a label. */
export function drawBoats(context: CanvasRenderingContext2D, scene: SeaScene): readonly Told[] {
  const { parcels } = scene.history;
  const tower = lighthouseOf(scene.sea);
  // On a small sea boats are small.
  const size = isSmall(scene.sea) ? 0.7 : 1;
  const drawn = { up: 0, down: 0 };
  const told: Told[] = [];
  for (let at = parcels.length - 1; at >= 0; at -= 1) {
    const parcel = parcels[at]!;
    if (parcel.fromMs < scene.nowMs - TRIP_MS_MAX - 2 * scene.hopMs) break;
    // Requests add nothing to their answers.
    if (parcel.what === "collect") continue;
    // During the narrated round, only downloads of joiners are shown in addition.
    if (scene.told !== null && parcel.round !== scene.told && parcel.what !== "whole") continue;
    const way = parcel.up ? "up" : "down";
    if (drawn[way] >= BOATS_MAX) continue;
    const { fromMs, untilMs } = legOf(parcel, scene.hopMs);
    if (fromMs > scene.nowMs || untilMs < scene.nowMs) continue;
    drawn[way] += 1;
    const shore = islandAt(scene.sea, parcel.island, extraMsOf(scene, parcel.island));
    const length = Math.hypot(shore.x - tower.x, shore.y - tower.y) || 1;
    const [quay, beach] = [ROCK_PX / length, 1 - radiusOf(scene.sea) / length];
    // Without motion a boat lies at a visible place for its whole trip.
    const share = scene.still ? 0.5 : (scene.nowMs - fromMs) / (untilMs - fromMs);
    const place = parcel.up ? beach + share * (quay - beach) : quay + share * (beach - quay);
    const boat = along(tower, shore, place, parcel.up ? -BESIDE_PX : BESIDE_PX);
    const isTold = scene.told !== null && parcel.round === scene.told;
    const isDim = scene.followed !== null && parcel.fragment !== scene.followed && parcel.what !== "whole";
    drawCells(context, parcel, boat.x, boat.y, isDim ? 0.2 : 1, (isTold ? 1.7 : 1) * size);
    if (scene.told !== null) told.push({ parcel, boat });
  }
  context.globalAlpha = 1;
  return told;
}
