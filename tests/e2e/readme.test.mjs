// The examples of README and quick start, run as they stand; the README's pictures and commands.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { budgets, root } from "../../scripts/lib.mjs";
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

test("the quick start's language model learns a text, and what it writes then is another", () =>
  onPage(browser, `${server.url}tests/e2e/bare.html`, {}, async (page) => {
    const text = readFileSync(join(root, "docs/quick-start.md"), "utf8");
    const code = Array.from(text.matchAll(/```js\n([\s\S]*?)```/g), ([, code]) => code).find((code) => code.includes("LanguageTrainer"));
    let source = code;
    for (const [words, own] of [
      ['"@huggingface/tokenizers"', `"${server.url}node_modules/@huggingface/tokenizers/dist/tokenizers.mjs"`], ['"lora-webgpu"', `"${server.url}dist/index.js"`],
      ['{ hub: "HuggingFaceTB/SmolLM2-135M" }', `{ folder: "${server.url}www/model" }`],
    ]) source = source.replace(words, own);
    source = source.replaceAll("console.log(", "printed.push(");
    assert.ok(!/hub:|"lora-webgpu"|"@hugging/.test(source));
    const learned = "The tide was low at dawn. We rowed out at six, hauled the nets at nine, and came home wet. ".repeat(12);
    const [prompt, train] = ["The tide", "for await (const { step, loss } of trainer.train(examples, { epochs: 3 }))"];
    assert.ok(source.includes(train));
    const run = (source) => page.evaluate(async ([source, learned, prompt]) => {
      Object.assign(globalThis, { printed: [], text: learned, prompt });
      await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
      return globalThis.printed;
    }, [source, learned, prompt]);
    const printed = await run(source), [before] = await run(source.replace(train, "for (const { step, loss } of [])"));
    const losses = printed.slice(0, -1).filter((_, i) => i % 2 === 1), after = printed.at(-1);
    assert.ok(losses.length >= 3 && losses.at(-1) < losses[0], `${losses}`);
    assert.ok(after.startsWith(prompt) && after.length > prompt.length && after !== before, after);
  }));

test("the README names every command of npm's, and how long the tests may take", () => {
  const readme = readFileSync(join(root, "README.md"), "utf8"), { scripts } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  for (const name of Object.keys(scripts).filter((name) => name !== "prepack")) {
    assert.match(readme, new RegExp(`(\`|^)(npm (run )?)?${name}(?![\\w:-])`, "m"), `${name} is in the README`);
  }
  const { "set-up": _, ...parts } = budgets.minutes;
  assert.match(readme, new RegExp(`have ${Object.values(parts).reduce((sum, minutes) => sum + minutes)} minutes on two cores`));
});

test("the page of the API says something of every option and method", () => {
  const api = readFileSync(join(root, "www/docs/api.html"), "utf8");
  const silent = Array.from(api.matchAll(/<div class="member"><pre[^>]*><code>(?!constructor)([^<]*)<\/code><\/pre><\/div>/g), ([, code]) => code);
  assert.ok(api.includes('class="member"'));
  assert.deepEqual(silent, []);
});

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
