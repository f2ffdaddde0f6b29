// examples/finetune-text: the small base model, and a GGUF file that is given to it.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { root } from "../../scripts/lib.mjs";
import { serve } from "../../scripts/start.mjs";
import { launch, onPage } from "./browser.mjs";
import { llamaGguf, safetensors } from "./gguf.mjs";

let browser, server;
before(async () => {
  server = await serve(root, 0);
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await server?.close();
});

const learn = async (page, text) => {
  await page.waitForFunction(() => document.documentElement.dataset.state === "ready");
  await page.fill("#text", text);
  await page.fill("#epochs", "2");
  await page.click("#start");
  await page.waitForFunction(() => ["done", "failed"].includes(document.documentElement.dataset.state));
  return page.evaluate(() => ({
    state: document.documentElement.dataset.state, status: document.querySelector("#status").value, before: document.querySelector("#before").textContent,
    after: document.querySelector("#after").textContent, files: [...document.querySelectorAll("#files a")].map(({ download }) => download),
  }));
};
const check = ({ state, status, before, after, files }) => {
  assert.equal(state, "done", status);
  assert.match(status, /^learned: perplexity \d+\.\d+/);
  assert.notEqual(before, after);
  assert.deepEqual(files, ["adapter_config.json", "adapter_model.safetensors"]);
};
const text = "The tide was low at dawn. We rowed out at six, hauled the nets at nine, and came home wet. ".repeat(2);

test("the small base learns a text, and writes otherwise then", () => onPage(browser, `${server.url}examples/finetune-text/index.html`, {}, async (page) =>
  check(await learn(page, text))));

test("a GGUF file brings its tokenizer", () => onPage(browser, `${server.url}examples/finetune-text/index.html`, {}, async (page) => {
  // A small llama whose vocabulary is bytes and a few merges.
  const folder = join(root, "tests/golden/models/llama_tied_all");
  const config = JSON.parse(readFileSync(join(folder, "config.json")));
  const read = JSON.parse(readFileSync(join(root, "www/model/tokenizer.json"), "utf8"));
  const tokens = Object.entries(read.model.vocab).sort((a, b) => a[1] - b[1]).map(([token]) => token).slice(0, config.vocab_size);
  const gguf = llamaGguf(config, safetensors(join(folder, "model.safetensors")), {
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": [],
    "tokenizer.ggml.token_type": tokens.map((_, i) => (i === 0 ? 3 : 1)), "tokenizer.ggml.eos_token_id": 0,
  });
  await page.waitForFunction(() => document.documentElement.dataset.state === "ready");
  await page.setInputFiles("#gguf", { name: "tiny.gguf", mimeType: "application/octet-stream", buffer: gguf });
  check(await learn(page, text.slice(0, 200)));
}));
