/** Contents of the charts. */
import { find } from "../shared/dom.js";
import { bytes, count, duration, nats, percent, plural } from "../shared/format.js";
import { Chart, type Scene } from "./chart.js";
import { type Choice, readChoice, writeChoice } from "./choice.js";
import { perSecond, startOf } from "./columns.js";
import { Controls } from "./controls.js";
import type { Course } from "./course.js";
import type { ChartSpec } from "./plot-options.js";

/** Facts of the run that charts need in addition to its series. */
export interface Facts {
  readonly run: string;
  readonly entropyFloor: number | null;
}

const fromZero = (_: number, max: number): [number, number] => [0, max > 0 ? max * 1.1 : 1];
const plain = (value: number): string => String(Number(value.toPrecision(4)));
/** Removes zeros at the end of a fraction. */
const tidy = (text: string): string => text.replace(/(\.\d*?)0+(?= )/, "$1").replace(/\.(?= )/, "");
const wholePercent = (share: number): string => `${Math.round(share * 100)} %`;

/** Creates charts in `grid` with their controls above; returns a function that redraws all of them. */
export function makeCharts(grid: HTMLElement, course: Course, facts: () => Facts | null): () => void {
  let choice = readChoice(location.search);
  let other: Scene["other"] = null;
  const scene = (): Scene => ({ run: course.view, other, choice, zoom: (shown) => choose({ ...choice, shown }) });
  const floor = () => facts()?.entropyFloor ?? null;
  const charts = [loss(course, floor), speed(course), learners(course), network(course)].map((spec) => {
    const figure = grid.appendChild(document.createElement("figure"));
    figure.className = "card chart";
    return new Chart(figure, spec, scene);
  });
  const refresh = () => {
    controls.show(scene());
    charts.forEach((chart) => chart.refresh());
  };
  const choose = (chosen: Choice) => {
    choice = chosen;
    history.replaceState(history.state, "", location.pathname + writeChoice(choice, location.search) + location.hash);
    refresh();
  };
  const controls = new Controls(find("charts-controls", HTMLElement), charts, {
    run: () => facts()?.run ?? "",
    choose,
    compare: (found) => {
      other = found;
      refresh();
    },
  });
  return refresh;
}

function loss(course: Course, floor: () => number | null): ChartSpec {
  const line = { format: nats, tick: plain };
  return {
    title: "How badly it guesses",
    more:
      "This is the loss in nats per token: the mean of −ln of the chance that the model gave to what came next. Unseen " +
      "is the held-out text, on which no learner trains; the other is the text that they train on.",
    name: "Loss",
    unit: "nats per token",
    lines: [
      {
        ...line,
        label: "unseen text",
        color: "line-1",
        dots: true,
        rows: "evaluations",
        values: ({ evaluations }) => evaluations.map(({ loss }) => loss),
      },
      { ...line, label: "training text", color: "line-2", noisy: true, values: ({ trainLoss }) => trainLoss },
      {
        ...line,
        label: "no model can go below",
        color: "line-quiet",
        dashed: true,
        optional: true,
        alone: true,
        values: ({ timeS }) => timeS.map(() => floor()),
      },
    ],
    range: (min, max) => {
      const pad = Math.max(0.05, (max - min) * 0.08);
      return [Math.max(0, min - pad), max + pad];
    },
    mayBeLog: true,
    summary: () => {
      const { evaluations } = course.view;
      const first = evaluations[0];
      const last = evaluations.at(-1);
      if (!first || !last) return unmeasured(course);
      const least = floor();
      const below = least === null ? "" : ` No model can go below ${nats(least)}.`;
      if (first === last) return `${nats(last.loss)} on text that it has never seen: lower is better.${below}`;
      const after = duration(last.timeS - startOf(course.view));
      return `From ${nats(first.loss)} to ${nats(last.loss)} in ${after}, on text that it has never seen: lower is better.${below}`;
    },
  };
}

/** Returns the text in place of an empty chart. */
function unmeasured({ isKnown }: Course): string {
  return isKnown ? "Nothing measured yet." : "…";
}

function speed(course: Course): ChartSpec {
  return {
    title: "Speed",
    name: "Speed",
    unit: "tokens a second",
    lines: [
      {
        label: "tokens a second",
        color: "line-1",
        format: count,
        tick: (value) => tidy(count(value)),
        noisy: true,
        values: ({ tokensPerS }) => tokensPerS,
      },
    ],
    range: fromZero,
    summary: () => {
      const { tokensPerS } = course.view;
      const last = tokensPerS.at(-1);
      if (last === undefined) return unmeasured(course);
      return `${count(last)} tokens a second at the end, ${count(tokensPerS.reduce((most, one) => Math.max(most, one), 0))} at most.`;
    },
  };
}

function learners(course: Course): ChartSpec {
  return {
    title: "Participation and learners",
    name: "Participation",
    unit: "tokens merged of those trained",
    unitRight: "learners in rounds",
    lines: [
      {
        label: "tokens merged of those trained",
        color: "line-1",
        format: percent,
        tick: wholePercent,
        values: ({ participation }) => participation,
      },
      {
        label: "learners in rounds",
        color: "line-2",
        format: count,
        tick: (value) => tidy(count(value)),
        right: true,
        values: ({ live }) => live,
      },
    ],
    range: () => [0, 1],
    rangeRight: fromZero,
    summary: () => {
      const { participation, live, tokensMerged } = course.view;
      const share = participation.at(-1);
      if (share === undefined) return unmeasured(course);
      if (tokensMerged.at(-1) === 0) return "Nothing is merged yet.";
      return `${percent(share)} of all trained tokens are merged; ${plural(Math.round(live.at(-1) ?? 0), "learner takes", "learners take")} part in rounds, ${count(live.reduce((most, one) => Math.max(most, one), 0))} at most.`;
    },
  };
}

function network(course: Course): ChartSpec {
  const format = (value: number) => `${bytes(value)}/s`;
  const line = { format, tick: (value: number) => tidy(format(value)), noisy: true };
  return {
    title: "Network",
    name: "Network",
    unit: "bytes a second",
    lines: [
      {
        ...line,
        label: "from learners",
        color: "line-1",
        values: ({ timeS, bytesUp }) => perSecond(timeS, bytesUp),
      },
      {
        ...line,
        label: "to learners",
        color: "line-2",
        dashed: true,
        values: ({ timeS, bytesDown }) => perSecond(timeS, bytesDown),
      },
    ],
    range: fromZero,
    summary: () => {
      const { bytesUp, bytesDown } = course.view;
      return `${bytes(bytesUp.at(-1) ?? 0)} came from learners so far, ${bytes(bytesDown.at(-1) ?? 0)} went to them; joining and data not counted.`;
    },
  };
}
