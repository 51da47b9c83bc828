/** The chapters in order, and the answers that their runs give. */
import { load } from "./support.mjs";

const { CHAPTERS } = await load("teach/guide/chapters/index.ts");

export const ANSWERS = Object.fromEntries(CHAPTERS.map(({ id, usual }) => [id, usual]));
