// A syncer with canned answers that tests choose, in front of the built pages.

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join } from "node:path";
import { root } from "./support.mjs";

const kinds = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };

/** Returns a learner in the form of `/v1/learners`. */
export function learner(id, more = {}) {
  return {
    learner: id,
    name: `islet ${id}`,
    device: "cpu, 1 thread",
    kind: "cpu",
    state: "training",
    live: true,
    connectedS: 60,
    stepMs: 100,
    batch: 8,
    answerMs: 130,
    thin: false,
    tokensPerS: 500,
    loss: 3.5,
    tokensTrained: 1_000,
    tokensMerged: 900,
    mergedShare: 0.5,
    updates: 4,
    fates: { merged: 4, late: {}, refused: {} },
    share: 1,
    trust: "trusted",
    doubt: null,
    returnsS: null,
    ...more,
  };
}

/** Returns a round in the form of `/v1/rounds`: two of three answered, quorum at the first, merged. */
export function round(id, more = {}) {
  const answer = { tokens: 512, fate: "merged", late: null, refused: null };
  return {
    round: String(id),
    fragment: 2,
    invited: 3,
    launchedMs: 1_000 * id,
    answered: 2,
    answers: [
      { ...answer, learner: 1, afterMs: 10 },
      { ...answer, learner: 2, afterMs: 30, fate: "late", late: "round_over" },
    ],
    quorumMs: 10,
    graceMs: 15,
    graceEndMs: 25,
    decision: { decision: "merge", why: "graceOver" },
    mergeStartMs: 25,
    mergeEndMs: 28,
    merged: { version: String(id), updates: 1, tokens: 512, norm: 1, collectMs: 25, syncMs: 3 },
    ...more,
  };
}

const status = {
  bitsPerParamUp: 4.1,
  bitsPerParamDown: 4.2,
  tokensPerS: 1_000,
  valLossFirst: 5.5,
  valLossLast: 3.25,
  sample: "",
  learners: [],
  learnersByState: { joining: 0, training: 3, paused: 1, hidden: 0, starved: 0, held: 0, away: 0 },
  sockets: 4,
  disk: {
    tapeFault: null,
    snapshotFault: null,
    decisions: 90,
    updateBytes: 9_000,
    snapshotAgeS: 3,
    servicesFault: null,
  },
  alerts: [],
  lastMergeAgeS: 2,
  uptimeS: 60,
  runS: 60,
  run: "00",
  layout: "00",
  params: 117_056,
  connected: 4,
  live: 3,
  learnersTotal: 4,
  tokensTrained: 1_000,
  tokensMerged: 900,
  participation: 0.9,
  rounds: 12,
  roundsAbandoned: 0,
  roundsOpen: 1,
  updates: 30,
  updatesPending: 0,
  fates: { merged: 30, late: {}, refused: {} },
  epoch: 0,
  regrantedWindows: 0,
  timing: { stepMs: 100, launchMs: 400, quorumMs: 10, syncMs: 3 },
  graceMs: 15,
  trainLoss: 3.4,
  fragments: [],
  paused: false,
  finishing: false,
  finished: false,
  preset: "tiny",
  init: null,
  corpus: "a text",
  corpusTokens: 10_000,
  bytesPerToken: 1,
  entropyFloor: 0.4,
  totalTokens: 100_000,
  inviteRequired: false,
  classroom: false,
  links: [],
  bytesUp: 5_000,
  bytesDown: 6_000,
  valuesUp: 1,
  valuesDown: 1,
  joinBytes: 0,
  dataBytes: 0,
};

/** Returns a line of the run's log in the form of `/v1/log`, with this age in seconds. */
export function line(seq, ageS, more = {}) {
  return { seq, atMs: NOW_MS - 1_000 * ageS, kind: "joined", learner: 1, name: "anna", text: "anna joined.", ...more };
}

/** The canned syncer's clock. */
const NOW_MS = 1_800_000_000_000;

