import { defineConfig } from "vite";

/** Pages at the root of a syncer; everything beside them has a hash in its name and may be cached for ever. */
export default defineConfig({
  root: "pages",
  base: "./",
  publicDir: false,
  // `npm run dev` beside a syncer: pages from here, the run from there.
  server: { proxy: { "/v1": { target: "http://127.0.0.1:7700", ws: true } } },
  worker: { format: "es" },
  build: {
    outDir: "../dist",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    rollupOptions: { input: ["pages/index.html", "pages/dashboard.html", "pages/teach.html", "pages/scale.html"] },
  },
});
