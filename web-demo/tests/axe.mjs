// Accessibility faults, found by axe.
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";

/** The checker is ours, not the page's: an init script runs before the page's content policy applies. */
export const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Describes all faults of `page`, of any severity. */
export async function faults(page) {
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  return violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map((node) => node.html).join(" | ")}`);
}
