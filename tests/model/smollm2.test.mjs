// The real SmolLM2-135M in Chromium, from its GGUF file, which `npm run test:model` fetches and names in LORA_SMOLLM2.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { Tokenizer } from "@huggingface/tokenizers";
import { readGguf } from "../../dist/index.js";
import { root } from "../../scripts/lib.mjs";
import { serve } from "../../scripts/start.mjs";
import { launch, onPage } from "../e2e/browser.mjs";
import { safetensors } from "../e2e/gguf.mjs";

const path = process.env.LORA_SMOLLM2;
const FOLDER = join(root, "tests/golden/smollm2");
const all = safetensors(join(FOLDER, "trace.safetensors"));
const bytes = readFileSync(join(FOLDER, "trace.safetensors"));
const meta = JSON.parse(bytes.subarray(8, 8 + Number(bytes.readBigUInt64LE(0)))).__metadata__;
const tensor = (name) => all.find((one) => one.name === name);
const numbers = ({ bytes, dtype }) => Array.from({ length: bytes.length / 4 }, (_, i) => (dtype === "I32" ? bytes.readInt32LE(4 * i) : bytes.readFloatLE(4 * i)));
const ints = (name) => numbers(tensor(name));
const worst = (got, expected) => {
  assert.equal(got.length, expected.length);
  return got.reduce((most, value, i) => Math.max(most, Math.abs(value - expected[i])), 0) / expected.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
};
const [batch, tokens] = tensor("input_ids").shape;
const mask = ints("attention_mask"), ids = ints("input_ids"), losses = JSON.parse(meta.losses);
const texts = Array.from({ length: batch }, (_, i) => ids.slice(i * tokens, (i + 1) * tokens).filter((_, t) => mask[i * tokens + t] === 1));

test("its tokenizer gives transformers' ids, its template a chat", async () => {
  const { tokenizer, tokenizerConfig } = await readGguf(new Uint8Array(readFileSync(path)));
  const own = new Tokenizer(tokenizer, tokenizerConfig);
  JSON.parse(meta.text).forEach((text, i) => assert.deepEqual(own.encode(text).ids, texts[i]));
  assert.equal(own.decode(ints("greedy_ids"), { skip_special_tokens: true }), meta.greedy_text);
  assert.match(tokenizerConfig.chat_template, /<\|im_start\|>/);
});

test("SmolLM2-135M computes PyTorch's numbers in a page", { timeout: 3_600_000 }, async () => {
  const server = await serve(root, 0), browser = await launch();
  try {
    await onPage(browser, `${server.url}tests/e2e/bare.html`, {}, async (page) => {
      page.setDefaultTimeout(3_600_000);
      page.on("console", (message) => message.type() === "info" && console.log(`SmolLM2-135M in Chromium: ${message.text()}`));
      await page.waitForFunction(() => globalThis.ready);
      await page.evaluate(() => document.body.append(Object.assign(document.createElement("input"), { type: "file" })));
      await page.setInputFiles("input", path);
      const result = await page.evaluate(async ({ texts, prompt, count, kept, steps, lr }) => {
        const L = await import("/dist/index.js");
        const begin = performance.now();
        const said = (text) => console.info(`${((performance.now() - begin) / 1000).toFixed(0)} s: ${text}`);
        const get = async (name) => (await fetch(`/tests/golden/smollm2/adapter_start_qv/${name}`)).blob();
        const adapter = { config: await get("adapter_config.json"), weights: await get("adapter_model.safetensors") };
        const model = await L.CausalLM.load(gpu, { gguf: document.querySelector("input").files[0] });
        const { memory } = await (await import("/dist/wasm/lora_webgpu.js")).default();
        said(`${model.bytes} bytes of weights on the GPU, through ${memory.buffer.byteLength} of wasm memory`);
        const logits = Array.from((await model.logits(texts[0])).slice(-kept));
        said("logits");
        const greedy = [];
        for await (const id of model.generate(prompt, { maxTokens: count, stopTokenIds: [] })) greedy.push(id);
        said(`${count} tokens`);
        const examples = texts.map((ids) => ({ inputIds: Int32Array.from(ids), labels: Int32Array.from(ids) }));
        const options = { batchSize: texts.length };
        model.addAdapter({ rank: 8, alpha: 16, seed: 1 });
        let trainer = new L.LanguageTrainer(model, { ...options, optimizer: L.adamw({ lr }) });
        const all = (await trainer.evaluate(examples)).loss;
        said(`loss with all linear layers ${all}`);
        trainer.dispose();
        model.removeAdapter();
        // B is 0: after one step of gradient descent at rate 1 it is the gradient's negative.
        await model.loadAdapter(adapter);
        trainer = new L.LanguageTrainer(model, { ...options, optimizer: L.sgd({ lr: 1 }) });
        for await (const _ of trainer.train(examples));
        const stepped = Array.from((await model.saveAdapter()).weights);
        said("gradients");
        trainer.dispose();
        model.removeAdapter();
        await model.loadAdapter(adapter);
        trainer = new L.LanguageTrainer(model, { ...options, optimizer: L.adamw({ lr, weightDecay: 0 }) });
        const losses = [];
        for await (const { loss, step } of trainer.train(examples, { epochs: steps })) {
          losses.push(loss);
          said(`step ${step}: loss ${loss}`);
        }
        trainer.dispose();
        model.dispose();
        return { logits, greedy, all, stepped, losses, wasm: memory.buffer.byteLength };
      }, {
        texts, prompt: ints("greedy_ids").slice(0, Number(meta.prompt_len)), count: ints("greedy_ids").length - Number(meta.prompt_len),
        kept: numbers(tensor("logits_row0_last8")).length, steps: losses.qv.length, lr: Number(meta.lr),
      });
      const logits = worst(result.logits, numbers(tensor("logits_row0_last8")));
      const loss = Math.abs(result.all - losses.all[0]);
      const off = result.losses.map((loss, i) => Math.abs(loss - losses.qv[i]));
      console.log(`logits off by ${logits.toExponential(1)} of the largest (2e-5), loss by ${loss.toExponential(1)} (2e-5), losses by ${off.map((x) => x.toExponential(1)).join(", ")} (2e-5, later 2e-4)`);
      const trained = parse(Buffer.from(result.stepped));
      for (const { name } of all.filter(({ name }) => name.startsWith("grad."))) {
        const share = worst(trained.get(name.slice(5)).map((value) => -value), numbers(tensor(name)));
        console.log(`${name} off by ${share.toExponential(1)} of the largest (1e-4)`);
        assert.ok(share <= 1e-4, name);
      }
      assert.ok(logits <= 2e-5 && loss <= 2e-5 && off[0] <= 2e-5 && Math.max(...off) <= 2e-4);
      assert.deepEqual(result.greedy, ints("greedy_ids").slice(Number(meta.prompt_len)));
      assert.ok(result.wasm < 64 * 1024 * 1024, `${result.wasm} bytes of wasm memory`);
    });
  } finally {
    await browser.close();
    await server.close();
  }
});

function parse(bytes) {
  const length = Number(bytes.readBigUInt64LE(0));
  const { __metadata__, ...header } = JSON.parse(bytes.subarray(8, 8 + length));
  return new Map(Object.entries(header).map(([name, { data_offsets: [start, end] }]) => [name, numbers({ bytes: bytes.subarray(8 + length + start, 8 + length + end) })]));
}
