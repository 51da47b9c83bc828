import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";
import { PAGES, staticSite } from "./static-site.js";
import { wordsInPages } from "./words-in-pages.js";

/** Pages at the root of a syncer; all other files have a hash in their name and may be cached for ever. */
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
    // `npm run dev` together with a syncer: pages from here, the run from there.
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
        // Absolute paths, so that the build works from any folder.
        input: (isStatic ? PAGES : OF_SYNCER).map(whole),
        // The package is a separate file. Bundled with the training page, it would load that page's script in
        // the dashboard, which only generates text with it.
        output: { codeSplitting: { groups: [{ name: "learner", test: /[\\/]package[\\/]dist[\\/]/ }] } },
      },
    },
  };
});
