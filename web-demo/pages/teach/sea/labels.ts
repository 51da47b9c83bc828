/** Labels for the boats of the first round: in front of everything else, and away from islands and tower. */

import { color } from "../../shared/palette.js";
import { phrase } from "../../words/phrase.js";
import type { Parcel } from "../timeline/history.js";
import { HARBOUR_PX, islandAt, isSmall, lighthouseOf, type Point, radiusOf } from "./chart.js";
import { extraMsOf, type SeaScene } from "./scene.js";

/** A boat of the narrated round. */
export interface Told {
  readonly parcel: Parcel;
  readonly boat: Point;
}

interface Box {
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
}

const HEIGHT_PX = 20;
/** Distances of a label's upper edge from its boat, best first, in pixels. */
const PLACES_PX = [-40, 18, -64, 42] as const;
/** Extent of the tower to either side, upwards and downwards, in pixels. */
const TOWER_PX = 26;

export function drawLabels(context: CanvasRenderingContext2D, scene: SeaScene, told: readonly Told[]): void {
  const taken = obstacles(scene);
  // Keeps the same boat as long as it has room; starts with the first island that has room.
  const inOrder = [...told].sort((one, other) => one.parcel.island - other.parcel.island);
  for (const what of new Set(inOrder.map(({ parcel }) => parcel.what))) {
    const boats = inOrder.filter(({ parcel }) => parcel.what === what);
    const text = textOf(scene, boats[0]!.parcel);
    const width = context.measureText(text).width + 12;
    // A label that would hide another object is left out until its boat has moved on.
    const found = boats
      .flatMap(({ boat }) => placesOf(scene, boat, width).map((box) => ({ box, boat })))
      .find(({ box }) => isOnWater(scene, box) && !taken.some((one) => overlap(one, box)));
    if (found === undefined) continue;
    taken.push(found.box);
    drawLabel(context, found.box, found.boat, text);
  }
}

/** Positions above and below a boat, best first. */
function placesOf(scene: SeaScene, boat: Point, width: number): Box[] {
  const left = Math.min(scene.sea.width - width - 4, Math.max(4, boat.x - width / 2));
  return PLACES_PX.map((below) => ({ left, top: boat.y + below, width, height: HEIGHT_PX }));
}

function textOf(scene: SeaScene, parcel: Parcel): string {
  if (isSmall(scene.sea)) return phrase(`sea.short.${parcel.what}`);
  if (parcel.up) return phrase("sea.up", { bits: phrase(`bits.${scene.code}`) });
  return phrase(parcel.what === "whole" ? "sea.whole" : "sea.down");
}

/** Areas that no label may hide. */
function obstacles(scene: SeaScene): Box[] {
  const around = ({ x, y }: Point, half: number): Box => ({
    left: x - half,
    top: y - half,
    width: 2 * half,
    height: 2 * half,
  });
  const radius = 0.9 * radiusOf(scene.sea);
  const islands = scene.islands.map((_, at) => around(islandAt(scene.sea, at, extraMsOf(scene, at)), radius));
  return [around(lighthouseOf(scene.sea), TOWER_PX), ...islands];
}

function isOnWater(scene: SeaScene, { top, height }: Box): boolean {
  return top >= 4 && top + height <= scene.sea.height - HARBOUR_PX - 4;
}

function overlap(one: Box, other: Box): boolean {
  const apart =
    one.left >= other.left + other.width ||
    other.left >= one.left + one.width ||
    one.top >= other.top + other.height ||
    other.top >= one.top + one.height;
  return !apart;
}

function drawLabel(context: CanvasRenderingContext2D, box: Box, boat: Point, text: string): void {
  const { left, top, width, height } = box;
  context.globalAlpha = 1;
  // A line to the boat.
  context.strokeStyle = color("edge");
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(Math.min(left + width, Math.max(left, boat.x)), top + height / 2);
  context.lineTo(boat.x, boat.y);
  context.stroke();
  context.fillStyle = color("card");
  context.fillRect(left, top, width, height);
  context.strokeRect(left, top, width, height);
  context.textAlign = "start";
  context.fillStyle = color("ink");
  context.fillText(text, left + 6, top + 10.5);
}
