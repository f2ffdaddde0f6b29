// Adapters that a page in Chromium trained and saved, with what its layers then give, for check_with_peft.py.
// FOLDER has base/config.json and base/model.safetensors of a language model, whose adapters are trained on token ids.
// Usage: node tests/interop/train_in_page.mjs FOLDER SEED
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { root } from "../../scripts/lib.mjs";
import { serve } from "../../scripts/start.mjs";
import { launch, onPage } from "../e2e/browser.mjs";

const [folder, seed] = process.argv.slice(2);
const VARIANTS = {
  plain: {}, rslora: { useRslora: true, alpha: 5 }, dora: { useDora: true }, lora_bias: { loraBias: true }, train_bias: { trainBias: true },
  dropout: { dropout: 0.25 }, gaussian: { init: "gaussian" }, orthogonal: { init: "orthogonal" }, pissa: { init: "pissa" }, olora: { init: "olora" }, pissa_plain: { init: "pissa" },
};
const MODEL_VARIANTS = {
  model_qv: { targetModules: ["q_proj", "v_proj"] }, model_all: {}, model_rslora: { useRslora: true, alpha: 3 }, model_dora: { useDora: true }, model_dropout: { dropout: 0.2 },
  model_embed: { targetModules: ["embed_tokens", "q_proj"] }, model_head: { targetModules: ["lm_head", "v_proj"], useRslora: true },
  model_whole: { targetModules: ["down_proj", "embed_tokens"], modulesToSave: ["lm_head", "norm", "layers.0.self_attn.o_proj"] },
};
const write = (name, { config, weights, ...rest }) => {
  const own = join(folder, "page", name);
  mkdirSync(own, { recursive: true });
  writeFileSync(join(own, "adapter_config.json"), config);
  writeFileSync(join(own, "adapter_model.safetensors"), Uint8Array.from(weights));
  writeFileSync(join(own, "page.json"), JSON.stringify(rest));
};
const browser = await launch(), server = await serve(root, 0);
try {
  await onPage(browser, `${server.url}tests/e2e/bare.html`, {}, async (page) => {
    await page.waitForFunction(() => globalThis.ready);
    for (const [name, options] of Object.entries(VARIANTS)) {
      const result = await page.evaluate(async ([options, seed, plain]) => {
        let state = seed;
        const random = () => (state = (Math.imul(state, 1664525) + 1013904223) | 0) / 2 ** 31;
        const numbers = (length) => Float32Array.from({ length }, random);
        const sizes = [["block.0.fc", 24, 33], ["head", 33, 17]], rows = 9;
        const bases = sizes.map(([name, inFeatures, outFeatures]) => ({ name, inFeatures, outFeatures, weight: numbers(inFeatures * outFeatures).map((v) => v / 3), bias: numbers(outFeatures) }));
        const layers = bases.map((base, i) => new LoraLinear(gpu, { ...base, rank: 4 - 2 * i, alpha: 6, seed: seed + i, ...options }));
        const data = { x: numbers(rows * 24), target: numbers(rows * 17) };
        const trainer = new Trainer(gpu, { layers: [layers[0], tanh(), layers[1]], loss: mse(), optimizer: adamw({ lr: 0.02 }) });
        const losses = [];
        for (let i = 0; i < 25; i++) losses.push((await trainer.step(data)).loss);
        trainer.dispose();
        const forward = async (layer, x, inFeatures) => {
          const rec = gpu.record(), output = layer.forward(rec, new Tensor(gpu, { shape: [rows, inFeatures], data: x }));
          await rec.submit();
          return output.read();
        };
        const y = await forward(layers[1], (await forward(layers[0], data.x, 24)).map(Math.tanh), 33);
        const { config, weights } = await savePeft({ layers, plain });
        layers.forEach((layer) => layer.dispose());
        return { config, weights: [...weights], losses, x: [...data.x], y: [...y], rows, bases: bases.map((base) => ({ ...base, weight: [...base.weight], bias: [...base.bias] })) };
      }, [options, Number(seed), name.endsWith("_plain")]);
      write(name, result);
    }
    const base = ["config.json", "model.safetensors"].map((name) => [...readFileSync(join(folder, "base", name))]);
    for (const [name, options] of Object.entries(MODEL_VARIANTS)) {
      write(name, await page.evaluate(async ([[config, weights], options, seed]) => {
        const model = await CausalLM.load(gpu, { config: Uint8Array.from(config), weights: Uint8Array.from(weights) });
        model.addAdapter({ rank: 4, alpha: 8, seed, ...options });
        const ids = (length, k) => Int32Array.from({ length }, (_, i) => (i * i + 7 * k + seed) % 90);
        const examples = [ids(12, 1), ids(9, 2)].map((inputIds) => ({ inputIds, labels: inputIds }));
        const trainer = new LanguageTrainer(model, { optimizer: adamw({ lr: 5e-3 }), batchSize: 2 }), losses = [];
        for await (const { loss } of trainer.train(examples, { epochs: 20 })) losses.push(loss);
        trainer.dispose();
        const inputIds = ids(13, 3), logits = await model.logits(inputIds), saved = await model.saveAdapter();
        model.dispose();
        return { config: saved.config, weights: [...saved.weights], losses, inputIds: [...inputIds], y: [...logits] };
      }, [base, options, Number(seed)]));
    }
  });
} finally {
  await browser.close();
  await server.close();
}
