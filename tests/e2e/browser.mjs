// What the end-to-end tests share: a Chromium with WebGPU in software, and pages that tolerate no error.
import assert from "node:assert/strict";
import { chromium } from "playwright-core";
import { chrome } from "../../scripts/lib.mjs";
import { record } from "../../scripts/reliability.mjs";

// The last ones keep Chromium from calling home.
const ARGS = [
  "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--no-sandbox", "--disable-dev-shm-usage",
  "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-default-apps",
  "--disable-domain-reliability", "--disable-extensions", "--disable-sync", "--disable-quic", "--metrics-recording-only",
];

function options() {
  const executablePath = chrome();
  assert.ok(executablePath, "no Chromium: install it, or name one in CHROME");
  return { executablePath, args: ARGS };
}

export function launch() {
  return chromium.launch(options());
}

/** A browser whose storage is a folder on the disk, as users have it. */
export function launchIn(folder) {
  return chromium.launchPersistentContext(folder, options());
}

/**
 * Runs `body(page, errors)` on a page of its own, at `url`. Whatever the page logs as an error or warning, throws, or asks of another
 * host lands in `errors`, which must be empty in the end.
 */
export async function onPage(browser, url, { init, viewport = { width: 1600, height: 900 }, ...context } = {}, body) {
  const own = await browser.newContext({ viewport, ...context });
  const page = await own.newPage();
  page.setDefaultTimeout(120_000);
  const errors = [];
  page.on("console", (message) => { if (["error", "warning"].includes(message.type())) errors.push(message.text()); });
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("request", (request) => { if (!/^(data|blob):/.test(request.url()) && !request.url().startsWith(new URL("/", url).href)) errors.push(`request to ${request.url()}`); });
  // What a navigation or the page's end broke off is no failure.
  page.on("requestfailed", (request) => { if (request.failure()?.errorText !== "net::ERR_ABORTED") errors.push(`failed: ${request.url()}`); });
  page.on("response", (response) => { if (response.status() >= 400) errors.push(`${response.status()}: ${response.url()}`); });
  try {
    if (init) await page.addInitScript(init);
    await page.goto(url);
    await body(page, errors);
    assert.deepEqual(errors, []);
  } finally {
    await own.close();
  }
}

/** Prints figures, and keeps them for docs/reliability.md where that is asked for: npm run test:soak. */
export function figures(name, values) {
  console.log(`# ${name}: ${JSON.stringify(values)}`);
  if (process.env.LORA_RECORD) record("runs", { [name]: values });
}
