// The README's example, run as it stands, and its pictures.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { root } from "../../scripts/lib.mjs";
import { serve } from "../../scripts/start.mjs";
import { launch, onPage } from "./browser.mjs";

let browser, server;
before(async () => {
  server = await serve(root, 0);
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await server?.close();
});

test("the README's example trains and prints its adapter", () =>
  onPage(browser, `${server.url}tests/e2e/bare.html`, {}, async (page) => {
    const [, code] = /```js\n([\s\S]*?)```/.exec(readFileSync(join(root, "README.md"), "utf8"));
    const source = code.replace('from "lora-webgpu"', 'from "/dist/index.js"').replaceAll("console.log(", "printed.push(");
    assert.notEqual(source, code);
    const printed = await page.evaluate(async (text) => {
      globalThis.printed = [];
      await import(URL.createObjectURL(new Blob([text.replace("/dist/", new URL("/dist/", location.href))], { type: "text/javascript" })));
      return globalThis.printed.map((value) => (typeof value === "number" ? value : value.length));
    }, source);
    const [losses, sizes] = [printed.slice(0, -2).filter((_, i) => i % 2 === 1), printed.slice(-2)];
    assert.ok(losses.length > 1 && losses.at(-1) < losses[0], `${losses}`);
    assert.deepEqual(sizes, [8 * 64, 96 * 8]);
  }));

test("the README shows each page of the site, light and dark, in less than 600 KB that no package has", () => {
  const readme = readFileSync(join(root, "README.md"), "utf8");
  const shown = Array.from(readme.matchAll(/docs\/images\/([\w-]+\.webp)/g), ([, name]) => name).sort();
  assert.deepEqual(shown, ["check", "layer", "model"].flatMap((page) => [`${page}-dark.webp`, `${page}-light.webp`]));
  assert.deepEqual(readdirSync(join(root, "docs/images")).sort(), shown);
  const pictures = shown.map((name) => readFileSync(join(root, "docs/images", name)));
  for (const bytes of pictures) assert.equal(bytes.toString("latin1", 0, 4) + bytes.toString("latin1", 8, 12), "RIFFWEBP");
  assert.ok(pictures.reduce((sum, { length }) => sum + length, 0) < 600_000);
  assert.ok(!JSON.parse(readFileSync(join(root, "package.json"), "utf8")).files.some((name) => name.startsWith("docs")));
  assert.match(readFileSync(join(root, "Cargo.toml"), "utf8"), /^include = .*"\/docs\/\*\.md"/m);
});
