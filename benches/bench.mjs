// npm run bench: LoRA training steps in headless Chromium, each run in a browser of its own with empty caches.
// First this package alone at four shapes; then frozen layers of every kind; then the small base model; then the same
// two-layer network beside other libraries, in turns. Options: --json writes JSON lines; --gpu uses the machine's own adapter instead of the software one;
// --alone leaves the other libraries out, which are else installed into benches/peers; --bases runs the frozen layers only.
import { join } from "node:path";
import { build } from "../scripts/build.mjs";
import { chrome, main, root, say, stop } from "../scripts/lib.mjs";
import { packages, setup } from "../scripts/setup.mjs";
import { serve } from "../scripts/start.mjs";

const SHAPES = [
  [1, 2560, 2560, 8],
  [1, 2560, 640, 8],
  [128, 512, 512, 8],
  [512, 2048, 2048, 16],
];
// Of frozen layers: tokens, in, out, products in a submit, measurements.
const FROZEN = [
  [1, 2560, 2560, 3, 3],
  [1, 2560, 6912, 1, 3],
  [256, 2560, 2560, 1, 1],
];
const KINDS = [["f32"], ["f16"], ["bf16"], ["bitlinear", "i2_s"], ["bitlinear", "transformers"], ["q8_0"], ["q4_0"], ["q4_1"]];
// The small base model's training and writing.
const MODEL = { batch: 2, tokens: 64, rank: 8, steps: 3, written: 8 };
// tokens, width, rank of both layers; rounds, steps
const BESIDE = [
  [128, 512, 8, 3, 10],
];
const PEERS = ["lora", "jax", "tfjs"];
const json = process.argv.includes("--json");
const adapter = process.argv.includes("--gpu")
  ? ["--enable-features=Vulkan", "--use-angle=vulkan", "--ignore-gpu-blocklist"]
  : ["--use-webgpu-adapter=swiftshader"];
const FLAGS = ["--enable-unsafe-webgpu", ...adapter, "--no-sandbox", "--disable-background-networking", "--disable-component-update", "--no-first-run"];

const kib = (bytes) => `${(bytes / 1024).toFixed(1)} KiB`;
const ms = (time) => `${time.toFixed(1)} ms`;
const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];

async function inBrowser(url, work) {
  const { chromium } = await import("playwright-core"); // installed by set-up
  const browser = await chromium.launch({ executablePath: chrome(), args: FLAGS });
  try {
    const page = await browser.newPage();
    await page.goto(url);
    return { chromium: browser.version(), ...(await work(page)) };
  } finally {
    await browser.close();
  }
}

