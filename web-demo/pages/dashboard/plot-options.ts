/** Options of uPlot for a chart. */
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
  /** Formats a value. */
  readonly format: (value: number) => string;
  /** Formats a value at the scale, where steps are round. */
  readonly tick: (value: number) => string;
  /** Whether the line uses the right scale instead of the left. */
  readonly right?: boolean;
  readonly dashed?: boolean;
  /** Whether to mark each value while there are few. */
  readonly dots?: boolean;
  /** Whether to hide the key while there is no value. */
  readonly optional?: boolean;
  /** Whether smoothing applies. */
  readonly noisy?: boolean;
  /** Whether earlier runs have no such line. */
  readonly alone?: boolean;
}

/** Contents of a chart. */
export interface ChartSpec {
  readonly title: string;
  /** Explanation of technical terms, for interested readers. */
  readonly more?: string;
  /** Name for files and on a button. */
  readonly name: string;
  /** Units of the left and right scale. */
  readonly unit: string;
  readonly unitRight?: string;
  readonly lines: readonly Line[];
  /** Returns the limits of the left and right scale for the range of values. */
  readonly range: (min: number, max: number) => [number, number];
  readonly rangeRight?: (min: number, max: number) => [number, number];
  /** Whether the left scale may be logarithmic. */
  readonly mayBeLog?: boolean;
  /** Describes the chart in a sentence or two. */
  readonly summary: () => string;
}

/** A drawn line: its own values, those before smoothing, or those of an earlier run. */
export interface Stroke {
  readonly line: Line;
  readonly label: string;
  readonly kind: "own" | "raw" | "other";
}

/** Size and callbacks of a plot. */
interface Hands {
  readonly width: number;
  /** The cursor moved. */
  readonly moved: () => void;
  /** A range was dragged. */
  readonly selected: (plot: uPlot) => void;
  /** Shows the whole range again. */
  readonly whole: () => void;
}

export const HEIGHT_PX = 230;
export const X_TITLES: Readonly<Record<Axis, string>> = {
  time: "Time since the first learner",
  tokens: "Tokens merged",
};
const DOTS_MAX = 60;
/** Least length of a drag, in pixels; a shorter one is a click. */
const DRAG_PX = 6;
/** Width of the longest label on the x axis, "10 min 30 s", in pixels. */
const WIDEST_PLACE_PX = 84;
const FONT = "12px system-ui, sans-serif";
/** Steps of a scale of whole numbers. */
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

/** Round steps of a logarithmic scale: a wider scale has fewer steps per power of ten. */
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
