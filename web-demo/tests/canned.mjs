// A syncer that says what a test wants it to say, with the built pages before it.
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { extname, join } from "node:path";
import { root } from "./support.mjs";

const kinds = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };

/** A learner as `/v1/learners` gives it. */
export function learner(id, more = {}) {
  return {
    learner: id, name: `islet ${id}`, device: "cpu, 1 thread", kind: "cpu", state: "training", live: true, connected_s: 60, step_ms: 100,
    tokens_per_s: 500, loss: 3.5, tokens_trained: 1_000, tokens_merged: 900, merged_share: 0.5, updates: 4,
    fates: { merged: 4, late: {}, refused: {} }, share: 1, returns_s: null, ...more,
  };
}

/** A round as `/v1/rounds` gives it: two of three answered, quorum at the first, merged. */
export function round(id, more = {}) {
  const answer = { tokens: 512, fate: "merged", late: null, refused: null };
  return {
    round: id, fragment: 2, invited: 3, launched_ms: 1_000 * id, answered: 2,
    answers: [{ ...answer, learner: 1, after_ms: 10 }, { ...answer, learner: 2, after_ms: 30, fate: "late", late: "round_over" }],
    quorum_ms: 10, grace_ms: 15, grace_end_ms: 25, decision: { decision: "merge", why: "grace_over" }, merge_start_ms: 25, merge_end_ms: 28,
    merged: { version: id, updates: 1, tokens: 512, norm: 1, collect_ms: 25, sync_ms: 3 }, ...more,
  };
}

const status = {
  bits_per_param_up: 4.1, bits_per_param_down: 4.2, tokens_per_s: 1_000, val_loss_first: 5.5, val_loss_last: 3.25, sample: "",
  learners: [], learners_by_state: { joining: 0, training: 3, paused: 1, hidden: 0, starved: 0, held: 0, away: 0 }, sockets: 4,
  uptime_s: 60, run_s: 60, run: "00", layout: "00", params: 117_056, connected: 4, live: 3, learners_total: 4, tokens_trained: 1_000,
  tokens_merged: 900, participation: 0.9, rounds: 12, rounds_abandoned: 0, rounds_open: 1, updates: 30, updates_pending: 0,
  fates: { merged: 30, late: {}, refused: {} }, epoch: 0, regranted_windows: 0,
  timing: { step_ms: 100, launch_ms: 400, quorum_ms: 10, sync_ms: 3 }, grace_ms: 15, train_loss: 3.4, fragments: [], paused: false,
  finishing: false, preset: "tiny", corpus: "a text", corpus_tokens: 10_000, bytes_per_token: 1, entropy_floor: 0.4, total_tokens: 100_000,
  invite_required: false, classroom: false, links: [], bytes_up: 5_000, bytes_down: 6_000, values_up: 1, values_down: 1, join_bytes: 0, data_bytes: 0,
};

const series = {
  span_s: 1, time_s: [0, 1, 2], train_loss: [null, 5, 4], tokens_per_s: [0, 600, 700], participation: [1, 0.5, 0.8], live: [0, 3, 3],
  bytes_up: [0, 100, 300], bytes_down: [0, 100, 300], tokens_merged: [0, 100, 200], rounds: [0, 1, 2],
  evaluations: [{ tokens_merged: 0, rounds: 0, loss: 5.5, time_s: 0 }], samples: [{ time_s: 0, tokens_merged: 0, loss: 5.5, text: "once" }],
};

/** Starts one. `asked` lists what came in, `orders` what was in it; `say` sends an event to all; `hangUp` ends all streams and takes no more for a while. */
export async function startCanned() {
  const canned = {
    status, series, learners: [learner(1)], rounds: [round(11), round(12)], token: "the token", asked: [], orders: [], refusing: false,
    say: (name, data) => streams.forEach((stream) => stream.write(event(name, data))),
    hangUp: () => streams.forEach((stream) => stream.destroy()),
    streams: () => streams.size,
    stop: () => (server.closeAllConnections(), new Promise((closed) => server.close(closed))),
  };
  const streams = new Set();
  const server = createServer(async (request, response) => {
    const url = new URL(request.url, "http://localhost");
    const json = (value) => response.setHeader("content-type", "application/json").end(JSON.stringify(value));
    canned.asked.push(`${request.method} ${url.pathname}${url.search}`);
    if (url.pathname === "/v1/series") return json(canned.series);
    if (url.pathname === "/v1/rounds") return json({ now_ms: 13_000, rounds: canned.rounds });
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
    const path = url.pathname === "/dashboard" ? "/dashboard.html" : url.pathname;
    try {
      response.setHeader("content-type", kinds[extname(path)] ?? "text/plain").end(await readFile(join(root, "dist", path)));
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
