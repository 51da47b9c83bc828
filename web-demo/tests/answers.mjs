/** The chapters in their order, and which answer their runs give. */
import { load } from "./support.mjs";

const { CHAPTERS } = await load("teach/guide/chapters/index.ts");

export const ANSWERS = Object.fromEntries(CHAPTERS.map(({ id, usual }) => [id, usual]));
