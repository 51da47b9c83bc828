/** The chapters, in order. */
import type { Chapter } from "../chapter.js";
import { far } from "./far.js";
import { fragments } from "./fragments.js";
import { grace } from "./grace.js";
import { int4 } from "./int4.js";
import { liar } from "./liar.js";
import { lockstep } from "./lockstep.js";
import { quorum } from "./quorum.js";
import { rda } from "./rda.js";
import { rejoin } from "./rejoin.js";
import { scavenging } from "./scavenging.js";
import { weights } from "./weights.js";

export const CHAPTERS: readonly Chapter[] = [
  lockstep,
  quorum,
  grace,
  weights,
  rda,
  fragments,
  int4,
  rejoin,
  far,
  liar,
  scavenging,
];
