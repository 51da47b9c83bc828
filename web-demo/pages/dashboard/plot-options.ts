/** How uPlot is to draw a chart. */
import type uPlot from "uplot";
import { count, duration } from "../shared/format.js";
import { type ColorName, color } from "../shared/palette.js";
import { steps } from "../shared/plot.js";
import type { Choice } from "./choice.js";
import type { Axis, Source } from "./columns.js";

/** One line. */
export interface Line extends Source {
  readonly label: string;
  readonly color: ColorName;
  /** The value in words. */
  readonly format: (value: number) => string;
  /** The same beside a scale, where steps are round. */
  readonly tick: (value: number) => string;
  /** The scale to its right instead of that to its left. */
  readonly right?: boolean;
  readonly dashed?: boolean;
  /** Marks each value while there are few. */
  readonly dots?: boolean;
  /** Not named while it has no value. */
  readonly optional?: boolean;
  /** Smoothed where that is asked for. */
  readonly noisy?: boolean;
  /** An earlier run has none of its own. */
  readonly alone?: boolean;
}

/** What a chart shows. */
export interface ChartSpec {
  readonly title: string;
  /** The terms for it, for who wants to know more. */
  readonly more?: string;
  /** Its name in a file's name, and on a button. */
  readonly name: string;
  /** What the left scale measures, and the right one. */
  readonly unit: string;
  readonly unitRight?: string;
  readonly lines: readonly Line[];
  /** Limits of the left scale and of the right one, of what its values span. */
  readonly range: (min: number, max: number) => [number, number];
  readonly rangeRight?: (min: number, max: number) => [number, number];
  /** Its left scale is logarithmic where that is asked for. */
  readonly mayBeLog?: boolean;
  /** What it shows, in a sentence or two. */
  readonly summary: () => string;
}

/** A line as it is drawn: its own values, those before smoothing, or those of an earlier run. */
export interface Stroke {
  readonly line: Line;
  readonly label: string;
  readonly kind: "own" | "raw" | "other";
}

/** What happens on a plot. */
interface Hands {
  readonly width: number;
  /** The cursor moved. */
  readonly moved: () => void;
  /** A part was chosen by a drag. */
  readonly selected: (plot: uPlot) => void;
  /** All is to be shown again. */
  readonly whole: () => void;
}

export const HEIGHT_PX = 230;
export const X_TITLES: Readonly<Record<Axis, string>> = {
  time: "Time since the first learner",
  tokens: "Tokens merged",
};
const DOTS_MAX = 60;
/** A shorter drag is a click, in pixels. */
const DRAG_PX = 6;
/** Room for the longest name of a place on the x axis, "10 min 30 s", in pixels. */
const WIDEST_PLACE_PX = 84;
const FONT = "12px system-ui, sans-serif";
/** Steps of a scale that counts things. */
const WHOLE_STEPS = [1, 2, 5].flatMap((step) => [step, step * 10, step * 100, step * 1_000]).sort((a, b) => a - b);
/** Steps of the time axis, in seconds. */
const TIME_STEPS = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800,
];
const STYLES: Readonly<Record<Stroke["kind"], Partial<uPlot.Series>>> = {
  own: { width: 1.75 },
  raw: { width: 1, alpha: 0.35 },
  other: { width: 1.5, alpha: 0.7, dash: [2, 4] },
};

export function optionsOf(spec: ChartSpec, strokes: readonly Stroke[], choice: Choice, hands: Hands): uPlot.Options {
  const isLog = choice.log && spec.mayBeLog === true;
  const range =
    (limits: ChartSpec["range"]): uPlot.Range.Function =>
    (_, min, max) =>
      limits(min ?? 0, max ?? 1);
  const logRange: uPlot.Range.Function = (_, min, max) => [(min || 0.1) / 1.05, (max || 1) * 1.05];
  return {
    width: hands.width,
    height: HEIGHT_PX,
    legend: { show: false },
    cursor: {
      drag: { x: true, y: false, setScale: false, dist: DRAG_PX },
      sync: { key: "run", scales: ["x", null] },
      bind: {
        dblclick: () => () => {
          hands.whole();
          return null;
        },
      },
      y: false,
    },
    scales: {
      x: { time: false },
      y: isLog ? { distr: 3, range: logRange } : { range: range(spec.range) },
      right: { range: range(spec.rangeRight ?? spec.range) },
    },
    axes: axesOf(spec, choice.axis, isLog),
    series: [{}, ...strokes.map(seriesOf)],
    hooks: { setCursor: [hands.moved], setSelect: [hands.selected] },
  };
}

function axesOf({ lines }: ChartSpec, x: Axis, isLog: boolean): uPlot.Axis[] {
  const axis = (more: uPlot.Axis): uPlot.Axis => ({
    font: FONT,
    stroke: () => color("ink-soft"),
    grid: { stroke: () => color("line"), width: 1 },
    ticks: { show: false },
    ...more,
  });
  const side = (right: boolean) => lines.find((line) => (line.right ?? false) === right);
  const values = (right: boolean) => (_: uPlot, splits: number[]) =>
    splits.map((split) => side(right)?.tick(split) ?? "");
  const places = (_: uPlot, splits: number[]) => splits.map((split) => (x === "time" ? duration(split) : count(split)));
  const incrs = x === "time" ? { incrs: TIME_STEPS } : {};
  const log: uPlot.Axis = { splits: (_, __, min, max) => logSteps(min, max), filter: (_, splits) => splits };
  const title = { label: X_TITLES[x], labelSize: 18, labelGap: 0, labelFont: FONT };
  const axes = [
    axis({ ...incrs, space: WIDEST_PLACE_PX, size: 30, values: places, ...title }),
    axis({ scale: "y", size: 58, space: 24, values: values(false), ...(isLog ? log : {}) }),
  ];
  if (side(true))
    axes.push(
      axis({ scale: "right", side: 1, size: 44, incrs: WHOLE_STEPS, grid: { show: false }, values: values(true) }),
    );
  return axes;
}

function seriesOf({ line, kind }: Stroke): uPlot.Series {
  return {
    label: line.label,
    scale: line.right ? "right" : "y",
    stroke: () => color(line.color),
    spanGaps: false,
    points: {
      show: (plot, index) => kind === "own" && (line.dots ?? false) && isSparse(plot.data[index] ?? []),
      size: 4,
      fill: () => color(line.color),
    },
    ...(line.dashed ? { dash: [6, 5] } : {}),
    ...STYLES[kind],
  };
}

/** Round steps of a logarithmic scale: the wider it is, the fewer of each power of ten. */
function logSteps(min: number, max: number): number[] {
  if (max / min < 4) return steps(min, max);
  const digits = max / min < 30 ? [1, 1.5, 2, 3, 5, 7] : [1, 2, 5];
  const first = Math.floor(Math.log10(min));
  const powers = Array.from({ length: Math.ceil(Math.log10(max / min)) + 1 }, (_, at) => 10 ** (first + at));
  const all = powers.flatMap((power) => digits.map((digit) => digit * power));
  return all.filter((step) => step >= min && step <= max);
}

function isSparse(column: ArrayLike<unknown>): boolean {
  let values = 0;
  for (let row = 0; row < column.length && values <= DOTS_MAX; row += 1)
    values += typeof column[row] === "number" ? 1 : 0;
  return values <= DOTS_MAX;
}
