// npm run screenshots: the README's pictures, taken of the site: docs/images/*.webp. -- check: of that page alone; --built: as it is built.
import { mkdirSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { launch } from "../tests/e2e/browser.mjs";
import { build } from "./build.mjs";
import { main, root, say } from "./lib.mjs";
import { serve } from "./start.mjs";

const folder = join(root, "docs/images");
const state = (page, ...names) => page.waitForFunction((names) => names.includes(document.documentElement.dataset.state), names, { polling: 50, timeout: 0 });

// What is done on a page before its picture is taken.
const PAGES = {
  async layer(page) {
    await page.click("#train");
    await page.waitForFunction(() => loraDemo.snapshot().step > 400, undefined, { polling: 50, timeout: 0 });
    await page.click("#train");
    await state(page, "paused");
  },
  async model(page) {
    await page.evaluate(() => { for (const fold of document.querySelectorAll("#settings details")) fold.open = true; });
    for (const [name, value] of Object.entries({ steps: 40, length: 64, every: 10 })) await page.fill(`[name=${name}]`, String(value));
    await page.evaluate(() => { for (const fold of document.querySelectorAll("#settings details")) fold.open = false; });
    await page.fill("#prompt", "Day 1.");
    await page.click("#train");
    await state(page, "training");
    await state(page, "ready");
  },
  async check(page) {
    await page.click("#start");
    await state(page, "done");
  },
};

main(async () => {
  const only = process.argv.slice(2).filter((name) => name in PAGES);
  if (!process.argv.includes("--built")) await build();
  mkdirSync(folder, { recursive: true });
  const server = await serve(join(root, "www/dist"), 0), browser = await launch();
  try {
    for (const [name, act] of Object.entries(PAGES)) {
      if (only.length && !only.includes(name)) continue;
      const page = await browser.newPage({ viewport: { width: 1440, height: 860 } });
      await page.goto(server.url + (name === "layer" ? "" : `${name}.html`));
      await state(page, "ready", "writing");
      await act(page);
      await page.mouse.move(0, 0);
      await page.evaluate(() => document.activeElement.blur());
      const session = await page.context().newCDPSession(page);
      for (const colorScheme of ["light", "dark"]) {
        await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
        await page.evaluate(() => new Promise((done) => { requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done))); }));
        const { data } = await session.send("Page.captureScreenshot", { format: "webp", quality: 80 });
        const file = join(folder, `${name}-${colorScheme}.webp`);
        writeFileSync(file, Buffer.from(data, "base64"));
        say(`${file}: ${Math.ceil(statSync(file).size / 1000)} KB`);
      }
      await page.close();
    }
  } finally {
    await browser.close();
    await server.close();
  }
});
