import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";
import { PAGES, staticSite } from "./static-site.js";
import { wordsInPages } from "./words-in-pages.js";

/** Pages at the root of a syncer; everything beside them has a hash in its name and may be cached for ever. */
const OF_SYNCER = [
  "pages/index.html",
  "pages/dashboard.html",
  "pages/teach.html",
  "pages/scale.html",
  "pages/runs.html",
  "pages/missing.html",
];

const whole = (path: string): string => fileURLToPath(new URL(path, import.meta.url));

export default defineConfig(({ mode }) => {
  const isStatic = mode === "static";
  return {
    root: "pages",
    base: "./",
    publicDir: false,
    // `npm run dev` beside a syncer: pages from here, the run from there.
    server: { proxy: { "/v1": { target: "http://127.0.0.1:7700", ws: true } } },
    plugins: [wordsInPages(), ...(isStatic ? [staticSite(process.env["SITE"])] : [])],
    worker: { format: "es" },
    build: {
      outDir: isStatic ? "../dist-static" : "../dist",
      emptyOutDir: true,
      target: "es2022",
      assetsInlineLimit: 0,
      modulePreload: { polyfill: false },
      rollupOptions: {
        // Whole paths: whoever builds may stand anywhere.
        input: (isStatic ? PAGES : OF_SYNCER).map(whole),
        // The package is a file of its own. As a part of the page that trains it would bring that page's script along to
        // the dashboard, which only writes with it.
        output: { codeSplitting: { groups: [{ name: "learner", test: /[\\/]package[\\/]dist[\\/]/ }] } },
      },
    },
  };
});
