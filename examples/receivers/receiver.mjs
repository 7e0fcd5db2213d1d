// Example receiver for RiskRelay: verifies deliveries, creates one ticket for each, and applies its events.
//
//     WEBHOOK_SECRET=... PORT=9000 node receiver.mjs
//     node receiver.mjs --vectors vectors.json      # run the test vectors
//
// Needs only Node.js 18 or newer. Run it, copy from it, or import { verify } from "./receiver.mjs".

import { createHmac, timingSafeEqual } from "node:crypto";
import { readFileSync, realpathSync } from "node:fs";
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";

const TOLERANCE_S = 300; // allowed difference from the sender's clock
const REMEMBERED_S = 2 * TOLERANCE_S; // a request can be replayed for as long as its timestamp is accepted
const MAX_REMEMBERED = 100_000; // memory limit: beyond it the oldest entries are dropped
const MAX_BODY_BYTES = 4 * 1024 * 1024;

// Status of a ticket after each event; null: unchanged. A target only gets the events in its setting `events`.
const EVENTS = new Map([
  ["ticket.updated", null],
  ["ticket.fixed", "closed"],
  ["ticket.reopened", "open"],
  ["ticket.redact", null],
]);

// Return whether a request is authentic, recent and not a replay. `secrets` has several entries during a rotation;
// `headers` has lower-case names, as in Node.js; `body` is a Buffer of the raw bytes, read before any parsing; `now` is in
// unix seconds. `isReplay(nonce)` stores a nonce and returns whether it was known; it is called last, so that forged
// requests cannot fill the memory.
export function verify(secrets, headers, body, now, isReplay) {
  const timestamp = headers["x-service-timestamp"] ?? "";
  const nonce = headers["x-service-nonce"] ?? "";
  // Without these checks, signed bytes could be moved between timestamp, nonce and body.
  if (!/^[0-9]{1,15}$/.test(timestamp) || !/^[0-9A-Fa-f]{32}$/.test(nonce)) return false;
  if (Math.abs(now - Number(timestamp)) > TOLERANCE_S) return false;
  const given = Buffer.from(headers["x-service-signature"] ?? "");
  const matches = secrets.map((secret) => {
    const digest = createHmac("sha256", secret).update(`${timestamp}.${nonce}.`).update(body).digest("hex");
    const expected = Buffer.from(`sha256=${digest}`);
    return given.length === expected.length && timingSafeEqual(given, expected);
  });
  return matches.includes(true) && !isReplay(nonce);
}

// Handles requests. Keeps its state in memory; a production receiver keeps it in its database.
export class Receiver {
  constructor(secrets, ratePerMinute = 0) {
    this.secrets = secrets;
    this.ratePerMinute = ratePerMinute; // 0 is no limit
    this.nonces = new Map(); // nonce to time of receipt
    this.letThrough = []; // times of accepted requests in the last minute
    this.tickets = new Map(); // by Idempotency-Key, the export's id; in a database, a unique column next to the ticket
    this.events = new Map(); // Idempotency-Key of an event to time of receipt
    this.lastNumber = 0;
  }

  // Handle one request; 2xx confirms that the ticket is stored.
  receive(headers, body, now) {
    if (!verify(this.secrets, headers, body, now, (nonce) => this.isReplay(nonce, now))) {
      return { status: 401, body: { code: "WEBHOOK_SIGNATURE_INVALID" } };
    }
    const waitS = this.waitS(now);
    if (waitS > 0) return { status: 429, body: { code: "WEBHOOK_RATE_LIMITED" }, headers: { "Retry-After": String(waitS) } };
    const event = readEvent(body);
    const key = headers["idempotency-key"];
    if (event?.type === "target.ping") return { status: 200, body: {} }; // a test event: create no ticket
    if (isTicketEvent(event) && key) {
      this.apply(key, event, now);
      return { status: 200, body: {} };
    }
    if (event?.type !== "ticket.export" || typeof event.ticket?.title !== "string" || !key) {
      return { status: 422, body: { code: "WEBHOOK_VALIDATION_FAILED" } };
    }
    const id = this.ticketFor(key, event.ticket);
    return { status: 200, body: { id, url: `https://tracker.example/${id}` } };
  }

  isReplay(nonce, now) {
    for (const [oldest, at] of this.nonces) {
      if (at >= now - REMEMBERED_S) break;
      this.nonces.delete(oldest);
    }
    if (this.nonces.has(nonce)) return true;
    remember(this.nonces, nonce, now);
    return false;
  }

  waitS(now) {
    this.letThrough = this.letThrough.filter((at) => at > now - 60);
    if (this.ratePerMinute && this.letThrough.length >= this.ratePerMinute) return this.letThrough[0] + 60 - now;
    if (this.ratePerMinute) this.letThrough.push(now);
    return 0;
  }

