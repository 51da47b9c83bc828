/** What the page asks its Worker to work out. */
import type { ClusterSpec, LinkNeed, Yield } from "../shared/lesson.js";

/** A question and where its answer belongs. */
export type Question =
  | { readonly of: "goodput"; readonly line: number; readonly x: number; readonly spec: ClusterSpec }
  | { readonly of: "link"; readonly line: number; readonly x: number; readonly spec: LinkNeed };

export interface Job {
  readonly job: number;
  readonly questions: readonly Question[];
}

/** Answers to some of a job's questions, by the question's index. */
export type Answers =
  | {
      readonly is: "answers";
      readonly job: number;
      readonly answers: readonly (readonly [index: number, value: number, view: Yield | null])[];
      readonly done: boolean;
    }
  | { readonly is: "failed"; readonly why: string };