async function alone(url) {
  let head = false;
  for (const [tokens, inFeatures, outFeatures, rank] of SHAPES) {
    const steps = tokens > 128 ? 5 : 20;
    const r = await inBrowser(`${url}benches/page.html`, async (page) => {
      await page.waitForFunction("window.bench");
      return page.evaluate((options) => window.bench(options), { tokens, inFeatures, outFeatures, rank, steps });
    });
    if (!Number.isFinite(r.loss)) stop(`The loss of ${[tokens, inFeatures, outFeatures, rank]} is ${r.loss}.`);
    if (json) {
      console.log(JSON.stringify({ tokens, inFeatures, outFeatures, rank, steps, flags: FLAGS, ...r }));
      continue;
    }
    if (!head) {
      say(`Chromium ${r.chromium}, adapter ${[r.adapter.vendor, r.adapter.architecture, r.adapter.description].filter(Boolean).join(" ")}, flags ${FLAGS.join(" ")}`);
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
  if (!json) console.log("\n«first step» counts from an instantiated wasm: device, uploads, compilation. «made»: buffers, bind groups and pipelines made a step.");
}

async function bases(url) {
  await inBrowser(`${url}benches/page.html`, async (page) => {
    await page.waitForFunction("window.frozen");
    let head = json;
    for (const [tokens, inFeatures, outFeatures, count, repeats] of FROZEN) {
      let f32;
      for (const [kind, packing] of KINDS) {
        const r = await page.evaluate((options) => window.frozen(options), { kind, packing, tokens, inFeatures, outFeatures, count, repeats });
        f32 ??= r;
        if (json) {
          console.log(JSON.stringify({ kind, packing, tokens, inFeatures, outFeatures, ...r }));
          continue;
        }
        if (!head) {
          say(`Frozen layers, adapter ${[r.adapter.vendor, r.adapter.architecture, r.adapter.description].filter(Boolean).join(" ")}: a product's time, bytes of the packed weight a second, time as a share of f32's.\n`);
          console.log(`tokens, in, out    ${"kind".padEnd(24)} ${"forward".padStart(32)} ${"transpose".padStart(32)}`);
          head = true;
        }
        const cell = (way) => `${ms(r[way])} ${(r.bytes / r[way] / 1e3).toFixed(0)} MB/s × ${(r[way] / f32[way]).toFixed(2)}`.padStart(32);
        console.log([tokens, inFeatures, outFeatures].join(", ").padEnd(18), [kind, packing].filter(Boolean).join(" ").padEnd(24), cell("forward"), cell("transpose"));
      }
    }
  });
  if (!json) console.log();
}

async function model(url) {
  const r = await inBrowser(`${url}benches/page.html`, async (page) => {
    await page.waitForFunction("window.model");
    return page.evaluate((options) => window.model(options), MODEL);
  });
  if (!r.losses.every(Number.isFinite)) stop(`The base model's losses are ${r.losses}.`);
  if (json) return console.log(JSON.stringify({ ...MODEL, ...r }));
  const [step, token] = [median(r.trained), median(r.generated)];
  say(`The small base model, adapters of rank ${MODEL.rank} on all linear layers, medians:\n`);
  console.log(`training ${MODEL.batch} × ${MODEL.tokens} tokens  ${ms(step)} a step, ${((1000 * MODEL.batch * MODEL.tokens) / step).toFixed(0)} tokens/s, ${r.dispatches} dispatches in ${r.submits.toFixed(1)} submits, ${kib(r.held)} held, ${kib(r.estimated)} estimated`);
  console.log(`writing               ${ms(token)} a token, ${(1000 / token).toFixed(1)} tokens/s\n`);
}

async function beside(url) {
  await packages("the libraries to compare with, which --alone leaves out", join(root, "benches/peers"));
  for (const [tokens, width, rank, rounds, steps] of BESIDE) {
    const found = Object.fromEntries(PEERS.map((lib) => [lib, { first: [], medians: [], losses: [] }]));
    for (let round = 0; round < rounds; round++) {
      for (const lib of PEERS) {
        const r = await inBrowser(`${url}benches/peers/page.html?${new URLSearchParams({ lib, tokens, width, rank, steps })}`, async (page) => {
          await page.waitForFunction("window.__done", null, { timeout: 600_000 });
          return page.evaluate("window.__done");
        });
        if (r.error) stop(`${lib}: ${r.error}`);
        found[lib].first.push(r.firstMs);
        found[lib].medians.push(median(r.times));
        found[lib].losses = r.losses;
      }
    }
    for (const lib of PEERS) {
      const worst = Math.max(...found[lib].losses.map((loss, i) => Math.abs(loss - found.lora.losses[i])));
      if (!(worst <= 1e-4)) stop(`${lib}: its losses differ from ours by ${worst}; the work is not the same.`);
    }
    const summary = Object.fromEntries(PEERS.map((lib) => [lib, { first: median(found[lib].first), step: median(found[lib].medians), medians: found[lib].medians }]));
    if (json) {
      console.log(JSON.stringify({ tokens, width, rank, rounds, steps, ...summary }));
      continue;
    }
    say(`Two LoRA layers with tanh between, mean squared error, Adam, the loss read each step: ${tokens} tokens, width ${width}, rank ${rank}; ${rounds} rounds in turns, losses equal to 1e-4.\n`);
    for (const lib of PEERS) {
      const { first, step, medians } = summary[lib];
      const ratio = (key) => (summary[lib][key] / summary.lora[key]).toFixed(2);
      console.log(
        ({ lora: "lora-webgpu", jax: "jax-js 0.1.25", tfjs: "TensorFlow.js 4.22" })[lib].padEnd(20),
        `first step ${ms(first)} (×${ratio("first")})`.padEnd(34),
        `median step ${ms(step)} (×${ratio("step")}), runs from ${ms(Math.min(...medians))} to ${ms(Math.max(...medians))}`,
      );
    }
    console.log();
  }
}

main(async () => {
  await setup("test");
  await build();
  const { url, close } = await serve(root, 0);
  try {
    if (process.argv.includes("--bases")) return await bases(url);
    await alone(url);
    await bases(url);
    await model(url);
    if (!process.argv.includes("--alone")) await beside(url);
  } finally {
    await close();
  }
});