  // Create a ticket once per key: a delivery is repeated if its response was lost.
  ticketFor(key, ticket) {
    if (!this.tickets.has(key)) {
      const stored = { id: `T-${++this.lastNumber}`, status: "open", texts: [ticket.title] };
      remember(this.tickets, key, stored); // pass `ticket` to your tracker here
    }
    return this.tickets.get(key).id;
  }

  // Apply an event to its ticket once. Ignore an event whose ticket never arrived: a retry would not change that.
  apply(key, { type, export: { id }, change }, now) {
    const ticket = this.tickets.get(id);
    if (!ticket || this.events.has(key)) return;
    if (type === "ticket.redact") {
      // Erase the content in your tracker, too, before the 2xx. The id and this key remain as the proof.
      Object.assign(ticket, { texts: [], erasedBy: key });
    } else {
      ticket.status = EVENTS.get(type) ?? ticket.status;
      ticket.texts.push(`${change.places_added} places added, ${change.places_fixed} fixed, ${change.places_open} open`);
    }
    remember(this.events, key, now);
  }
}

function remember(memory, name, value) {
  memory.set(name, value);
  if (memory.size > MAX_REMEMBERED) memory.delete(memory.keys().next().value);
}

function readEvent(body) {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body));
  } catch {
    return null;
  }
}

function isTicketEvent(event) {
  const isChange = typeof event?.change === "object" && event.change !== null && !Array.isArray(event.change);
  return EVENTS.has(event?.type) && typeof event.export?.id === "string" && isChange;
}

function serve(receiver, port) {
  const server = createServer({ requestTimeout: 30_000, headersTimeout: 30_000 }, (request, response) => {
    const respond = ({ status, body, headers = {} }) => {
      response.writeHead(status, { "Content-Type": "application/json", ...headers }).end(JSON.stringify(body));
    };
    const chunks = [];
    let size = 0;
    request.on("data", (chunk) => {
      size += chunk.length;
      if (size <= MAX_BODY_BYTES) {
        chunks.push(chunk);
      } else if (!response.headersSent) {
        respond({ status: 413, body: { code: "WEBHOOK_VALIDATION_FAILED" }, headers: { Connection: "close" } });
      }
    });
    request.on("end", () => {
      if (response.headersSent) return;
      if (request.method !== "POST") respond({ status: 405, body: {}, headers: { Allow: "POST" } });
      else respond(receiver.receive(request.headers, Buffer.concat(chunks), Math.floor(Date.now() / 1000)));
    });
  });
  server.listen(port, "127.0.0.1", () => console.log(`Listening on http://127.0.0.1:${server.address().port}`));
}

// Return whether one test vector gets the expected response.
function passes(vector) {
  const receiver = new Receiver(vector.secrets, vector.rate_per_minute);
  receiver.nonces = new Map(vector.seen.map((nonce) => [nonce, vector.now]));
  receiver.letThrough = vector.earlier;
  receiver.events = new Map(vector.processed.map((key) => [key, vector.now]));
  for (const [key, { status, texts }] of Object.entries(vector.tickets)) {
    receiver.tickets.set(key, { id: "T-0", status, texts: Array(texts).fill("") });
  }
  const headers = {};
  for (const [name, value] of vector.headers) {
    const before = headers[name.toLowerCase()];
    headers[name.toLowerCase()] = before === undefined ? value : `${before}, ${value}`;
  }
  const response = receiver.receive(headers, Buffer.from(vector.body_base64, "base64"), vector.now);
  const { status, code, ticket } = vector.expect;
  const after = [...receiver.tickets].map(([key, each]) => [key, { status: each.status, texts: each.texts.length }]);
  const right = response.status === status && (response.body.code ?? null) === code && "id" in response.body === ticket;
  const isStored = JSON.stringify(Object.fromEntries(after)) === JSON.stringify(vector.after);
  return right && isStored && (response.headers?.["Retry-After"] !== undefined) === (status === 429);
}

function runVectors(path) {
  const { vectors } = JSON.parse(readFileSync(path, "utf8"));
  const failed = vectors.filter((vector) => !passes(vector));
  for (const { name } of failed) console.log(`failed: ${name}`);
  console.log(`${vectors.length - failed.length} passed, ${failed.length} failed`);
  process.exitCode = failed.length ? 1 : 0;
}

function main() {
  if (process.argv[2] === "--vectors") return runVectors(process.argv[3]);
  const { WEBHOOK_SECRET, WEBHOOK_SECRET_OLD, PORT = "9000", RATE_PER_MINUTE = "0" } = process.env;
  const secrets = [WEBHOOK_SECRET, WEBHOOK_SECRET_OLD].filter(Boolean);
  if (!secrets.length) {
    console.error("Set WEBHOOK_SECRET to the secret that deliveries are signed with.");
    process.exitCode = 2;
    return;
  }
  serve(new Receiver(secrets, Number(RATE_PER_MINUTE)), Number(PORT));
}

// Do not start a server when this file is imported.
if (process.argv[1] && import.meta.url === pathToFileURL(realpathSync(process.argv[1])).href) main();
