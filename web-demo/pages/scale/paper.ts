/** The paper's figures (arXiv 2604.21428, Table 1 and the bandwidth comparison). */

import { phrase } from "../words/phrase.js";

/** Chips of the table's columns; each chip is interrupted once a year. */
export const CHIPS = [150_000, 300_000, 600_000, 1_200_000, 2_400_000] as const;

/** A row: training method, and goodput at each number of chips. */
export interface Row {
  readonly label: string;
  readonly learners: number;
  readonly elastic: boolean;
  readonly goodput: readonly number[];
}

export const TABLE: readonly Row[] = [
  { label: phrase("scale.failures.rigid"), learners: 1, elastic: false, goodput: [0.72, 0.57, 0.38, 0.27, 0.18] },
  { label: phrase("scale.failures.elastic"), learners: 1, elastic: true, goodput: [0.88, 0.8, 0.69, 0.58, 0.4] },
  {
    label: phrase("scale.failures.learners", { learners: 2 }),
    learners: 2,
    elastic: true,
    goodput: [0.94, 0.88, 0.8, 0.7, 0.54],
  },
  {
    label: phrase("scale.failures.learners", { learners: 4 }),
    learners: 4,
    elastic: true,
    goodput: [0.96, 0.93, 0.89, 0.82, 0.73],
  },
  {
    label: phrase("scale.failures.learners", { learners: 8 }),
    learners: 8,
    elastic: true,
    goodput: [0.98, 0.96, 0.94, 0.88, 0.8],
  },
  {
    label: phrase("scale.failures.learners", { learners: 16 }),
    learners: 16,
    elastic: true,
    goodput: [0.99, 0.98, 0.96, 0.93, 0.86],
  },
];

/** All computed rows; the paper has none for 32 learners. */
export const ROWS: readonly Row[] = [
  ...TABLE,
  { label: phrase("scale.failures.learners", { learners: 32 }), learners: 32, elastic: true, goodput: [] },
];

/** Gbit/s for steps of 1 s at 90 %, 5 billion parameters: by data centres, method and bits. */
export const LINK = new Map<string, number>([
  ["2 dataParallel 16", 104],
  ["2 decoupled 16", 1.7],
  ["2 decoupled 4", 0.43],
  ["8 dataParallel 16", 198],
  ["8 decoupled 4", 0.84],
]);
