// Verifies one request, read from standard input as JSON, with the reference library of Standard Webhooks for JavaScript.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const { Webhook } = createRequire(`${process.argv[2]}/`)("standardwebhooks");
const { secret, headers, body } = JSON.parse(readFileSync(0, "utf8"));
const lowered = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));
try {
  new Webhook(secret).verify(body, lowered);
} catch (error) {
  console.log(String(error));
  process.exit(1);
}