const series = {
  spanS: 1,
  timeS: [0, 1, 2],
  trainLoss: [null, 5, 4],
  tokensPerS: [0, 600, 700],
  participation: [1, 0.5, 0.8],
  live: [0, 3, 3],
  bytesUp: [0, 100, 300],
  bytesDown: [0, 100, 300],
  tokensMerged: [0, 100, 200],
  rounds: [0, 1, 2],
  evaluations: [{ tokensMerged: 0, rounds: 0, loss: 5.5, timeS: 0 }],
  samples: [{ timeS: 0, tokensMerged: 0, loss: 5.5, text: "once" }],
};

function setting(key, value, more = {}) {
  const plain = { group: "Training", about: `What ${key} means`, changeable: false, choices: [] };
  return { key, value, ...plain, ...more };
}

const settings = [
  setting("preset", "small"),
  setting("lr", null),
  setting("min-quorum", "1", { changeable: true, group: "Exchange" }),
  setting("merge", "radial", { changeable: true, group: "Exchange", choices: ["radial", "mean"] }),
];

/** Starts one. `asked` lists requests, `orders` their bodies; `say` sends an event to all; `hangUp` cuts streams. */
export async function startCanned() {
  const canned = {
    status,
    series,
    learners: [learner(1)],
    rounds: [round(11), round(12)],
    log: [line(1, 3)],
    settings,
    runs: [],
    token: "the token",
    asked: [],
    orders: [],
    refusing: false,
    silent: false,
    logView: (entries) => ({ nowMs: NOW_MS, entries }),
    say: (name, data) => streams.forEach((stream) => stream.write(event(name, data))),
    hangUp: () => streams.forEach((stream) => stream.destroy()),
    streams: () => streams.size,
    stop: () => {
      server.closeAllConnections();
      return new Promise((closed) => server.close(closed));
    },
  };
  const streams = new Set();
  const server = createServer(async (request, response) => {
    const url = new URL(request.url, "http://localhost");
    const json = (value) => response.setHeader("content-type", "application/json").end(JSON.stringify(value));
    canned.asked.push(`${request.method} ${url.pathname}${url.search}`);
    // A hanging syncer accepts requests and does not answer.
    if (canned.silent) return;
    if (url.pathname === "/v1/status") return json(canned.status);
    if (url.pathname === "/v1/runs") return json({ runs: canned.runs, several: true });
    if (url.pathname === "/v1/series") return json(canned.series);
    if (url.pathname === "/v1/settings") return json({ settings: canned.settings });
    if (url.pathname === "/v1/log") return json(canned.logView(canned.log));
    if (url.pathname === "/v1/rounds") return json({ nowMs: 13_000, rounds: canned.rounds });
    if (url.pathname === "/v1/learners") {
      const [offset, limit] = ["offset", "limit"].map((name) => Number(url.searchParams.get(name)));
      const learners = canned.learners.slice(offset, offset + limit);
      return json({ total: canned.learners.length, offset, sort: url.searchParams.get("sort"), learners });
    }
    if (url.pathname.startsWith("/v1/admin/")) {
      let body = "";
      for await (const part of request) body += part;
      if (body) canned.orders.push([url.pathname, JSON.parse(body)]);
      const known = request.headers.authorization === `Bearer ${canned.token}`;
      return response.writeHead(known ? 202 : 401).end();
    }
    if (url.pathname === "/v1/events") {
      if (canned.refusing) return response.writeHead(503).end();
      response.writeHead(200, { "content-type": "text/event-stream" }).write(event("status", canned.status));
      streams.add(response);
      return response.on("close", () => streams.delete(response));
    }
    const page = { "/": "/index.html", "/dashboard": "/dashboard.html", "/runs": "/runs.html" };
    const path = page[url.pathname] ?? url.pathname;
    try {
      response
        .setHeader("content-type", kinds[extname(path)] ?? "text/plain")
        .end(await readFile(join(root, "dist", path)));
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return Object.assign(canned, { url: `http://127.0.0.1:${server.address().port}/` });
}

function event(name, data) {
  return `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}
