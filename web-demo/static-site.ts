/**
 * Builds the lesson, its sheet and the page on data centres for a host without a syncer: `npm run static` fills
 * `dist-static`. With `SITE=https://HOST/` in the environment, shared links to them get a preview picture.
 */
import { readFile } from "node:fs/promises";
import type { HtmlTagDescriptor, Plugin } from "vite";

/** Pages that need no server, and the one that opens first. */
export const PAGES = ["pages/teach.html", "pages/scale.html"];
const FIRST = "teach.html";
const PICTURE = new URL("../.github/lesson.gif", import.meta.url);

/** Removes content that only a syncer serves, and adds a start page and tags for link previews. */
export function staticSite(site: string | undefined): Plugin {
  const base = site === undefined ? undefined : new URL(site);
  return {
    name: "static-site",
    transformIndexHtml: {
      order: "post",
      handler: (html, { filename }) => {
        const page = filename.split("/").at(-1) ?? FIRST;
        return { html: html.replace(/^\s*<a class="of-run".*\n/gm, ""), tags: tagsOf(page, base) };
      },
    },
    // After the plugin that creates the pages.
    generateBundle: {
      order: "post",
      async handler(_, bundle) {
        const first = bundle[FIRST];
        if (first?.type === "asset") this.emitFile({ type: "asset", fileName: "index.html", source: first.source });
        if (base) this.emitFile({ type: "asset", fileName: "preview.gif", source: await readFile(PICTURE) });
      },
    },
  };
}

/** Preview tags of `page`; their addresses must be absolute. */
function tagsOf(page: string, base: URL | undefined): HtmlTagDescriptor[] {
  const meta = (attrs: Record<string, string>): HtmlTagDescriptor => ({ tag: "meta", attrs, injectTo: "head" });
  const tags = [meta({ property: "og:site_name", content: "Archipelago" })];
  if (!base) return [...tags, meta({ name: "twitter:card", content: "summary" })];
  return [
    ...tags,
    meta({ name: "twitter:card", content: "summary_large_image" }),
    meta({ property: "og:url", content: new URL(page, base).href }),
    meta({ property: "og:image", content: new URL("preview.gif", base).href }),
    meta({ property: "og:image:alt", content: "Five islands round a lighthouse; one dies, and the others train on." }),
  ];
}
