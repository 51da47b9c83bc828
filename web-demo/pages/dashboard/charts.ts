/** What the charts show. */
import uPlot from "uplot";
import { bytes, count, duration, nats, percent } from "../shared/format.js";
import { Chart, type ChartSpec } from "./chart.js";
import { type Course, perSecond } from "./course.js";

const fromZero = (_: number, max: number): [number, number] => [0, max > 0 ? max * 1.1 : 1];
const plain = (value: number): string => String(Number(value.toPrecision(4)));
/** Without zeros at the end of a fraction. */
const tidy = (text: string): string => text.replace(/(\.\d*?)0+(?= )/, "$1").replace(/\.(?= )/, "");
const wholePercent = (share: number): string => `${Math.round(share * 100)} %`;

/** Charts in `grid`; the function asks for all of them to be drawn anew. */
export function makeCharts(grid: HTMLElement, course: Course, floor: () => number | null): () => void {
  const charts = [loss(course, floor), speed(course), learners(course), network(course)].map((spec) => {
    const figure = grid.appendChild(document.createElement("figure"));
    figure.className = "card chart";
    return new Chart(figure, spec);
  });
  return () => charts.forEach((chart) => chart.refresh());
}

function loss(course: Course, floor: () => number | null): ChartSpec {
  return {
    title: "Loss, in nats per token",
    lines: [
      { label: "held-out", color: "line-1", format: nats, tick: plain, dots: true },
      { label: "training", color: "line-2", format: nats, tick: plain },
      { label: "no model can go below", color: "line-quiet", format: nats, tick: plain, dashed: true, optional: true },
    ],
    range: (min, max) => {
      const pad = Math.max(0.05, (max - min) * 0.08);
      return [Math.max(0, min - pad), max + pad];
    },
    columns: () => {
      const { timeS, trainLoss, evaluations } = course.view;
      const held = [evaluations.map((one) => one.timeS), evaluations.map((one) => one.loss)];
      if (timeS.length === 0) return [[], [], [], []];
      const [time = [], trained = [], tested = []] = uPlot.join([[timeS, trainLoss], held] as uPlot.AlignedData[]) as (
        | number
        | null
        | undefined
      )[][];
      const least = floor();
      return [time as number[], tested, trained, time.map(() => least)];
    },
    summary: () => {
      const { evaluations } = course.view;
      const first = evaluations[0];
      const last = evaluations.at(-1);
      if (!first || !last) return "Nothing measured yet.";
      const least = floor();
      const below = least === null ? "" : ` No model can go below ${nats(least)}.`;
      return `Held-out loss from ${nats(first.loss)} to ${nats(last.loss)} in ${duration(last.timeS)}.${below}`;
    },
  };
}

function speed(course: Course): ChartSpec {
  return {
    title: "Speed",
    lines: [{ label: "tokens a second", color: "line-1", format: count, tick: (value) => tidy(count(value)) }],
    range: fromZero,
    columns: () => [course.view.timeS, course.view.tokensPerS],
    summary: () => {
      const { tokensPerS } = course.view;
      const last = tokensPerS.at(-1);
      if (last === undefined) return "Nothing measured yet.";
      return `${count(last)} tokens a second now, ${count(tokensPerS.reduce((most, one) => Math.max(most, one), 0))} at most.`;
    },
  };
}

function learners(course: Course): ChartSpec {
  return {
    title: "Participation and learners",
    lines: [
      { label: "tokens merged of those trained", color: "line-1", format: percent, tick: wholePercent },
      { label: "learners in rounds", color: "line-2", format: count, tick: (value) => tidy(count(value)), right: true },
    ],
    range: () => [0, 1],
    rangeRight: fromZero,
    columns: () => [course.view.timeS, course.view.participation, course.view.live],
    summary: () => {
      const { participation, live } = course.view;
      const share = participation.at(-1);
      if (share === undefined) return "Nothing measured yet.";
      return `${percent(share)} of all trained tokens are merged; ${count(live.at(-1) ?? 0)} learners take part in rounds, ${count(live.reduce((most, one) => Math.max(most, one), 0))} at most.`;
    },
  };
}

function network(course: Course): ChartSpec {
  const format = (value: number) => `${bytes(value)}/s`;
  const tick = (value: number) => tidy(format(value));
  return {
    title: "Network",
    lines: [
      { label: "from learners", color: "line-1", format, tick },
      { label: "to learners", color: "line-2", format, tick, dashed: true },
    ],
    range: fromZero,
    columns: () => {
      const { timeS, bytesUp, bytesDown } = course.view;
      return [timeS, perSecond(timeS, bytesUp), perSecond(timeS, bytesDown)];
    },
    summary: () => {
      const { bytesUp, bytesDown } = course.view;
      return `${bytes(bytesUp.at(-1) ?? 0)} came from learners so far, ${bytes(bytesDown.at(-1) ?? 0)} went to them; joining and data not counted.`;
    },
  };
}
