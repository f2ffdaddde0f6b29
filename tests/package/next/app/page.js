"use client";
import { Gpu, Tensor } from "lora-webgpu"; // on the server too
import { useEffect, useState } from "react";

export default function Page() {
  const [text, setText] = useState("waiting");
  useEffect(() => {
    globalThis.done ??= (async () => {
      const gpu = await Gpu.request();
      const y = new Tensor(gpu, { shape: [2], data: Float32Array.of(1, 2) }), output = new Tensor(gpu, { shape: [2] });
      const rec = gpu.record();
      rec.addScaled({ y, output, scale: 2 });
      await rec.submit();
      const values = await output.read();
      gpu.dispose();
      return Array.from(values);
    })().catch((error) => `${error.code}: ${error.message}`);
    globalThis.done.then((values) => setText(String(values)));
  }, []);
  return <output>{text}</output>;
}
