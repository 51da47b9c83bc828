// Faults that keep somebody out, found by axe.
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";

/** What it checks with is ours, not the page's: it goes in before the page's policy counts, as an init script. */
export const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** All of `page`, however slight, in words. */
export async function faults(page) {
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  return violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map((node) => node.html).join(" | ")}`);
}
