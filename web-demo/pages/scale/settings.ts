/** Settings of this page: ranges, words, and their form in links. */

import { duration, percent } from "../shared/format.js";
import { plain } from "../shared/language.js";
import { phrase } from "../words/phrase.js";

/** All settings. */
export interface Settings {
  readonly chips: number;
  readonly mtbiYears: number;
  readonly learners: number;
  readonly paramsBillion: number;
  readonly stepS: number;
  readonly dataCentres: number;
  readonly bits: number;
  readonly utilisation: number;
  readonly syncEvery: number;
  readonly fragments: number;
  readonly roundsInFlight: number;
}

/** One setting. `values` are the slider's stops. */
export interface Knob {
  readonly key: keyof Settings;
  readonly label: string;
  readonly values: readonly number[];
  readonly say: (value: number) => string;
}

/** The paper's main setting. */
export const DEFAULTS: Settings = {
  chips: 1_200_000,
  mtbiYears: 1,
  learners: 8,
  paramsBillion: 5,
  stepS: 1,
  dataCentres: 2,
  bits: 16,
  utilisation: 0.9,
  syncEvery: 24,
  fragments: 24,
  roundsInFlight: 2,
};

const range = (from: number, to: number, step = 1) =>
  Array.from({ length: Math.round((to - from) / step) + 1 }, (_, at) => Number((from + at * step).toFixed(6)));

/** Formats as 150 k, 1.2 M. */
export function chips(value: number): string {
  return value < 1_000_000 ? `${plain(value / 1_000)} k` : `${plain(value / 1_000_000)} M`;
}

function years(value: number): string {
  return value < 1
    ? phrase("scale.months", { count: Math.round(value * 12) })
    : phrase("scale.years", { count: value });
}

export const FAILURES: readonly Knob[] = [
  {
    key: "chips",
    label: phrase("scale.knobs.chips"),
    values: [
      10, 20, 30, 50, 75, 100, 150, 200, 300, 400, 600, 800, 1_000, 1_200, 1_500, 2_000, 2_400, 3_000, 4_000, 5_000,
    ].map((one) => one * 1_000),
    say: chips,
  },
  {
    key: "mtbiYears",
    label: phrase("scale.knobs.mtbiYears"),
    values: [1 / 12, 0.25, 0.5, 1, 2, 3, 5, 10],
    say: years,
  },
  { key: "learners", label: phrase("scale.knobs.learners"), values: [1, 2, 4, 8, 16, 32], say: plain },
];

export const LINKS: readonly Knob[] = [
  {
    key: "paramsBillion",
    label: phrase("scale.knobs.paramsBillion"),
    values: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000],
    say: (value) =>
      value < 1_000
        ? phrase("scale.billion", { billion: value })
        : phrase("scale.trillion", { trillion: value / 1_000 }),
  },
  {
    key: "stepS",
    label: phrase("scale.knobs.stepS"),
    values: [0.1, 0.2, 0.5, 1, 2, 5, 10],
    say: (value) => (value < 1 ? `${plain(value)} s` : duration(value)),
  },
  { key: "dataCentres", label: phrase("scale.knobs.dataCentres"), values: range(2, 16), say: plain },
  { key: "bits", label: phrase("scale.knobs.bits"), values: [1, 2, 4, 8, 16, 32], say: plain },
  {
    key: "utilisation",
    label: phrase("scale.knobs.utilisation"),
    values: [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99],
    say: percent,
  },
  {
    key: "syncEvery",
    label: phrase("scale.knobs.syncEvery"),
    values: [8, 12, 16, 24, 30, 48, 64, 96, 100, 200, 500],
    say: plain,
  },
  { key: "fragments", label: phrase("scale.knobs.fragments"), values: [1, 2, 4, 8, 12, 16, 24, 36, 40], say: plain },
  { key: "roundsInFlight", label: phrase("scale.knobs.roundsInFlight"), values: [1, 2, 3, 4, 5], say: plain },
];

const ALL = [...FAILURES, ...LINKS];

/** Whether the paper's link figures apply to these settings; each figure names its data centres and bits. */
export function isAsPaper(settings: Settings): boolean {
  return LINKS.every(({ key }) => key === "dataCentres" || key === "bits" || settings[key] === DEFAULTS[key]);
}

/** Writes settings as a link's fragment, without those at their defaults. */
export function write(settings: Settings): string {
  const changed = ALL.filter(({ key }) => settings[key] !== DEFAULTS[key]).map(
    ({ key }) => `${key}=${Number(settings[key].toFixed(4))}`,
  );
  return `#${["v=1", ...changed].join("&")}`;
}

/** Reads a fragment; `wrong` names invalid settings, which get their defaults. */
export function read(hash: string): { readonly settings: Settings; readonly wrong: readonly string[] } {
  const fields = new URLSearchParams(hash.replace(/^#/, ""));
  const wrong: string[] = [];
  const changed: Record<string, number> = {};
  for (const { key, label, values } of ALL) {
    const text = fields.get(key);
    if (text === null) continue;
    const value = /^\d+(\.\d+)?$/.test(text) ? values.find((one) => Math.abs(one - Number(text)) < 1e-3) : undefined;
    if (value === undefined) wrong.push(label);
    else changed[key] = value;
  }
  return { settings: { ...DEFAULTS, ...changed }, wrong };
}
