// Verifies the delivery that is on standard input, and prints its type, which of three changed deliveries are refused, and the delivery as a CloudEvents event.
import { readFileSync } from "node:fs";
import { HTTP } from "cloudevents";
import { Webhook } from "standardwebhooks";

const { secret, headers, body } = JSON.parse(readFileSync(0, "utf8"));
const { type } = new Webhook(secret).verify(body, headers);

const changed = {
  body: [secret, body + " ", headers],
  time: [secret, body, { ...headers, "webhook-timestamp": String(Number(headers["webhook-timestamp"]) + 1) }],
  secret: ["whsec_" + Buffer.alloc(24, 7).toString("base64"), body, headers],
};
const refused = Object.keys(changed).filter((name) => {
  const [by, text, head] = changed[name];
  try {
    new Webhook(by).verify(text, head);
    return false;
  } catch {
    return true;
  }
});
const event = HTTP.toEvent({ headers: { "content-type": "application/cloudevents+json" }, body });
event.validate();
console.log(JSON.stringify({ type, refused, event }));
