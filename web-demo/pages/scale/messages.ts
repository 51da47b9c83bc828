/** Messages between the page and its Worker. */
import type { ClusterSpec, LinkNeed, Yield } from "../shared/lesson.js";

/** A question, and the place of its answer. */
export type Question =
  | { readonly of: "goodput"; readonly line: number; readonly x: number; readonly spec: ClusterSpec }
  | { readonly of: "link"; readonly line: number; readonly x: number; readonly spec: LinkNeed };

export interface Job {
  readonly job: number;
  readonly questions: readonly Question[];
}

/** Answers to some questions of a job, by the question's index. */
export type Answers =
  | {
      readonly is: "answers";
      readonly job: number;
      readonly answers: readonly (readonly [index: number, value: number, view: Yield | null])[];
      readonly done: boolean;
    }
  | { readonly is: "failed"; readonly why: string };
