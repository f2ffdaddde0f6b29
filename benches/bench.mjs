// npm run bench: one LoRA training step in headless Chromium, each shape in a browser of its own with empty caches.
// Options: --json writes one JSON line a shape; --gpu uses the machine's own adapter instead of the software one.
import { build } from "../scripts/build.mjs";
import { chrome, main, root, say, stop } from "../scripts/lib.mjs";
import { setup } from "../scripts/setup.mjs";
import { serve } from "../scripts/start.mjs";

const SHAPES = [
  [1, 2560, 2560, 8],
  [1, 2560, 640, 8],
  [128, 512, 512, 8],
  [512, 2048, 2048, 16],
];
const json = process.argv.includes("--json");
const adapter = process.argv.includes("--gpu")
  ? ["--enable-features=Vulkan", "--use-angle=vulkan", "--ignore-gpu-blocklist"]
  : ["--use-webgpu-adapter=swiftshader"];
const FLAGS = ["--enable-unsafe-webgpu", ...adapter, "--no-sandbox", "--disable-background-networking", "--disable-component-update", "--no-first-run"];

main(async () => {
  await setup("test");
  await build();
  const { chromium } = await import("playwright-core");
  const { url, close } = await serve(root, 0);
  const kib = (bytes) => `${(bytes / 1024).toFixed(1)} KiB`;
  const ms = (time) => `${time.toFixed(1)} ms`;
  try {
    let head = false;
    for (const [tokens, inFeatures, outFeatures, rank] of SHAPES) {
      const browser = await chromium.launch({ executablePath: chrome(), args: FLAGS });
      const page = await browser.newPage();
      await page.goto(`${url}benches/page.html`);
      await page.waitForFunction("window.bench");
      const steps = tokens > 128 ? 5 : 20;
      const r = await page.evaluate((options) => window.bench(options), { tokens, inFeatures, outFeatures, rank, steps });
      if (!Number.isFinite(r.loss)) stop(`The loss of ${[tokens, inFeatures, outFeatures, rank]} is ${r.loss}.`);
      if (json) {
        console.log(JSON.stringify({ tokens, inFeatures, outFeatures, rank, steps, chromium: browser.version(), flags: FLAGS, ...r }));
      } else {
        if (!head) {
          say(`Chromium ${browser.version()}, adapter ${[r.info.vendor, r.info.architecture, r.info.description].filter(Boolean).join(" ")}, flags ${FLAGS.join(" ")}`);
          say("One step: forward, mean squared error, backward with the input gradient, AdamW; new inputs each step; no read-back.\n");
          console.log("tokens, in, out, rank    first step   median step (min to max)         dispatches submits  uploaded a step (inputs)       made  GPU memory");
          head = true;
        }
        console.log(
          [tokens, inFeatures, outFeatures, rank].join(", ").padEnd(24),
          ms(r.first).padStart(11),
          `${ms(r.median)} (${ms(r.min)} to ${ms(r.max)})`.padStart(34),
          String(r.dispatches).padStart(11),
          String(r.submits).padStart(7),
          `${kib(r.uploaded)} (${kib(r.inputs)})`.padStart(26),
          String(r.created).padStart(10),
          `${kib(r.bytes)} in ${r.buffers}`.padStart(18),
        );
      }
      await browser.close();
    }
    if (!json) console.log("\n«first step» counts from an instantiated wasm: device, uploads, compilation. «made»: buffers, bind groups and pipelines made a step.");
  } finally {
    await close();
  }
});
